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
  std::string line() const { return comment_line(record_, &counters_, 1); }
  JobRecord record_;
  JobCounters counters_{};
};

TEST_F(CommentLine, OfAJobThatDidNothing) {
  EXPECT_EQ(line(), "monarch=1 hit=0.0% pfs=0/0 ops=0% meta=0% nvme=0 ram=0 staged=0% nodes=1/2 err=0");
  EXPECT_EQ(comment_line(record_, nullptr, 1), "monarch=1 counters=lost nodes=1/2 err=1");
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
