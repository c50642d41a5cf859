// SPDX-License-Identifier: Apache-2.0
// In which order prefetch copies files of several pieces, and what becomes of those that wait for their turn.
#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>

#include "runtime/placement/credit.h"
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
  EXPECT_GT(most, 0u);
  EXPECT_LE(most, kTurns * kBytes) << "in files that were not whole yet";
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), kFiles) << "each file once";
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), kFiles * kBytes) << "each byte once";
  EXPECT_EQ(counter(AgentCounter::prefetch_files), kFiles);
}

TEST_F(Prefetch, WhatIsAskedForDoesNotStandInLine) {
  start_and_fill_the_line();
  EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
  for (uint32_t i = kFiles; i-- > 0;) EXPECT_EQ(state_of(demand(name(i))), State::kPlaced) << name(i);
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), kFiles) << "each file once";
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), kFiles * kBytes) << "each byte once";
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

TEST_F(Prefetch, TheLineIsWorkedOffAlthoughTheTiersGetFull) {
  tiers_.clear();
  add_tier("ssd", kBytes);
  start();
  walk();
  // Prefetch itself ends after some that do not fit.
  ASSERT_TRUE(eventually(
      [&] { return board_->get()->header.full == 1 && counter(AgentCounter::staged_files) == 1; }));
  for (uint32_t i = 0; i < kFiles; ++i)
    EXPECT_TRUE(eventually([&] { return state(name(i)) != State::kStaging; })) << name(i);
  EXPECT_EQ(counter(AgentCounter::no_fit_files) + 1, counter(AgentCounter::agent_opens_pfs));
}

TEST_F(Prefetch, WhatIsAskedForWhileItIsOpenedDoesNotStandInLine) {
  config_.pfs_bandwidth = kTrickle;
  start();
  const Intercept opens(Call::kOpenBeneath, [&](Arguments& a) {
    if (name(5) == a.path && state(name(5)) == State::kStaging) placement_->demand(rel(name(5)));
    return 0;
  });
  for (uint32_t i = 0; i < kFiles; ++i) catalog_->add(rel(name(i)), DT_REG);
  placement_->catalog_grew();
  EXPECT_TRUE(placed_at_last(name(5)));
}

// A thread that looks for more holds the queue's lock. Who asks for the file waits for it first, then who
// puts the file back.
TEST_F(Prefetch, WhatIsAskedForWhileItIsPutBackIsCopied) {
  class Gates : public PfsSource {
   public:
    using PfsSource::PfsSource;
    std::unique_ptr<SourceFile> open(Ref ref, const std::string& path, Need need,
                                     const Copier& copier) override {
      if (path == name(0) && !opening.exchange(true)) {
        EXPECT_TRUE(monarch::eventually([&] { return may_open.load(); }));
      }
      return PfsSource::open(ref, path, need, copier);
    }
    bool is_ours(Ref ref) override {
      if (ref == other && !holds.exchange(true)) {
        EXPECT_TRUE(monarch::eventually([&] { return may_go_on.load(); }));
      }
      return true;
    }
    std::atomic<Ref> other = 0;
    std::atomic<bool> opening = false, may_open = false, holds = false, may_go_on = false;
  };
  config_.prefetch = AgentConfig::Prefetch::kAuto;
  config_.prefetch_burst = 3 * PrefetchCredit::kOpenBytes;
  prepare();
  Gates* const gates = make_placement<Gates>();
  ASSERT_TRUE(placement_->start().ok());
  catalog_->add(rel(name(0)), DT_REG);
  placement_->catalog_grew();
  EXPECT_TRUE(eventually([&] { return gates->opening.load(); }));
  gates->other = catalog_->add(rel(name(1)), DT_REG);
  std::thread grows([&] { placement_->catalog_grew(); });
  EXPECT_TRUE(eventually([&] { return gates->holds.load(); }));
  std::thread asks([&] { placement_->demand(rel(name(0))); });
  EXPECT_TRUE(quiet());
  gates->may_open = true;
  EXPECT_TRUE(quiet());
  gates->may_go_on = true;
  asks.join();
  grows.join();
  EXPECT_TRUE(placed_at_last(name(0)));
}

TEST_F(Prefetch, RestsAfterAShortage) {
  start();
  scratch_.file("pfs/short", "x");
  const int64_t begin = clock_.now_ns();
  {
    const Intercept opens(Call::kOpenBeneath, EMFILE);
    EXPECT_EQ(demand("short"), state_word(State::kNoFit, Reason::kTierError));
  }
  std::atomic<int64_t> first{0};
  const Intercept opens(Call::kOpenBeneath, [&](Arguments&) {
    if (first == 0) first = clock_.now_ns();
    return 0;
  });
  catalog_->add(rel(name(0)), DT_REG);
  placement_->catalog_grew();
  EXPECT_TRUE(placed_at_last(name(0))) << "by itself";
  EXPECT_EQ(first - begin, 1'000'000'000);
}

TEST_F(Prefetch, StopDoesNotWaitForTheLine) {
  start_and_fill_the_line();
  halt();
  EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
  EXPECT_EQ(files_on(), 0);
}

}  // namespace
}  // namespace monarch
