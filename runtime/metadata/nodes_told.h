// SPDX-License-Identifier: Apache-2.0
// What each node of a job has counted, as far as the first node was told: a file of that node's run
// directory, which its agent writes, and monarchctl reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/base/result.h"
#include "runtime/layout/board_layout.h"

namespace monarch {

inline constexpr char kNodesFile[] = "nodes";
inline constexpr uint32_t kMostNodesTold = 1024;  // in the file: of a larger job the first ones

// Words of 64 bits behind the name.
struct NodeTold {
  char name[64] = {};    // Slurm's, or the address; NUL-terminated, may be cut
  uint64_t told_ms = 0;  // CLOCK_MONOTONIC of the first node; 0: it has told nothing
  uint64_t ended = 0;    // 1: this is all, since its agents have ended
  uint64_t files = 0;    // placed now
  uint64_t placed_bytes[kMedia] = {};
  uint64_t opens_tier = 0, opens_pfs = 0;
  uint64_t pfs_bytes = 0, peer_bytes = 0, served_bytes = 0;
  bool operator==(const NodeTold&) const = default;
};
NodeTold told_of(const NodeCounts& counts);

struct NodesTold {
  uint64_t magic = 0;
  uint64_t nodes = 0;             // of the job
  uint64_t count = 0;             // of those below
  NodeTold told[kMostNodesTold];  // by index; the first is this node, as of when the file was written

  uint64_t bytes() const { return offsetof(NodesTold, told) + count * sizeof(NodeTold); }
};
inline constexpr uint64_t kNodesToldMagic = 0x31544e4843524e4d;

// Whole or not at all.
Status write_nodes_told(int run_dir, const NodesTold& nodes);

// Without mapping it, as read_board() does; what is there is the owner's, and may say anything. ENOENT: there
// is none, since this is not the first node, or not yet. Run as the job's owner.
Result<std::unique_ptr<NodesTold>> read_nodes_told(const std::string& run_dir);

// Whether all of it is such as an agent can have written.
bool plausible(const NodesTold& nodes);

}  // namespace monarch
