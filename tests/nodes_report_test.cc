// SPDX-License-Identifier: Apache-2.0
// What reports tell of each node of a job, as JSON and back.
#include "runtime/node/nodes_report.h"

#include <signal.h>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/run_file.h"
#include "tests/faulty_os.h"
#include "tests/private_mounts.h"

namespace monarch {
namespace {

NodesTold three_nodes() {
  NodesTold nodes;
  nodes.magic = kNodesToldMagic;
  nodes.nodes = nodes.count = 3;
  const auto now = static_cast<uint64_t>(os::clock_ns(CLOCK_MONOTONIC) / 1000000);
  for (uint64_t i = 0; i < 3; ++i)
    std::snprintf(nodes.told[i].name, sizeof nodes.told[i].name, "n%d", static_cast<int>(i));
  NodeTold& told = nodes.told[1];
  told.told_ms = now;
  told.ended = 1;
  told.files = 1;
  told.placed_bytes[1] = 2;
  told.opens_tier = 3;
  told.opens_pfs = 1;
  told.pfs_bytes = 5;
  told.peer_bytes = 6;
  told.served_bytes = kMostCount;
  return nodes;
}

TEST(NodesReport, TellsWhatWasToldAndSinceWhen) {
  const NodesTold nodes = three_nodes();
  const LaterBy later(7);
  const std::vector<NodeLine> lines = node_lines(nodes, {});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].seconds_ago, 0u) << "the first node itself";
  EXPECT_EQ(lines[1].seconds_ago, 7u);
  EXPECT_EQ(lines[2].seconds_ago, std::nullopt) << "it has told nothing";
  const Json json = by_node(lines);
  EXPECT_EQ(json.at(1)["opens"], 4u);
  EXPECT_EQ(json.at(1)["hit"], 0.75);
  EXPECT_EQ(json.at(2).size(), 2u) << json.dump();
}

TEST(NodesReport, IsReadAsItWasWritten) {
  std::vector<NodeLine> lines = node_lines(three_nodes(), {});
  const Result<std::vector<NodeLine>> read = node_lines_of(*Json::parse(by_node(lines).dump()));
  ASSERT_TRUE(read.ok()) << read.error().text;
  ASSERT_EQ(read->size(), 3u);
  lines[1].told.told_ms = 0;  // the clock is this node's
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*read)[i].told, lines[i].told);
    EXPECT_EQ((*read)[i].seconds_ago, lines[i].seconds_ago);
  }
  const Json one = Json::array({{{"node", std::string(1000, 'x')}, {"told_seconds_ago", Json()}}});
  EXPECT_EQ(std::strlen((*node_lines_of(one))[0].told.name), sizeof NodeTold::name - 1)
      << "a long name is cut";
}

TEST(NodesReport, TheFirstNodeTellsWhatItCountsNow) {
  NodesTold nodes = three_nodes();
  nodes.told[0].placed_bytes[1] = 9;
  NodeCounts own;
  own.opens_tier = 20;
  own.agent[static_cast<uint32_t>(AgentCounter::staged_files)] = 8;
  const NodeTold first = node_lines(nodes, own)[0].told;
  EXPECT_STREQ(first.name, "n0");
  EXPECT_EQ(first.opens_tier, 20u);
  EXPECT_EQ(first.files, 8u);
  EXPECT_EQ(first.placed_bytes[1], 9u) << "by what medium is not told";
  own.placed_bytes[0] = 5;
  const std::vector<NodeLine> lines = node_lines(nodes, own);
  EXPECT_EQ(lines[0].told.placed_bytes[0], 5u);
  EXPECT_EQ(lines[0].told.placed_bytes[1], 0u);
  EXPECT_EQ(lines[1].told.opens_tier, 3u);
  EXPECT_TRUE(node_lines(NodesTold(), own).empty());
}

