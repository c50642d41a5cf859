// SPDX-License-Identifier: Apache-2.0
// What reports tell of each node of a job, as JSON and back.
#include "runtime/node/nodes_report.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "runtime/base/os.h"
#include "tests/faulty_os.h"

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
  const std::vector<NodeLine> lines = node_lines(nodes);
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0].seconds_ago, 0u) << "the first node itself";
  EXPECT_EQ(lines[1].seconds_ago, 7u);
  EXPECT_EQ(lines[2].seconds_ago, std::nullopt) << "it has told nothing";
  const nlohmann::ordered_json json = by_node(lines);
  EXPECT_EQ(json[1]["opens"], 4u);
  EXPECT_EQ(json[1]["hit"], 0.75);
  EXPECT_EQ(json[2].size(), 2u) << json[2];
}

TEST(NodesReport, IsReadAsItWasWritten) {
  std::vector<NodeLine> lines = node_lines(three_nodes());
  const Result<std::vector<NodeLine>> read = node_lines_of(nlohmann::json::parse(by_node(lines).dump()));
  ASSERT_TRUE(read.ok()) << read.error().text;
  ASSERT_EQ(read->size(), 3u);
  lines[1].told.told_ms = 0;  // the clock is this node's
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ((*read)[i].told, lines[i].told);
    EXPECT_EQ((*read)[i].seconds_ago, lines[i].seconds_ago);
  }
}

TEST(NodesReport, ALongNameIsCut) {
  nlohmann::json one = {{{"node", std::string(1000, 'x')}, {"told_seconds_ago", nullptr}}};
  const Result<std::vector<NodeLine>> read = node_lines_of(one);
  ASSERT_TRUE(read.ok());
  EXPECT_EQ(std::strlen((*read)[0].told.name), sizeof NodeTold::name - 1);
}

}  // namespace
}  // namespace monarch
