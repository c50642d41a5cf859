// SPDX-License-Identifier: Apache-2.0
// What part of this node a job of Slurm's has, and its share of the tiers, which follows that
// (monarch.conf(5), share).
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/config/config.h"
#include "runtime/node/child.h"
#include "runtime/node/state.h"

namespace monarch {

// Each 0 where it is not known. The job's are those of its credential, which slurmctld signs; the node's are
// slurm.conf's cores and the machine's memory.
struct NodePart {
  uint32_t cores = 0, node_cores = 0;
  uint64_t memory = 0, node_memory = 0;  // bytes
};

// The job's share of a tier whose quota is in bytes: the quota times the job's part of the node, in blocks,
// one at least. The whole quota where the part is not known, and for a job that has all cores. No more than
// the tier's job_capacity and, if the tier is charged to the job, than the job's memory.
uint64_t share_of(const TierConfig& tier, const NodePart& part);

// One question for the number of a node's cores, unless that is known since a short while ago.
class CoresQuestion {
 public:
  // `job`'s node and cluster. Does not wait.
  CoresQuestion(const StateDir& state, const JobOnNode& job, const OfCluster& cluster);
  // Waits at most `patience_ms`; 0: it is not known.
  uint32_t answer(int patience_ms);

 private:
  const StateDir& state_;
  const JobOnNode job_;
  uint32_t known_ = 0;
  std::optional<Child> program_;
};

}  // namespace monarch
