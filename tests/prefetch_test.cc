// SPDX-License-Identifier: Apache-2.0
// In which order prefetch copies files of several pieces, and what becomes of those that wait for their turn.

#include "runtime/placement/credit.h"
#include "tests/gate.h"
#include "tests/placement_fixture.h"

namespace monarch {
namespace {

constexpr size_t kBytes = Copier::kSeveralPieces;
constexpr uint32_t kFiles = 20;
constexpr uint64_t kTurns = 2;
constexpr int kThreads = 8, kForDemand = 2;

class Prefetch : public PlacementTest {
 protected:
  Prefetch() {
    config_.threads = kThreads;
    config_.prefetch = AgentConfig::Prefetch::kOn;
    for (uint32_t i = 0; i < kFiles; ++i) scratch_.file("pfs/" + name(i), noise(kBytes, i));
  }
  static std::string name(uint32_t number) { return "f" + std::to_string(number); }
  static constexpr uint64_t kTrickle = 1024;  // bytes per second: no file becomes whole

  // Until as many files are opened as prefetch will: those that have their turn, and those in line.
  void start_and_fill_the_line() {
    config_.pfs_bandwidth = kTrickle;
    start();
    walk();
    ASSERT_TRUE(eventually([&] { return counter(AgentCounter::agent_opens_pfs) > kTurns; }));
  }
};

TEST_F(Prefetch, CopiesFewFilesOfSeveralPiecesAtATime) {
  const Scratch memory("/dev/shm");  // where a file that was copied counts at once: there is no write-back
  tiers_.clear();
  tiers_.push_back(tier_config(memory, "ram", 1 << 30));
  config_.pfs_bandwidth = 128 << 20;
  start();
  start_walk();
  uint64_t most = 0;
  ASSERT_TRUE(eventually([&] {
    const uint64_t read = counter(AgentCounter::agent_bytes_pfs);  // before the other: the difference never
    const uint64_t whole = counter(AgentCounter::staged_bytes);    // shows more than there is
    most = std::max(most, read > whole ? read - whole : 0);
    return whole == kFiles * kBytes;
  }));
  EXPECT_LE(most, kTurns * kBytes) << "in files that were not whole yet";
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), kFiles) << "each file once";
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), kFiles * kBytes) << "each byte once";
  EXPECT_EQ(counter(AgentCounter::prefetch_files), kFiles);
}

TEST_F(Prefetch, WhatTheJobWritesWhileItStandsInLineIsNotCopied) {
  start_and_fill_the_line();
  for (uint32_t i = 0; i < kFiles; ++i) set_invalid(board_->get(), rel(name(i)).hash);
  const uint64_t read = counter(AgentCounter::agent_bytes_pfs);
  for (uint32_t i = 0; i < kFiles; ++i) demand(name(i));
  constexpr int kInHand = kThreads - kForDemand;
  EXPECT_LE(files_on(), kInHand) << "no more than a thread had in hand";
  EXPECT_LE(counter(AgentCounter::agent_bytes_pfs) - read, kInHand * kBytes);
}

// A thread that looks for more holds the queue's lock. Who asks for the file waits for it first, then who
// puts the file back.
TEST_F(Prefetch, WhatIsAskedForWhileItIsPutBackIsCopied) {
  struct Gates : PfsSource {
    using PfsSource::PfsSource;
    std::unique_ptr<SourceFile> open(Ref ref, const std::string& path, Need need,
                                     const Copier& copier) override {
      if (path == name(0)) opens.pass();
      return PfsSource::open(ref, path, need, copier);
    }
    bool is_ours(Ref ref) override {
      if (ref == other) looks.pass();
      return true;
    }
    std::atomic<Ref> other = 0;
    Gate opens, looks;
  };
  config_.prefetch = AgentConfig::Prefetch::kAuto;
  config_.prefetch_burst = 3 * PrefetchCredit::kOpenBytes;
  prepare();
  Gates* const gates = make_placement<Gates>();
  gates->opens.shut();
  gates->looks.shut();
  ASSERT_TRUE(placement_->start().ok());
  catalog_->add(rel(name(0)), DT_REG);
  placement_->catalog_grew();
  EXPECT_TRUE(gates->opens.await_waiting(1));
  gates->other = catalog_->add(rel(name(1)), DT_REG);
  std::thread grows([&] { placement_->catalog_grew(); });
  EXPECT_TRUE(gates->looks.await_waiting(1));
  std::thread asks([&] { placement_->demand(rel(name(0))); });
  EXPECT_TRUE(quiet());
  gates->opens.open();
  EXPECT_TRUE(quiet());
  gates->looks.open();
  asks.join();
  grows.join();
  EXPECT_TRUE(placed_at_last(name(0)));
}

TEST_F(Prefetch, StopDoesNotWaitForTheLine) {
  start_and_fill_the_line();
  halt();
  EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
  EXPECT_EQ(files_on(), 0);
}

}  // namespace
}  // namespace monarch
