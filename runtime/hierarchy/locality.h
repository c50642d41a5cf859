// SPDX-License-Identifier: Apache-2.0
// Where threads and pages had better be: near the tiers' devices, and where there is memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hierarchy/discovery.h"

namespace monarch {

// The processors of the NUMA nodes next to which the tiers' disks are, as the kernel lists them:
// "0-15,64-79". Empty if no disk's node is known. Looks at the machine as discover() does, which takes some
// milliseconds.
std::string processors_near(const std::vector<TierConfig>& tiers, const Sources& sources);

// Lets the calling thread run on these processors only, as far as it may run there at all.
Status run_on(const std::string& processors);

// While it lives, new pages of the calling thread (those of a tmpfs file that it writes too) are interleaved
// over the nearest NUMA nodes that it may use and that have memory to spare: near the processors that the
// process may run on, so those of the job. Nothing on a machine of one node, or if
// `wanted` is false.
class MemoryPolicy {
 public:
  explicit MemoryPolicy(bool wanted);
  MemoryPolicy(const MemoryPolicy&) = delete;
  MemoryPolicy& operator=(const MemoryPolicy&) = delete;
  ~MemoryPolicy();

 private:
  bool set_ = false;
};

struct NodeMemory {
  uint64_t free = 0, all = 0;  // bytes
  int distance = 0;  // as numa(3) gives it (10: the node itself), from the nearest of the processors
};
// Which of the nodes MemoryPolicy takes: of those that have memory to spare, the nearest.
std::vector<int> nodes_with_memory(const std::vector<NodeMemory>& nodes);

}  // namespace monarch
