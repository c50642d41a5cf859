// SPDX-License-Identifier: Apache-2.0
// What agents have counted comes together on the first node, each once.
#include "runtime/peer/report.h"

#include <fcntl.h>

#include "runtime/base/fd.h"
#include "tests/manual_clock.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

class ReportTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(board_.ok()) << board_.error().text; }
  Board* board() { return board_->get(); }
  Report report(NodeIndex own, uint32_t nodes = 3) {
    return Report({board(), {Medium::kNvme, Medium::kRam, Medium::kNvme}, own, nodes, 100}, clock_);
  }
  static Count count(uint64_t incarnation, uint64_t turn, uint64_t opens, uint8_t last = 0) {
    Count c = {incarnation, turn, last, {}};
    c.counts.task[static_cast<uint32_t>(TaskCounter::opens_pfs)] = opens;
    return c;
  }
  uint64_t opens() { return others_of(*board()).counts[TaskCounter::opens_pfs]; }
  uint64_t ended() { return others_of(*board()).ended; }

  ManualClock clock_;
  const Scratch scratch_;
  Result<BoardFile> board_ = BoardFile::create(scratch_.path());
};

TEST_F(ReportTest, TheNewestOfEachNodeIsSummed) {
  Report first = report(0);
  first.take(1, count(11, 1, 5));
  first.take(2, count(22, 1, 7));
  EXPECT_EQ(opens(), 12u);
  first.take(1, count(11, 3, 6));
  EXPECT_EQ(opens(), 13u);
  first.take(1, count(11, 2, 1000));
  first.take(1, count(11, 3, 1000));
  EXPECT_EQ(opens(), 13u) << "what came late";
  first.take(1, count(11, 4, 2));
  EXPECT_EQ(opens(), 9u) << "bytes on a tier may be fewer than before";
  EXPECT_EQ(ended(), 0u);
}

TEST_F(ReportTest, EveryCounterIsSummed) {
  Report first = report(0);
  Count c = count(11, 1, 0);
  auto* words = reinterpret_cast<uint64_t*>(&c.counts);
  for (uint32_t i = 0; i < kNodeWords; ++i) words[i] = i + 1;
  first.take(1, c);
  first.take(2, c);
  const NodeCounts sums = others_of(*board()).counts;
  for (uint32_t i = 0; i < kNodeWords; ++i)
    EXPECT_EQ(reinterpret_cast<const uint64_t*>(&sums)[i], 2 * (i + 1));
}

TEST_F(ReportTest, TellsOfEachNode) {
  EXPECT_TRUE(report(1).told().empty()) << "not the first node";
  Report first = report(0);
  board()->agent[static_cast<uint32_t>(AgentCounter::staged_files)] = 4;
  board()->placed_bytes[2] = 50;
  Count c = count(22, 1, 7, 1);
  c.counts.placed_bytes[static_cast<uint32_t>(Medium::kRam)] = 30;
  c.counts.agent[static_cast<uint32_t>(AgentCounter::staged_files)] = 9;
  c.counts.agent[static_cast<uint32_t>(AgentCounter::evicted_files)] = 2;
  first.take(2, c);
  const std::vector<NodeTold> told = first.told();
  ASSERT_EQ(told.size(), 3u);
  EXPECT_EQ(told[0].files, 4u);
  EXPECT_EQ(told[0].placed_bytes[static_cast<uint32_t>(Medium::kNvme)], 50u);
  EXPECT_EQ(told[1], NodeTold()) << "it has told nothing";
  EXPECT_EQ(told[2].opens_pfs, 7u);
  EXPECT_EQ(told[2].files, 7u);
  EXPECT_EQ(told[2].placed_bytes[static_cast<uint32_t>(Medium::kRam)], 30u);
  EXPECT_EQ(told[2].ended, 1u);
  EXPECT_EQ(told[2].told_ms, static_cast<uint64_t>(clock_.now_ms()));
}

