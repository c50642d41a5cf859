// SPDX-License-Identifier: Apache-2.0
// Large files: staged in chunks, or in part.
#include <dirent.h>
#include <fcntl.h>

#include <atomic>
#include <mutex>
#include <thread>

#include "tests/placement_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

class LargeFile : public PlacementTest, public ::testing::WithParamInterface<bool> {};

TEST_P(LargeFile, IsKnownAsLargeUntilItIsPlaced) {
  config_.stage_wait_max = 1 << 20;
  config_.prefetch = GetParam() ? AgentConfig::Prefetch::kOn : AgentConfig::Prefetch::kOff;
  scratch_.file("pfs/large", noise(3 << 20, 1));
  scratch_.file("pfs/small", noise(1000, 2));
  const struct stat large = source_stat("large"), small = source_stat("small");
  start();
  std::atomic<bool> held{true};
  Intercept reads(Call::kPread, [&](Arguments& a) {
    return a.bytes <= 1000 || eventually([&] { return !held; }) ? 0 : EIO;
  });
  if (config_.prefetch == AgentConfig::Prefetch::kOn) {
    walk();
  } else {
    placement_->demand(rel("large"));
  }
  ASSERT_TRUE(eventually([&] { return state("large") == State::kLarge; }));
  if (config_.prefetch == AgentConfig::Prefetch::kOff) placement_->demand_chunk(rel("large"), 1);
  EXPECT_EQ(catalog_->reader().find(rel("large")).entry->size, 3u << 20);
  demand("small");
  expect_placed("small", small);
  EXPECT_EQ(state("large"), State::kLarge) << "its copy waits";
  held = false;
  ASSERT_TRUE(placed_at_last("large"));
  placement_->stop();
  expect_placed("large", large);
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), (3u << 20) + 1000);
  EXPECT_EQ(counter(AgentCounter::dataset_bytes), (3u << 20) + 1000);
}

INSTANTIATE_TEST_SUITE_P(Found, LargeFile, ::testing::Bool(), [](const ::testing::TestParamInfo<bool>& by) {
  return by.param ? "ByPrefetch" : "ByDemand";
});

TEST_F(PlacementTest, LargeCopiesLeaveThreadsToDemand) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  config_.threads = 4;
  config_.stage_wait_max = 1000;
  for (int i = 0; i < 8; ++i) scratch_.file("pfs/large" + std::to_string(i), noise(2000, 1));
  scratch_.file("pfs/small", noise(500, 2));
  start();
  std::atomic<bool> held{true};
  std::atomic<int> reading{0};
  Intercept reads(Call::kPread, [&](Arguments& a) {
    if (a.bytes <= 1000) return 0;
    ++reading;
    return eventually([&] { return !held; }) ? 0 : EIO;
  });
  for (int i = 0; i < 8; ++i) catalog_->add(rel("large" + std::to_string(i)), DT_REG);
  placement_->catalog_grew();
  ASSERT_TRUE(eventually([&] { return reading == 2; }));
  EXPECT_EQ(state_of(demand("small")), State::kPlaced);
  EXPECT_EQ(reading, 2);
  held = false;
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(placed_at_last("large" + std::to_string(i)));
}

// A file with holes has no more bytes than a small one, and its chunks would take memory.
TEST_F(PlacementTest, AFileOfTooManyChunksIsNotBegun) {
  const Scratch memory("/dev/shm");  // files may be as long there
  tiers_ = {tier_config(memory, "ram", 1 << 30)};
  config_.stage_wait_max = 1000;
  scratch_.file("pfs/large", noise(2 * kMiB, 1));
  const ino_t inode = source_stat("large").st_ino;
  start();
  {
    const Intercept looks(Call::kFstatResult, [&](Arguments& a) {
      if (a.st->st_ino == inode) a.st->st_size += off_t{16} << 40;
      return 0;
    });
    demand("large");
    for (uint32_t n = 0; n < 2; ++n) placement_->demand_chunk(rel("large"), n);
    EXPECT_TRUE(eventually([&] { return state("large") != State::kLarge; }));
  }
  EXPECT_EQ(word("large"), state_word(State::kNoFit));
  EXPECT_EQ(counter(AgentCounter::no_fit_files), 1u);
  EXPECT_EQ(files_on(), 0);
  end();
}

// As a task that reads it past the library, with O_DIRECT or io_uring.
TEST_F(PlacementTest, ALargeFileThatIsOnlyOpenedIsPrefetched) {
  config_.stage_wait_max = 1000;
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (const char* name : {"early", "late"}) scratch_.file(std::string("pfs/") + name, noise(3 * kMiB, 1));
  start();
  demand("early");
  walk();
  EXPECT_TRUE(placed_at_last("early"));
  EXPECT_TRUE(placed_at_last("late"));
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), 6u * kMiB) << "each byte once";
}

