// SPDX-License-Identifier: Apache-2.0
// Tiers that fail after all seemed well, that others fill, and that come back.
#include <dirent.h>
#include <fcntl.h>

#include <atomic>
#include <tuple>

#include "runtime/base/memory.h"
#include "tests/placement_fixture.h"

namespace monarch {
namespace {

// The silent loss of shared storage: fallocate, write and linkat succeed, write-back does not.
TEST_F(PlacementTest, ACopyThatDidNotReachItsDeviceIsTakenBack) {
  scratch_.file("pfs/f", noise(100000, 1));
  scratch_.file("pfs/after", noise(1000, 2));
  start();
  {
    Intercept lost(Call::kFinishSync, EIO);
    placement_->demand(rel("f"));
    ASSERT_TRUE(eventually([&] { return word("f") == state_word(State::kNoFit, Reason::kTierError); }));
    ASSERT_TRUE(eventually([&] { return files_on() == 0 && tier().used() == 0; }));
  }
  EXPECT_TRUE(tier().closed());
  EXPECT_EQ(catalog_->header().tiers[0].failed, 1u) << "tasks would still open copies there";
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_EQ(counter(AgentCounter::tier_errors), 1u);
  EXPECT_EQ(demand("after"), state_word(State::kNoFit, Reason::kTierError));

  ASSERT_TRUE(
      eventually([&] { return catalog_->header().tiers[0].failed == 0 && state("f") == State::kKnown; }));
  const struct stat st = source_stat("f");
  demand("f");
  expect_placed("f", st);
}

// What root grants later is used, also by a job that began with nothing.
TEST_F(PlacementTest, WhatDidNotFitIsPlacedWhenTheQuotaGrows) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  tiers_[0].quota.bytes = 0;
  constexpr int kFiles = 20;
  for (int i = 0; i < kFiles; ++i) scratch_.file("pfs/" + std::to_string(i), noise(5000, 3));
  start();
  walk();
  ASSERT_TRUE(eventually([&] { return (*board_)->header.full == 1; })) << "the tiers count as full";
  for (const uint64_t quota : {10 * 8192, kFiles * 8192}) {
    ASSERT_TRUE(tier().set_quota(quota));
    placement_->room_grew();
    ASSERT_TRUE(eventually([&] { return counter(AgentCounter::staged_files) == quota / 8192; }));
  }
  EXPECT_EQ((*board_)->header.full, 0u);
  EXPECT_EQ(tier().used(), kFiles * 8192u);
}

TEST_F(PlacementTest, ACopyIsKeptOpenOnlyUntilItIsOnItsDevice) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  constexpr int kFiles = 500;
  for (int i = 0; i < kFiles; ++i) scratch_.file("pfs/" + std::to_string(i), noise(5000, 3));
  start();
  start_walk();
  int most = 0;
  ASSERT_TRUE(eventually([&] {
    most = std::max(most, open_descriptors());
    return counter(AgentCounter::staged_files) == kFiles;
  }));
  EXPECT_LE(most - descriptors_, 256 + 64) << "descriptors are bounded";
  ASSERT_TRUE(eventually([&] { return open_descriptors() < descriptors_ + 64; }));
}