TEST_F(ReportTest, WhatIsWrittenOfNodesIsReadAndDoubted) {
  const Fd dir(::open(scratch_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_EQ(read_nodes_told(scratch_.path()).error().code, ENOENT);
  NodesTold nodes;
  nodes.magic = kNodesToldMagic;
  nodes.nodes = 2000;
  for (const uint32_t count : {1u, 100u, kMostNodesTold}) {
    nodes.count = count;
    nodes.told[count - 1].files = count;
    ASSERT_TRUE(write_nodes_told(dir.get(), nodes).ok());
    const auto read = read_nodes_told(scratch_.path());
    ASSERT_TRUE(read.ok()) << read.error().text;
    EXPECT_EQ((*read)->count, count);
    EXPECT_EQ((*read)->told[count - 1], nodes.told[count - 1]);
  }
  const std::function<void(NodesTold*)> spoils[] = {
      [](NodesTold* n) { n->magic = 1; },
      [](NodesTold* n) { n->count = kMostNodesTold + 1; },
      [](NodesTold* n) { n->nodes = kMostNodesTold - 1; },
      [](NodesTold* n) { n->nodes = ~uint64_t{0}; },
      [](NodesTold* n) { n->told[5].ended = 2; },
      [](NodesTold* n) { n->told[kMostNodesTold - 1].served_bytes = kMostCount + 1; },
      [](NodesTold* n) { std::memset(n->told[7].name, 'x', sizeof n->told[7].name); }};
  for (const auto& spoil : spoils) {
    NodesTold spoilt = nodes;
    spoil(&spoilt);
    EXPECT_FALSE(plausible(spoilt)) << &spoil - spoils;
  }
  const std::string good = contents(scratch_ / kNodesFile);
  for (const std::string& text : {good.substr(0, good.size() - 1), "X" + good.substr(1)}) {
    scratch_.file(kNodesFile, text);
    EXPECT_EQ(read_nodes_told(scratch_.path()).error().code, EINVAL);
  }
}

TEST_F(ReportTest, ARestartedAgentAddsToTheOneBefore) {
  Report first = report(0);
  first.take(1, count(11, 9, 5, 1));
  EXPECT_EQ(ended(), 1u);
  first.take(1, count(12, 1, 3));
  EXPECT_EQ(opens(), 8u);
  EXPECT_EQ(ended(), 0u) << "there is one again";
  first.take(1, count(11, 9, 5, 1));
  EXPECT_EQ(opens(), 8u) << "what comes late of the one before counts once";
  first.take(1, count(12, 2, 4, 1));
  EXPECT_EQ(opens(), 9u);
  EXPECT_EQ(ended(), 1u);
  first.take(1, count(12, 3, 5));
  EXPECT_EQ(opens(), 10u);
  EXPECT_EQ(ended(), 1u) << "what is told after the end leaves it the end";
}

TEST_F(ReportTest, ANodeWhoseAgentWasKilledHasNotTold) {
  Report first = report(0);
  first.met(1, 11);
  first.gone(1);
  first.take(1, count(12, 1, 3, 1));
  EXPECT_EQ(opens(), 3u);
  EXPECT_EQ(ended(), 0u) << "nobody knows what the one before it has counted";
  first.take(2, count(22, 1, 1, 1));
  EXPECT_EQ(ended(), 1u);
}

TEST_F(ReportTest, WhatHasChangedIsToldNowAndThen) {
  Report second = report(1), first = report(0);
  int64_t now = clock_.now_ns();
  EXPECT_FALSE(second.is_due(now));
  now += Report::kEveryNs;
  EXPECT_TRUE(second.is_due(now));
  EXPECT_FALSE(second.news(now)) << "nothing was counted";
  EXPECT_FALSE(second.is_due(now + Report::kEveryNs - 1));
  add(board(), AgentCounter::walk_dirs, 3);
  for (const uint64_t tier : {0, 1, 2}) board()->placed_bytes[tier] = 10 * (tier + 1);
  board()->shards[1].opens_tier[2] = 4;
  board()->shards[2].opens_tier[0] = 5;
  now += Report::kEveryNs;
  EXPECT_FALSE(first.news(now)) << "whom should it tell";
  const std::optional<Count> told = second.news(now);
  ASSERT_TRUE(told);
  EXPECT_EQ(told->incarnation, 100u);
  EXPECT_EQ(told->counts[AgentCounter::walk_dirs], 3u);
  EXPECT_EQ(told->counts.opens_tier, 9u);
  EXPECT_EQ(told->counts.placed_bytes[static_cast<uint32_t>(Medium::kNvme)], 40u);
  EXPECT_EQ(told->counts.placed_bytes[static_cast<uint32_t>(Medium::kRam)], 20u);
  EXPECT_FALSE(second.news(now)) << "it was told";
  second.met(2, 22);
  EXPECT_FALSE(second.news(now));
  second.met(0, 33);
  EXPECT_TRUE(second.news(now)) << "it may not have heard of it";
  const Count last = second.last();
  EXPECT_EQ(last.turn, told->turn + 2);
  EXPECT_EQ(last.last, 1);
  EXPECT_EQ(last.counts[AgentCounter::walk_dirs], 3u);
}

// Less where it is not there.
TEST_F(ReportTest, TheLastWordIsWaitedForNoLongerThanItTakes) {
  Report first = report(0);
  first.take(2, count(22, 1, 1, 1));
  const auto left_ms = [&] { return (clock_.next_ns() - clock_.now_ns()) / 1'000'000; };
  // It waits for so long, unless `tells` ends that.
  const auto expect_waited = [&](int ms, const std::function<void()>& tells = {}) {
    std::thread waits([&] { first.wait(200, 50); });
    EXPECT_TRUE(clock_.await_waiting(1));
    EXPECT_EQ(left_ms(), ms);
    tells ? tells() : clock_.advance_ms(ms);
    waits.join();
  };
  expect_waited(50);
  first.met(1, 11);
  expect_waited(200);
  expect_waited(200, [&] { first.take(1, count(11, 1, 1, 1)); });
  EXPECT_EQ(ended(), 2u);
  first.met(1, 12);
  expect_waited(200, [&] {
    first.gone(1);
    EXPECT_TRUE(eventually([&] { return left_ms() == 50; }));
    clock_.advance_ms(50);
  });
}

}  // namespace
}  // namespace monarch