// What is dropped while it is copied was never staged.
TEST(PlacedFiles, AreThoseThatWereStagedAndAreThere) {
  NodeCounts counts;
  const auto count = [&](AgentCounter c, uint64_t n) { counts.agent[static_cast<uint32_t>(c)] = n; };
  count(AgentCounter::staged_files, 6);
  count(AgentCounter::dropped_files, 1);
  EXPECT_EQ(placed_files(counts), 6u);
  count(AgentCounter::evicted_files, 2);
  count(AgentCounter::staged_again, 1);
  EXPECT_EQ(placed_files(counts), 3u);
  count(AgentCounter::evicted_files, 7);
  EXPECT_EQ(placed_files(counts), 0u);
}

TEST(RunFile, WhatIsSealedIsReadWholeOrNotAtAll) {
  const Scratch scratch;
  const Fd dir(::open(scratch.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  char text[8] = {};
  for (const std::string written : {"abcd", "ab", ""}) {
    ASSERT_TRUE(write_sealed(dir.get(), "sealed", written.data(), written.size()).ok());
    const Result<size_t> size = read_sealed(scratch / "sealed", text, sizeof text);
    ASSERT_TRUE(size.ok()) << size.error().text;
    EXPECT_EQ(std::string(text, *size), written);
  }
  ASSERT_TRUE(write_sealed(dir.get(), "sealed", "abcdefghi", 9).ok());
  EXPECT_EQ(read_sealed(scratch / "sealed", text, sizeof text).error().code, EINVAL) << "there is no room";
  std::string half = contents(scratch / "sealed");
  half.back() = 'x';
  scratch.file("sealed", half);
  char more[16] = {};
  EXPECT_EQ(read_sealed(scratch / "sealed", more, sizeof more).error().code, EINVAL) << "some of another one";
  ASSERT_EQ(::mkfifo((scratch / "fifo").c_str(), 0600), 0);
  EXPECT_FALSE(write_sealed(dir.get(), "fifo", "x", 1).ok()) << "and nothing is waited for";
}

// The kernel would have its owner, who need not answer, give the lease back first: 45 s.
TEST(RunFile, WhatItsOwnerHasALeaseOnIsNotWaitedFor) {
  const Scratch scratch;
  const Fd held(::open(scratch.file("x", "abc").c_str(), O_RDWR | O_CLOEXEC));
  if (::fcntl(held.get(), F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "no leases: " << std::strerror(errno);
  ::signal(SIGIO, SIG_IGN);
  char text[8] = {};
  EXPECT_EQ(read_run_file(scratch / "x", text, sizeof text).error().code, EWOULDBLOCK);
  ::fcntl(held.get(), F_SETLEASE, F_UNLCK);
  ::signal(SIGIO, SIG_DFL);
  EXPECT_TRUE(read_run_file(scratch / "x", text, sizeof text).ok());
}

TEST(RunFile, WhatAUserHasMountedIsNotAsked) {
  if (::geteuid() != 0 || ::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "needs root and /dev/fuse";
  const Scratch scratch;
  scratch.dir("run");
  in_private_mounts(scratch, [&](PrivateMounts* m) {
    char text[8] = {};
    const auto read = [&](const char* name) {
      const Result<size_t> size = read_run_file(scratch / "run" + "/" + name, text, sizeof text);
      return size.ok() ? 0 : size.error().code;
    };
    m->tmpfs("run", "monarch");
    scratch.file("run/x", "x");
    scratch.file("run/y", "y");
    m->check(read("x") == 0 && text[0] == 'x', "what root has mounted is read");
    m->fuse("run/x", 65533, ",allow_other,rootmode=100000");
    m->check(read("x") == EXDEV, "a file that something is mounted on");
    m->check(read("y") == 0 && text[0] == 'y', "one beside it");
    m->fuse("run", 65533, ",allow_other");
    m->check(read("y") == EXDEV, "the directory");
    m->check(open_run_dir(scratch / "run").error().code == EXDEV, "the directory itself");
  });
  EXPECT_TRUE(open_run_dir(scratch / "run").ok());
  std::filesystem::create_symlink("run", scratch / "link");
  EXPECT_EQ(open_run_dir(scratch / "link").error().code, ENOTDIR) << "it has another name";
}

}  // namespace
}  // namespace monarch
