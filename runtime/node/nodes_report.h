// SPDX-License-Identifier: Apache-2.0
// What each node of a job has counted, as a report and `monarchctl status` tell it: "by_node" in
// monarchctl(1).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/metadata/nodes_told.h"

namespace monarch {

// A node, by its name in `told`.
struct NodeLine {
  NodeTold told;
  std::optional<uint64_t>
      seconds_ago;  // when it told that; 0 for the first node; nothing: it has told nothing
};

// Node 0 first; its line is `own`, what it counts itself, which its agent may have died without writing. What
// it has placed by medium is taken from there only if it is told there. `nodes` is plausible(); the clock is
// read.
std::vector<NodeLine> node_lines(const NodesTold& nodes, const NodeCounts& own,
                                 Clock& clock = system_clock());

Json by_node(const std::vector<NodeLine>& lines);
// What is not 0, by the media's names.
Json placed_json(const uint64_t (&by_medium)[kMedia]);

// The other way round, whoever wrote the JSON. EINVAL: it is not what by_node() makes.
Result<std::vector<NodeLine>> node_lines_of(const Json& by_node);

}  // namespace monarch
