// SPDX-License-Identifier: Apache-2.0
// Large files: staged in chunks, or in part.

#include <mutex>

#include "tests/placement_fixture.h"

namespace monarch {
namespace {

class LargeFiles : public PlacementTest {
 protected:
  LargeFiles() { config_.stage_wait_max = 1000; }
  void ask(const std::string& name, uint32_t chunk) { placement_->demand_chunk(rel(name), chunk); }
  uint64_t bytes_read() const { return counter(AgentCounter::agent_bytes_pfs); }
};

class LargeFile : public LargeFiles, public ::testing::WithParamInterface<bool> {};

TEST_P(LargeFile, IsKnownAsLargeUntilItIsPlaced) {
  config_.prefetch = GetParam() ? AgentConfig::Prefetch::kOn : AgentConfig::Prefetch::kOff;
  scratch_.file("pfs/large", noise(3 * kMiB, 1));
  scratch_.file("pfs/small", noise(1000, 2));
  const struct stat large = source_stat("large"), small = source_stat("small");
  start();
  std::atomic<bool> held{true};
  const Intercept reads(Call::kPread, [&](Arguments& a) {
    return a.bytes <= 1001 || eventually([&] { return !held; }) ? 0 : EIO;
  });
  if (GetParam())
    walk();
  else
    placement_->demand(rel("large"));
  ASSERT_TRUE(eventually([&] { return state("large") == State::kLarge; }));
  if (!GetParam()) ask("large", 1);
  EXPECT_EQ(catalog_->reader().find(rel("large")).entry->size, 3 * kMiB);
  demand("small");
  expect_placed("small", small);
  EXPECT_EQ(state("large"), State::kLarge) << "its copy waits";
  held = false;
  ASSERT_TRUE(placed_at_last("large"));
  placement_->stop();
  expect_placed("large", large);
  EXPECT_EQ(bytes_read(), (3 * kMiB) + 1000);
  EXPECT_EQ(counter(AgentCounter::dataset_bytes), (3 * kMiB) + 1000);
}

INSTANTIATE_TEST_SUITE_P(Found, LargeFile, ::testing::Bool(), [](const ::testing::TestParamInfo<bool>& by) {
  return by.param ? "ByPrefetch" : "ByDemand";
});

// A file with holes has no more bytes than a small one, and its chunks would take memory.
TEST_F(LargeFiles, AFileOfTooManyChunksIsNotBegun) {
  const Scratch memory("/dev/shm");  // files may be as long there
  tiers_ = {tier_config(memory, "ram", 1 << 30)};
  scratch_.file("pfs/large", noise(2 * kMiB, 1));
  const ino_t inode = source_stat("large").st_ino;
  start();
  {
    const Intercept looks(Call::kFstatResult, [&](Arguments& a) {
      if (a.st->st_ino == inode) a.st->st_size += off_t{16} << 40;
      return 0;
    });
    demand("large");
    for (uint32_t n = 0; n < 2; ++n) ask("large", n);
    EXPECT_TRUE(eventually([&] { return state("large") != State::kLarge; }));
  }
  EXPECT_EQ(word("large"), state_word(State::kNoFit));
  EXPECT_EQ(counter(AgentCounter::no_fit_files), 1u);
  EXPECT_EQ(files_on(), 0);
  end();
}

// As a task that reads it past the library, with O_DIRECT or io_uring.
TEST_F(LargeFiles, ALargeFileThatIsOnlyOpenedIsPrefetched) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (const char* name : {"early", "late"}) scratch_.file(std::string("pfs/") + name, noise(3 * kMiB, 1));
  start();
  demand("early");
  walk();
  EXPECT_TRUE(placed_at_last("early"));
  EXPECT_TRUE(placed_at_last("late"));
  EXPECT_EQ(bytes_read(), 6u * kMiB) << "each byte once";
}

TEST_F(LargeFiles, AChunkThatIsAskedForComesFirst) {
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
  ask("large", 10);
  ASSERT_TRUE(placed_at_last("large"));
  placement_->stop();
  ASSERT_FALSE(offsets.empty());
  EXPECT_EQ(offsets.front(), 10 * off_t{kMiB});
  EXPECT_EQ(bytes_read(), 10u * kMiB + 5) << "each byte once";
  expect_placed("large", st);
}

TEST_F(LargeFiles, PrefetchAndChunksThatAreAskedForMeet) {
  constexpr uint32_t kFiles = 60;
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (uint32_t i = 0; i < kFiles; ++i) scratch_.file("pfs/f" + std::to_string(i), noise(2 * kMiB + 7, i));
  start();
  start_walk();
  Threads(2, [&](uint32_t t) {
    for (uint32_t i = 0; i < kFiles; ++i)
      EXPECT_TRUE(eventually([&] {
        ask("f" + std::to_string(i), 2 - t);
        return state("f" + std::to_string(i)) == State::kPlaced;
      }));
  }).join();
  placement_->stop();
  EXPECT_EQ(bytes_read(), kFiles * (2 * kMiB + 7)) << "each byte once";
  EXPECT_EQ(counter(AgentCounter::staged_files), kFiles);
  EXPECT_EQ(tier().used(), kFiles * (2 * kMiB + 4096));
  EXPECT_EQ(files_on(), static_cast<int>(kFiles));
}

TEST_F(LargeFiles, AFileLargerThanTheTierIsKeptInPart) {
  tiers_[0].quota.bytes = 3 * kMiB + 4096;
  scratch_.file("pfs/large", noise(8 * kMiB, 1));
  start();
  demand("large");
  ask("large", 6);
  const auto chunks = [&] { return catalog_->reader().chunks(chunks_of(word("large"))); };
  ASSERT_TRUE(eventually([&] { return chunks() && chunks()->closed == 1; }));
  uint32_t there = 0;
  for (uint32_t n = 0; n < 8; ++n) there += catalog_->reader().has_chunk(chunks_of(word("large")), n);
  EXPECT_EQ(there, 3u);
  EXPECT_TRUE(catalog_->reader().has_chunk(chunks_of(word("large")), 6));
  EXPECT_EQ(state("large"), State::kLarge);
  EXPECT_EQ(bytes_read(), 3u * kMiB);
  EXPECT_EQ(tier().used(), 3u * kMiB);
  EXPECT_TRUE(eventually([&] { return tier().promised() == 0; }));
}

// What the task has read is in the page cache, from where staging reads it if the pages are not dropped.
TEST_F(LargeFiles, ALargeFileThatIsReadNativelyIsStagedFromThePageCache) {
  std::atomic<int> dropped{0};
  scratch_.file("pfs/large", noise(4 * kMiB, 1));
  scratch_.file("pfs/other", noise(4 * kMiB, 2));
  start();
  Intercept drops(Call::kDropPages, [&](Arguments&) {
    ++dropped;
    return 0;
  });
  demand("large");
  ask("large", kReadNatively);
  ASSERT_TRUE(placed_at_last("large"));
  EXPECT_EQ(bytes_read(), uint64_t{4 * kMiB});
  EXPECT_EQ(dropped, 0);
  demand("other");
  ask("other", 3);
  ASSERT_TRUE(placed_at_last("other"));
  EXPECT_GT(dropped, 0);
}

TEST_F(LargeFiles, ChunksOutsideTheFileAreIgnored) {
  scratch_.file("pfs/large", noise(2 * kMiB, 1));
  start();
  demand("large");
  ask("large", 77);
  ask("nowhere", 0);
  ASSERT_TRUE(placed_at_last("large")) << "the rest is staged all the same " << word("large");
  EXPECT_EQ(bytes_read(), 2u * kMiB);
}

}  // namespace
}  // namespace monarch