TEST_F(PlacementTest, WhatOthersLeftNoRoomForIsTriedAgainWhenThereIsRoom) {
  for (const char* name : {"a", "b"}) scratch_.file(std::string("pfs/") + name, noise(100000, 1));
  tiers_[0].min_free.bytes = kMiB;
  start();
  std::atomic<uint64_t> free{2};
  Intercept statvfs(Call::kFstatvfs, [&](Arguments& a) {
    a.fs->f_bavail = free * kMiB / a.fs->f_frsize;
    return 0;
  });
  const struct stat a = source_stat("a");
  demand("a");
  expect_placed("a", a);
  free = 1;  // a rival has written
  EXPECT_EQ(demand("b"), state_word(State::kNoFit, Reason::kTierError));
  EXPECT_FALSE(tier().closed()) << "there may be room for a smaller one";
  const int64_t first = tier().next_probe_ns();
  ASSERT_TRUE(eventually([&] { return tier().next_probe_ns() != first; }));
  EXPECT_EQ(tier().next_probe_ns(), clock_.now_ns() + 20'000'000'000);
  EXPECT_EQ(word("b"), state_word(State::kNoFit, Reason::kTierError)) << "there still is no room";
  free = 2;
  ASSERT_TRUE(eventually([&] { return state("b") == State::kKnown; }));
  const struct stat b = source_stat("b");
  demand("b");
  expect_placed("b", b);
}

// Short of descriptors or memory, for the source or for the copy: that tells nothing about either.
class Shortage : public PlacementTest, public ::testing::WithParamInterface<std::tuple<Call, int>> {};

TEST_P(Shortage, WhatWasPutOffIsTriedAgain) {
  const auto [call, error] = GetParam();
  config_.stage_wait_max = kMiB;
  scratch_.file("pfs/f", noise(1000, 1));
  scratch_.file("pfs/large", noise(2 * kMiB, 2));
  start();
  {
    Intercept shortage(call, error);
    EXPECT_EQ(demand("f"), state_word(State::kNoFit, Reason::kTierError));
    demand("large");
    placement_->demand_chunk(rel("large"), 1);
    ASSERT_TRUE(eventually([&] { return counter(AgentCounter::put_off_files) >= 1; }));
  }
  EXPECT_FALSE(tier().closed());
  EXPECT_EQ(counter(AgentCounter::source_errors) + counter(AgentCounter::tier_errors), 0u);
  placement_->demand(rel("none"));  // wakes a thread, which sleeps until it is time
  ASSERT_TRUE(eventually([&] { return state("f") == State::kKnown; }));
  const struct stat st = source_stat("f");
  demand("f");
  expect_placed("f", st);
  demand("large");
  placement_->demand_chunk(rel("large"), 1);
  ASSERT_TRUE(placed_at_last("large"));
  EXPECT_TRUE(contents(copy_of("large")) == contents(pfs_ + "/large"));
}

INSTANTIATE_TEST_SUITE_P(Calls, Shortage,
                         ::testing::Combine(::testing::Values(Call::kOpenBeneath, Call::kOpenat),
                                            ::testing::Values(EMFILE, ENFILE, ENOMEM)));

TEST_F(PlacementTest, PrefetchKeepsToTheRatesAndDemandDoesNot) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  config_.pfs_opens = 1;
  for (int i = 0; i < 20; ++i) scratch_.file("pfs/" + std::to_string(i), noise(1000, 1));
  start();
  walk();
  pass(500);
  EXPECT_LE(counter(AgentCounter::agent_opens_pfs), 3u) << "20 files were opened at 1 per second";
  for (int i = 0; i < 20; ++i) demand(std::to_string(i));
  EXPECT_EQ(counter(AgentCounter::staged_files), 20u);
}

TEST_F(PlacementTest, IdleHandlerSleepsWithoutALimit) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (int i = 0; i < 50; ++i) scratch_.file("pfs/" + std::to_string(i), noise(1000, 1));
  start();
  walk();
  ASSERT_TRUE(eventually([&] { return counter(AgentCounter::staged_files) == 50; }));
  EXPECT_TRUE(quiet());
  if (!memory_is_short()) {
    EXPECT_EQ(clock_.next_ns(), -1);
  }
}

// Nobody waits for it, so nobody has it open when its write-back fails: it never was published.
TEST_F(PlacementTest, APrefetchedCopyIsPublishedOnceItIsOnItsDevice) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  scratch_.file("pfs/f", noise(100000, 1));
  start();
  std::atomic<bool> held{true}, inside{false};
  Intercept lost(Call::kFinishSync, [&](Arguments&) {
    inside = true;
    (void)eventually([&] { return !held; });
    return EIO;
  });
  start_walk();
  ASSERT_TRUE(eventually([&] { return inside.load(); }));
  EXPECT_EQ(state("f"), State::kStaging) << "it may still be lost";
  held = false;
  ASSERT_TRUE(eventually([&] { return word("f") == state_word(State::kNoFit, Reason::kTierError); }));
  ASSERT_TRUE(eventually([&] { return files_on() == 0 && tier().used() == 0; }));
  EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_TRUE(tier().closed());
}

TEST_F(PlacementTest, WhoWaitsForAPrefetchedCopyDoesNotWaitForItsDevice) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  scratch_.file("pfs/f", noise(100000, 1));
  const struct stat st = source_stat("f");
  start();
  std::atomic<bool> held{true}, inside{false};
  Intercept slow(Call::kFinishSync, [&](Arguments&) {
    inside = true;
    (void)eventually([&] { return !held; });
    return 0;
  });
  start_walk();
  ASSERT_TRUE(eventually([&] { return inside.load(); }));
  demand("f");
  expect_placed("f", st);
  held = false;
  placement_->stop();
  EXPECT_EQ(counter(AgentCounter::staged_files), 1u);
  EXPECT_EQ(tier().used(), tier().space_of(100000));
}