TEST_F(PlacementTest, AChunkThatIsAskedForComesFirst) {
  config_.stage_wait_max = 1000;
  config_.threads = 1;
  scratch_.file("pfs/large", noise(10 * kMiB + 5, 1));
  const struct stat st = source_stat("large");
  start();
  std::vector<off_t> offsets;
  std::mutex lock;
  Intercept reads(Call::kPread, [&](Arguments& a) {
    std::lock_guard<std::mutex> hold(lock);
    offsets.push_back(a.offset);
    return 0;
  });
  demand("large");
  placement_->demand_chunk(rel("large"), 10);
  ASSERT_TRUE(placed_at_last("large"));
  placement_->stop();
  ASSERT_FALSE(offsets.empty());
  EXPECT_EQ(offsets.front(), 10 * off_t{kMiB});
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), 10u * kMiB + 5) << "each byte once";
  expect_placed("large", st);
}

TEST_F(PlacementTest, PrefetchAndChunksThatAreAskedForMeet) {
  constexpr uint32_t kFiles = 60;
  config_.stage_wait_max = 1000;
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (uint32_t i = 0; i < kFiles; ++i) scratch_.file("pfs/f" + std::to_string(i), noise(2 * kMiB + 7, i));
  start();
  start_walk();
  const auto all_are_placed = [&] {
    for (uint32_t i = 0; i < kFiles; ++i)
      if (state("f" + std::to_string(i)) != State::kPlaced) return false;
    return true;
  };
  Threads(2, [&](uint32_t t) {
    EXPECT_TRUE(eventually([&] {
      for (uint32_t i = 0; i < kFiles; ++i) placement_->demand_chunk(rel("f" + std::to_string(i)), 2 - t);
      return all_are_placed();
    }));
  }).join();
  placement_->stop();
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), kFiles * (2 * kMiB + 7)) << "each byte once";
  EXPECT_EQ(counter(AgentCounter::staged_files), kFiles);
  EXPECT_EQ(tier().used(), kFiles * (2 * kMiB + 4096));
  EXPECT_EQ(files_on(), static_cast<int>(kFiles));
}

TEST_F(PlacementTest, AFileLargerThanTheTierIsKeptInPart) {
  config_.stage_wait_max = 1000;
  tiers_[0].quota.bytes = 3 * kMiB + 4096;
  scratch_.file("pfs/large", noise(8 * kMiB, 1));
  start();
  demand("large");
  placement_->demand_chunk(rel("large"), 6);
  const auto chunks = [&] { return catalog_->reader().chunks(chunks_of(word("large"))); };
  ASSERT_TRUE(eventually([&] { return chunks() && chunks()->closed == 1; }));
  uint32_t there = 0;
  for (uint32_t n = 0; n < 8; ++n) there += catalog_->reader().has_chunk(chunks_of(word("large")), n);
  EXPECT_EQ(there, 3u);
  EXPECT_TRUE(catalog_->reader().has_chunk(chunks_of(word("large")), 6));
  EXPECT_EQ(state("large"), State::kLarge);
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), 3u * kMiB);
  EXPECT_EQ(tier().used(), 3u * kMiB);
}

// What the task has read is in the page cache, from where staging reads it if the pages are not dropped.
TEST_F(PlacementTest, ALargeFileThatIsReadNativelyIsStagedFromThePageCache) {
  config_.stage_wait_max = 1000;
  std::atomic<int> dropped{0};
  scratch_.file("pfs/large", noise(4 * kMiB, 1));
  scratch_.file("pfs/other", noise(4 * kMiB, 2));
  start();
  Intercept drops(Call::kDropPages, [&](Arguments&) {
    ++dropped;
    return 0;
  });
  demand("large");
  placement_->demand_chunk(rel("large"), kReadNatively);
  ASSERT_TRUE(placed_at_last("large"));
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), uint64_t{4 * kMiB});
  EXPECT_EQ(dropped, 0);
  demand("other");
  placement_->demand_chunk(rel("other"), 3);
  ASSERT_TRUE(placed_at_last("other"));
  EXPECT_GT(dropped, 0);
}

TEST_F(PlacementTest, ChunksOutsideTheFileAreIgnored) {
  config_.stage_wait_max = 1000;
  scratch_.file("pfs/large", noise(2 * kMiB, 1));
  start();
  demand("large");
  placement_->demand_chunk(rel("large"), 77);
  placement_->demand_chunk(rel("nowhere"), 0);
  ASSERT_TRUE(placed_at_last("large")) << "the rest is staged all the same " << word("large");
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), 2u * kMiB);
}

}  // namespace
}  // namespace monarch
