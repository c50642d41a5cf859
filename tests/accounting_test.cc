// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/accounting.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "runtime/metadata/board.h"
#include "tests/scratch.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

TEST(Counters, AreSumsOfTheBoard) {
  const Scratch scratch;
  ASSERT_TRUE(BoardFile::create(scratch.path()).ok());
  Result<JobCounters> c = read_counters(scratch.path());
  ASSERT_TRUE(c.ok()) << c.error().text;
  EXPECT_TRUE(plausible(*c));
  EXPECT_EQ((*c)[TaskCounter::opens_pfs], 0u);
}

TEST(Counters, HaveWhatOtherNodesTold) {
  const Scratch scratch;
  const Result<BoardFile> board = BoardFile::create(scratch.path());
  ASSERT_TRUE(board.ok());
  (*board)->nodes = 3;
  OthersTotals others;
  others.ended = 2;
  others.counts.task[3] = 7;
  others.counts.placed_bytes[kMedia - 1] = 8;
  for (const uint64_t more : {0u, 1u, 2u}) {  // either place on the board
    others.counts.agent[4] = more;
    set_others(board->get(), others);
    const Result<JobCounters> c = read_counters(scratch.path());
    ASSERT_TRUE(c.ok()) << c.error().text;
    EXPECT_TRUE(plausible(*c));
    EXPECT_EQ(c->nodes, 3u);
    EXPECT_EQ(c->ended, 2u);
    EXPECT_EQ(c->others.task[3], 7u);
    EXPECT_EQ(c->others.agent[4], more);
    EXPECT_EQ(c->others.placed_bytes[kMedia - 1], 8u);
  }
  (*board)->others_at = UINT64_MAX;  // the owner can write anything
  EXPECT_TRUE(read_counters(scratch.path()).ok());
}

TEST(Counters, AreReadOfNothingButABoard) {
  const Scratch scratch;
  ASSERT_TRUE(BoardFile::create(scratch.path()).ok());
  const std::string path = scratch / "board", good = contents(path);
  scratch.file("board", good.substr(1));
  EXPECT_EQ(read_counters(scratch.path()).error().code, EINVAL) << "too short";
  scratch.file("board", good + "x");
  EXPECT_EQ(read_counters(scratch.path()).error().code, EINVAL) << "too long";
  scratch.file("board", std::string(good.size(), '\0'));
  EXPECT_EQ(read_counters(scratch.path()).error().code, EPROTO);
  scratch.file("board", good);
  const int error = in_child([&] {
    const bool trapped = before_call(SYS_pread64, [](CallArguments) { return EIO; });
    return trapped ? read_counters(scratch.path()).error().code : EIO;
  });
  EXPECT_EQ(error, EIO);
  fs::rename(path, scratch / "other");
  EXPECT_EQ(read_counters(scratch.path()).error().code, ENOENT);
  ASSERT_EQ(::symlink("other", path.c_str()), 0);
  EXPECT_EQ(read_counters(scratch.path()).error().code, ELOOP);
  fs::remove(path);
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_counters(scratch.path()).error().code, EINVAL) << "and nobody waits for who writes into it";
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_EQ(read_counters(scratch.path()).error().code, EINVAL);
}

TEST(Counters, ArePlausibleIfAJobCanHaveThem) {
  JobCounters c{};
  EXPECT_FALSE(plausible(c));
  c.magic = kJobCountersMagic;
  EXPECT_TRUE(plausible(c));
  c.placed_bytes[kMaxTiers - 1] = (uint64_t{1} << 60) - 1;
  EXPECT_TRUE(plausible(c));
  ++c.placed_bytes[kMaxTiers - 1];
  EXPECT_FALSE(plausible(c));
  c.placed_bytes[kMaxTiers - 1] = 0;
  for (uint64_t* n : {&c.nodes, &c.ended, &c.others.task[0], &c.others.placed_bytes[kMedia - 1]}) {
    *n = kMostCount;
    EXPECT_TRUE(plausible(c));
    ++*n;
    EXPECT_FALSE(plausible(c));
    *n = 0;
  }
}

class CommentLine : public ::testing::Test {
 protected:
  CommentLine() {
    record_.nodes = 2;
    for (const auto& [name, medium] : {std::pair{"a", "nvme"}, {"b", "ram"}, {"c", "nvme"}}) {
      record_.tiers.push_back({});
      record_.tiers.back().name = name;
      record_.tiers.back().medium = medium;
    }
    counters_.magic = kJobCountersMagic;
  }
  uint64_t& at(TaskCounter c) { return counters_.task[static_cast<uint32_t>(c)]; }
  uint64_t& at(AgentCounter c) { return counters_.agent[static_cast<uint32_t>(c)]; }
  std::string line() const { return comment_line(record_, &counters_); }
  JobRecord record_;
  JobCounters counters_{};
};