// A task has it open: its space is not free, whatever names are gone.
TEST_F(PlacementTest, ALostCopyThatIsOpenKeepsItsSpace) {
  scratch_.file("pfs/f", noise(100000, 1));
  start();
  std::atomic<bool> held{true};
  Intercept lost(Call::kFinishSync, [&](Arguments&) {
    (void)eventually([&] { return !held; });
    return EIO;
  });
  demand("f");
  ASSERT_EQ(state("f"), State::kPlaced);
  const Fd reader(::open(copy_of("f").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_TRUE(reader);
  held = false;
  ASSERT_TRUE(eventually([&] { return state("f") == State::kNoFit && files_on() == 0; }));
  placement_->stop();
  EXPECT_EQ(tier().used(), tier().space_of(100000));
}

// The unlink of a lost copy fails: the next one of the file is placed all the same, and the space of the lost
// one stays counted.
TEST_F(PlacementTest, ACopyThatCannotBeRemovedStaysCounted) {
  scratch_.file("pfs/f", noise(100000, 1));
  start();
  {
    Intercept lost(Call::kFinishSync, EIO), kept(Call::kUnlinkat, EPERM);
    placement_->demand(rel("f"));
    ASSERT_TRUE(eventually([&] { return word("f") == state_word(State::kNoFit, Reason::kTierError); }));
    placement_->stop();
  }
  EXPECT_EQ(tier().used(), tier().space_of(100000));
}

// While one thread still copies a chunk, another gives the file up for lack of memory, and it is tried again.
TEST_F(PlacementTest, ALargeFileThatWasPutOffIsBegunAgainBesideTheOldOne) {
  config_.stage_wait_max = kMiB;
  scratch_.file("pfs/f", noise(4 * kMiB, 1));
  start();
  demand("f");
  std::atomic<bool> held{true}, inside{false}, shortage{true};
  Intercept reads(Call::kPread, [&](Arguments& a) {
    if (a.offset == 0 && !inside.exchange(true)) (void)eventually([&] { return !held; });
    return a.offset == kMiB && shortage ? ENOMEM : 0;
  });
  placement_->demand_chunk(rel("f"), 0);
  ASSERT_TRUE(eventually([&] { return inside.load(); }));
  placement_->demand_chunk(rel("f"), 1);
  ASSERT_TRUE(eventually([&] { return state("f") == State::kNoFit; }));
  shortage = false;
  ASSERT_TRUE(eventually([&] { return state("f") == State::kKnown; }));
  demand("f");
  const auto there = [&](uint32_t n) {
    return state("f") == State::kPlaced || catalog_->reader().has_chunk(chunks_of(word("f")), n);
  };
  placement_->demand_chunk(rel("f"), 1);
  ASSERT_TRUE(eventually([&] { return there(1); })) << word("f");
  EXPECT_FALSE(tier().closed());
  held = false;
  for (uint32_t n = 0; n < 4; ++n) placement_->demand_chunk(rel("f"), n);
  ASSERT_TRUE(placed_at_last("f"));
  EXPECT_TRUE(contents(copy_of("f")) == contents(pfs_ + "/f"));
  ASSERT_TRUE(eventually([&] { return tier().used() == 4 * kMiB; })) << "the first attempt's space is back";
  EXPECT_EQ(files_on(), 1);
}

TEST_F(PlacementTest, AFileLargerThanFilesMayBeClosesNoTier) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  Intercept limit(Call::kFallocate, EFBIG);
  EXPECT_EQ(state_of(demand("f")), State::kNoFit);
  EXPECT_FALSE(tier().closed());
  EXPECT_EQ(tier().used(), 0u);
}

// Names that are not there take room in the catalog for good: before there are many, tasks are told to look.
TEST_F(PlacementTest, TasksAreToldToLookWhereMuchIsNotThere) {
  scratch_.file("pfs/f", "x");
  start();
  for (int i = 0; i < 60; ++i) demand("none" + std::to_string(i));
  EXPECT_EQ((*board_)->header.look_first, 0u);
  for (int i = 60; i < 70; ++i) demand("none" + std::to_string(i));
  EXPECT_EQ((*board_)->header.look_first, 1u);
  for (int i = 0; i < 30; ++i) {
    scratch_.file("pfs/f" + std::to_string(i), "x");
    demand("f" + std::to_string(i));
  }
  EXPECT_EQ((*board_)->header.look_first, 0u) << "there are more that are there";
}

}  // namespace
}  // namespace monarch
