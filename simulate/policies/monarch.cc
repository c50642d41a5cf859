// SPDX-License-Identifier: Apache-2.0
// This project, with peers and with all of the dataset prefetched. Without an order, each node's agent reads
// the node's part ahead, and keeps what it or the job reads, as far as its tiers have room.
#include "simulate/plan.h"

namespace monarch::simulate {

Plan monarch(const Machine& machine, const Accesses& accesses) {
  Plan plan;
  plan.source = Plan::Source::kRoom;
  plan.keep = Plan::Keep::kAll;
  plan.keeps_on = machine.tiers.size();
  plan.follows = true;
  uint32_t threads = 0;
  for (const Tier& tier : machine.tiers) threads += tier.threads;
  for (size_t node = 0; node < accesses.nodes(); ++node)
    plan.lists.push_back({node, List::kAnyTier, threads, shard(accesses, node)});
  return plan;
}

Plan monarch_alone(const Machine& machine, const Accesses&) {
  Plan plan;
  plan.source = Plan::Source::kOwn;
  plan.keep = Plan::Keep::kAll;
  plan.keeps_on = machine.tiers.size();
  return plan;
}

// As NoPFS, but what another node is reading is not read a second time.
Plan monarch_with_order(const Machine& machine, const Accesses& accesses) {
  Plan plan = nopfs(machine, accesses);
  plan.follows = true;
  return plan;
}

}  // namespace monarch::simulate