TEST_F(CommentLine, OfAJobThatDidNothing) {
  EXPECT_EQ(line(), "monarch=1 hit=0.0% pfs=0/0 ops=0% meta=0% nvme=0 ram=0 staged=0% nodes=1/2 err=0");
  EXPECT_EQ(comment_line(record_, nullptr), "monarch=1 counters=lost nodes=1/2 err=1");
}

TEST_F(CommentLine, SaysWhatThePfsWasSpared) {
  counters_.opens_tier[0] = 70;
  counters_.opens_tier[2] = 10;
  at(TaskCounter::opens_pfs) = 20;
  at(TaskCounter::waited_hits) = 5;
  counters_.read_calls_tier[0] = 80;
  at(TaskCounter::read_calls_pfs) = 20;
  counters_.read_bytes_tier[0] = 3 << 20;
  at(TaskCounter::read_bytes_pfs) = 1 << 20;
  at(AgentCounter::agent_bytes_pfs) = 1 << 20;
  at(AgentCounter::agent_opens_pfs) = 20;
  at(AgentCounter::walk_dirs) = 10;
  counters_.placed_bytes[0] = 1 << 20;
  counters_.placed_bytes[1] = 2 << 20;
  counters_.placed_bytes[2] = 3 << 20;
  at(AgentCounter::walk_files) = 4;
  at(AgentCounter::staged_files) = 3;
  at(AgentCounter::tier_errors) = 2;
  EXPECT_EQ(line(),
            "monarch=1 hit=75.0% pfs=2.00M/4.00M ops=-80% meta=-50% nvme=4.00M ram=2.00M staged=75% "
            "nodes=1/2 err=2");
}

TEST_F(CommentLine, OfSeveralNodesHasTheirSums) {
  record_.nodes = 3;
  counters_.nodes = 3;
  counters_.opens_tier[0] = 10;
  at(TaskCounter::opens_pfs) = 10;
  counters_.read_calls_tier[0] = 10;
  counters_.read_bytes_tier[0] = 1 << 20;
  at(AgentCounter::agent_bytes_pfs) = 1 << 20;
  counters_.placed_bytes[1] = 1 << 20;
  at(AgentCounter::walk_files) = at(AgentCounter::staged_files) = 2;
  EXPECT_EQ(line(),
            "monarch=1 hit=50.0% pfs=1.00M/1.00M ops=-100% meta=-50% nvme=0 ram=1.00M staged=100% peer=0 "
            "nodes=1/3 err=0");
  NodeCounts& others = counters_.others;
  const auto other = [&](auto c) -> uint64_t& {
    if constexpr (std::is_same_v<decltype(c), TaskCounter>)
      return others.task[static_cast<uint32_t>(c)];
    else
      return others.agent[static_cast<uint32_t>(c)];
  };
  counters_.ended = 1;
  others.opens_tier = 60;
  other(TaskCounter::waited_hits) = 20;
  others.read_calls_tier = 10;
  others.read_bytes_tier = 2 << 20;
  other(TaskCounter::read_bytes_pfs) = 1 << 20;
  other(TaskCounter::read_calls_pfs) = 5;
  other(AgentCounter::agent_reads_pfs) = 5;
  other(AgentCounter::walk_dirs) = 30;
  others.placed_bytes[static_cast<uint32_t>(Medium::kRam)] = 3 << 20;
  others.placed_bytes[static_cast<uint32_t>(Medium::kHdd)] = 1 << 20;
  other(AgentCounter::walk_files) = 6;
  other(AgentCounter::staged_files) = 2;
  other(AgentCounter::peer_bytes) = 5 << 20;
  other(AgentCounter::tier_errors) = 4;
  EXPECT_EQ(line(),
            "monarch=1 hit=62.5% pfs=2.00M/4.00M ops=-60% meta=-50% nvme=0 ram=4.00M hdd=1.00M staged=50% "
            "peer=5.00M nodes=2/3 err=4");
  counters_.ended = 2;
  other(AgentCounter::dup_files) = 1;
  at(AgentCounter::evicted_files) = 7;
  at(AgentCounter::peer_errors) = 2;
  other(AgentCounter::peer_timeouts) = 3;
  other(AgentCounter::peer_bad) = 4;
  EXPECT_EQ(line().substr(line().find("nodes=")), "nodes=3/3 err=4 evicted=7 dup=1 peererr=9");
  counters_.ended = kMostCount;
  EXPECT_NE(line().find(" nodes=3/3 "), std::string::npos) << "not more than there are: " << line();
}

TEST_F(CommentLine, IsShortWhateverAJobCounts) {
  for (int i = 0; i < 40; ++i) {
    record_.tiers.push_back({});
    record_.tiers.back().medium = "medium" + std::to_string(i);
  }
  at(TaskCounter::read_calls_pfs) = 1;
  at(AgentCounter::agent_reads_pfs) = uint64_t{1} << 59;
  const std::string text = line();
  EXPECT_LE(text.size(), 255u);
  EXPECT_NE(text.find("ops=+99999%"), std::string::npos) << text;
}

}  // namespace
}  // namespace monarch
