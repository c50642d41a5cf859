// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/membership.h"

#include <fcntl.h>

#include <set>
#include <sstream>
#include <tuple>

#include "tests/scratch.h"

namespace monarch {
namespace {

using Ports = std::vector<uint16_t>;
const Ports kPorts = {64003, 64004};

std::string error_of(const std::string& text) {
  const Result<std::vector<NodeAddress>> nodes = parse_nodes(text, kPorts);
  return nodes.ok() ? "" : nodes.error().text;
}

// A descriptor from which that can be read.
int pipe_with(const std::string& text) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  return ends[0];
}

JobKey key_of(char c) {
  JobKey key;
  key.fill(static_cast<unsigned char>(c));
  return key;
}

TEST(PeerPorts, BeginWhereTheJobSaysAndAreOfTheRange) {
  constexpr uint16_t kFirst = 64000;
  for (const auto& [last, count] : {std::pair(64999, 16u), {64002, 3u}, {64000, 1u}}) {
    std::set<uint16_t> begins;
    for (int i = 0; i < 100; ++i) {
      const std::string identity = "c." + std::to_string(i) + ".0";
      const Ports ports = ports_of(identity, kFirst, static_cast<uint16_t>(last));
      EXPECT_EQ(ports, ports_of(identity, kFirst, static_cast<uint16_t>(last)));
      ASSERT_EQ(ports.size(), count);
      for (uint32_t at = 0; at + 1 < count; ++at)
        EXPECT_EQ(ports[at + 1], ports[at] == last ? kFirst : ports[at] + 1) << identity;
      begins.insert(ports[0]);
    }
    EXPECT_GE(begins.size(), std::min(count, 3u) * (count == 16 ? 20 : 1)) << "each elsewhere";
  }
}

TEST(PeerNodes, AreOnePerLine) {
  const auto nodes = parse_nodes("n1 10.0.0.1\nn2 fd00::2\nn3 -\n10.0.0.4:7000\n[fd00::5]:7001", kPorts);
  ASSERT_TRUE(nodes.ok()) << nodes.error().text;
  ASSERT_EQ(nodes->size(), 5u);
  const std::tuple<const char*, const char*, Ports> want[] = {{"n1", "10.0.0.1", kPorts},
                                                              {"n2", "fd00::2", kPorts},
                                                              {"n3", "-", kPorts},
                                                              {"10.0.0.4:7000", "10.0.0.4", {7000}},
                                                              {"[fd00::5]:7001", "fd00::5", {7001}}};
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(std::tuple((*nodes)[i].name, (*nodes)[i].host, (*nodes)[i].ports), want[i]) << i;
}

TEST(PeerNodes, WhatIsNoneIsToldWithItsLine) {
  std::istringstream lines(
      "| |n2|n2 | 10.0.0.2|n2 n2|n2  10.0.0.2|n2 10.0.0.2 "
      "7000|10.0.0.2|10.0.0.2:|10.0.0.2:0|10.0.0.2:65536|10.0.0.2:x|"
      "10.0.0.2:7000x|10.0.0.2:7000\r|:7000|host:7000|[]:7000|-:7000|fd00::2:7000|[10.0.0.2]:7000|[fd00::2:"
      "7000|"
      "fd00::2]:7000");
  for (std::string line; std::getline(lines, line, '|');) {
    const std::string error = error_of(std::string("n1 10.0.0.1\n") + line + "\nn3 10.0.0.3\n");
    EXPECT_TRUE(error.starts_with("2: '")) << "'" << line << "': " << error;
    EXPECT_NE(error.find("is not ADDRESS:PORT; write for example"), std::string::npos) << error;
  }
  for (const char* few : {"", "n1 10.0.0.1\n"})
    EXPECT_EQ(error_of(few), " it takes a line for each of at least two nodes");
  std::string many;
  for (int i = 0; i < 65536; ++i) many += "n ::1\n";
  EXPECT_EQ(error_of(many), "");
  EXPECT_EQ(error_of(many + "n ::1\n"), " more than 65536 nodes");
}

TEST(PeerKey, IsAllThatComes) {
  const int fd = pipe_with(std::string(32, 'k'));
  const Result<JobKey> key = take_key(fd);
  ASSERT_TRUE(key.ok()) << key.error().text;
  EXPECT_EQ(*key, key_of('k'));
  EXPECT_LT(::fcntl(fd, F_GETFD), 0) << "it is closed";
  for (const size_t bytes : {0, 31, 33, 64})
    EXPECT_TRUE(
        take_key(pipe_with(std::string(bytes, 'k'))).error().text.starts_with("the job's key: not 32 bytes"))
        << bytes;
  EXPECT_EQ(take_key(-1).error().code, EBADF);
}

TEST(PeerKey, InAFileIsItsOwnersAlone) {
  const Scratch scratch;
  const std::string file = scratch.file("key", std::string(32, '\n'));
  for (const mode_t mode : {0600, 0400, 0640, 0604, 0620, 0602, 0601, 0610}) {
    ::chmod(file.c_str(), mode);
    const Result<JobKey> key = read_key_file(file);
    EXPECT_EQ(key.ok(), (mode & 077) == 0) << mode;
    EXPECT_TRUE(key.ok() ? *key == key_of('\n') : key.error().text.ends_with("run chmod 600 " + file));
  }
  const std::string shorter = scratch.file("short", "abc");
  ::chmod(shorter.c_str(), 0600);
  EXPECT_EQ(read_key_file(shorter).error().text,
            shorter + ": not 32 bytes; make it by head -c32 /dev/urandom");
  EXPECT_EQ(read_key_file(scratch / "none").error().code, ENOENT);
  EXPECT_EQ(read_key_file(scratch.dir("d")).error().text, (scratch / "d") + ": not a plain file");
}

TEST(PeerMembership, IsReadAsTheCommandLineHasIt) {
  const Scratch scratch;
  PeerConfig config;
  config.ports = {7000, 7001};
  PeerArguments arguments;
  arguments.file = scratch.file("peers", "n1 10.0.0.1\nn2 10.0.0.2\n");
  arguments.identity = "c.1.0";
  const auto read = [&](uint32_t index) {
    arguments.index = index;
    arguments.key_fd = pipe_with(std::string(32, 'k'));
    return read_membership(arguments, config);
  };
  const Result<PeerMembership> second = read(1);
  ASSERT_TRUE(second.ok()) << second.error().text;
  EXPECT_EQ(second->own, 1u);
  EXPECT_EQ(second->identity, "c.1.0");
  EXPECT_EQ(second->key, key_of('k'));
  ASSERT_EQ(second->nodes.size(), 2u);
  EXPECT_EQ(second->nodes[0].host, "10.0.0.1");
  for (const NodeAddress& node : second->nodes) EXPECT_EQ(node.ports, ports_of("c.1.0", 7000, 7001));
  EXPECT_EQ(read(2).error().text, "--peer-index 2: " + arguments.file + " has 2 nodes, from 0 on");
  scratch.file("peers", "");
  EXPECT_TRUE(read(0).error().text.starts_with(arguments.file + ": it takes")) << read(0).error().text;
  arguments.key_fd = pipe_with("");
  EXPECT_TRUE(read_membership(arguments, config).error().text.starts_with("the job's key"));
}

}  // namespace
}  // namespace monarch
