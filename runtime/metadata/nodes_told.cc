// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/nodes_told.h"

#include <algorithm>
#include <cstring>

#include "runtime/metadata/board.h"
#include "runtime/metadata/run_file.h"

namespace monarch {

NodeTold told_of(const NodeCounts& counts) {
  NodeTold told;
  told.files = placed_files(counts);
  std::copy(std::begin(counts.placed_bytes), std::end(counts.placed_bytes), told.placed_bytes);
  told.opens_tier = counts.opens_tier;
  told.opens_pfs = counts[TaskCounter::opens_pfs];
  told.pfs_bytes = bytes_from_pfs(counts);
  told.peer_bytes = counts[AgentCounter::peer_bytes];
  told.served_bytes = counts[AgentCounter::served_bytes];
  return told;
}

Status write_nodes_told(int run_dir, const NodesTold& nodes) {
  return write_sealed(run_dir, kNodesFile, &nodes, static_cast<size_t>(nodes.bytes()));
}

Result<std::unique_ptr<NodesTold>> read_nodes_told(const std::string& run_dir) {
  const std::string path = run_dir + "/" + kNodesFile;
  auto nodes = std::make_unique<NodesTold>();
  const Result<size_t> size = read_sealed(path, nodes.get(), sizeof *nodes);
  if (!size.ok()) return size.error();
  if (!plausible(*nodes) || nodes->bytes() != *size)
    return Error{EINVAL, path + ": not what an agent writes"};
  return nodes;
}

bool plausible(const NodesTold& nodes) {
  if (nodes.magic != kNodesToldMagic || nodes.count > kMostNodesTold || nodes.nodes < nodes.count ||
      nodes.nodes > kMostCount)
    return false;
  constexpr size_t kWords = (sizeof(NodeTold) - offsetof(NodeTold, told_ms)) / sizeof(uint64_t);
  return std::all_of(nodes.told, nodes.told + nodes.count, [](const NodeTold& told) {
    uint64_t words[kWords];
    std::memcpy(words, &told.told_ms, sizeof words);
    return std::memchr(told.name, '\0', sizeof told.name) != nullptr && told.ended <= 1 &&
           std::all_of(words, words + kWords, [](uint64_t n) { return n <= kMostCount; });
  });
}

}  // namespace monarch
