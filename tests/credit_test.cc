// SPDX-License-Identifier: Apache-2.0
// What prefetch reads that nobody has asked for has a bound, and grows with what the job reads.
#include "runtime/placement/credit.h"

#include "tests/placement_fixture.h"

namespace monarch {
namespace {

constexpr uint64_t kFile = 100000, kCost = kFile + PrefetchCredit::kOpenBytes;

class CreditTest : public PlacementTest {
 protected:
  CreditTest() {
    config_.prefetch = AgentConfig::Prefetch::kAuto;
    config_.threads = 3;  // one that prefetches
  }

  static void write_file(const std::string& path, const std::string& content) {
    std::ofstream(path) << content;
  }
  void make_files(int count, uint64_t burst) {
    for (int i = 0; i < count; ++i) write_file(pfs_ + "/f" + std::to_string(i), noise(kFile, 1));
    config_.prefetch_burst = burst;
  }
  // What tasks count.
  void job_reads(TaskCounter bytes, uint64_t n) {
    board_->get()->shards[0].task[static_cast<uint32_t>(bytes)] += n;
  }
  void job_reads_on_pfs(uint64_t files) {
    job_reads(TaskCounter::read_bytes_pfs, files * kFile);
    job_reads(TaskCounter::opens_pfs, files);
  }
  void job_reads_on_tier(uint64_t files) {
    board_->get()->shards[1].read_bytes_tier[0] += files * kFile;
    board_->get()->shards[1].opens_tier[0] += files;
  }
  // That so many files are staged in the end, and no more.
  void expect_staged(uint64_t files) {
    EXPECT_TRUE(eventually([&] { return counter(AgentCounter::staged_files) >= files; }));
    pass(2000);
    EXPECT_EQ(counter(AgentCounter::staged_files), files);
  }
  // The burst of ten files is staged.
  void start_with_burst() {
    start();
    walk();
    expect_staged(10);
  }
};

TEST_F(CreditTest, TheBurstIsPrefetchedWhileTheJobReadsNothing) {
  make_files(40, 10 * kCost);
  start_with_burst();
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), 10u) << "nothing is opened in vain";
}

TEST_F(CreditTest, WhatIsExcludedIsNotPaidFor) {
  make_files(20, 10 * kCost);
  for (int i = 0; i < 40; ++i) write_file(pfs_ + "/not" + std::to_string(i), noise(kFile, 1));
  config_.exclude = "not*";
  start_with_burst();
}

TEST_F(CreditTest, WhatTheJobHasReadIsPrefetchedOnTop) {
  make_files(40, 10 * kCost);
  start_with_burst();
  job_reads_on_pfs(5);
  expect_staged(15);
  job_reads(TaskCounter::mmap_bytes, 2 * kCost);
  expect_staged(17);
}

TEST_F(CreditTest, WhatTheJobHasReadOfPrefetchedFilesComesBack) {
  make_files(40, 10 * kCost);
  start_with_burst();
  job_reads_on_tier(3);
  expect_staged(16);
}

// A device that takes its time: what is on its way to it was paid for, and hides nothing of what was asked
// for.
TEST_F(CreditTest, WhatAnOpenWaitedForWasNotPrefetchedWhileOthersAreOnTheirWay) {
  make_files(40, 10 * kCost);
  const Intercept slow(Call::kFinishSync, [this](Arguments&) { clock_.sleep_ns(60'000'000); });
  start_with_burst();
  uint64_t n = 0;
  for (int i = 0; n < 4; ++i) {
    const std::string name = "f" + std::to_string(i);
    if (state(name) != State::kKnown) continue;
    EXPECT_EQ(state_of(demand(name)), State::kPlaced);
    ++n;
  }
  expect_staged(10 + n);
  job_reads_on_tier(n);
  expect_staged(10 + 2 * n);
}

TEST_F(CreditTest, ALargeFileThatIsOnlyOpenedIsPaidFor) {
  config_.stage_wait_max = kFile - 1;
  make_files(3, 0);
  start();
  for (const char* name : {"f0", "f1", "f2"}) EXPECT_EQ(demand(name), large_word(0));
  job_reads_on_pfs(1);
  expect_staged(1);
  job_reads_on_pfs(1);
  expect_staged(2);
}

// What is read of a prefetched file counts twice, of one that was asked for once.
TEST_F(CreditTest, WhatTheJobWillUseIsAskedFor) {
  make_files(40, 0);
  start();
  walk();
  OrderPiece piece;
  for (const char* name : {"f30", "f20", "f10"}) piece.refs.push_back(catalog_->reader().find(rel(name)).ref);
  EXPECT_TRUE(placement_->hint(piece));
  expect_staged(3);
  for (const char* name : {"f10", "f20", "f30"}) EXPECT_EQ(state(name), State::kPlaced) << name;
  EXPECT_EQ(counter(AgentCounter::hinted_files), 3u);
  job_reads_on_tier(3);
  expect_staged(6);
}

TEST_F(CreditTest, TheBurstIsAPartOfTheDatasetWithinBounds) {
  prepare();
  source_ = std::make_unique<PfsSource>(catalog_.get(), &*dataset_, board_->get(), nullptr);
  const auto affords = [&](uint64_t files, uint32_t nodes, uint64_t bytes) {
    board_->get()->agent[static_cast<uint32_t>(AgentCounter::walk_files)] = files;
    config_.nodes = nodes;
    PlacementContext context{&*catalog_, &*hierarchy_,  &*dataset_, board_->get(),
                             config_,    source_.get(), nullptr,    clock_};
    TierHealth health(&context, nullptr);
    health.note_size(kMiB);
    return PrefetchCredit(&context, &health).affords(bytes);
  };
  for (const auto& [files, nodes, burst, about] :
       {std::tuple(0, 1, 64, 1), {20000, 1, 1060, 10}, {10000000, 1, 10240, 1}, {10000000, 4, 2560, 1}}) {
    EXPECT_TRUE(affords(files, nodes, (burst - about) * kMiB)) << files;
    EXPECT_FALSE(affords(files, nodes, (burst + about) * kMiB)) << files;
  }
}

}  // namespace
}  // namespace monarch
