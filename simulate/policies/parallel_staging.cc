// SPDX-License-Identifier: Apache-2.0
// Each node copies its part of the dataset to its tiers, and reads no other. The last tier, the largest, is
// filled first.
#include <algorithm>

#include "simulate/plan.h"

namespace monarch::simulate {

Plan parallel_staging(const Machine& machine, const Accesses& accesses) {
  const std::vector<size_t> tiers = all_of(machine);
  Plan plan = stage_shards(machine, accesses, {tiers.rbegin(), tiers.rend()});
  std::vector<std::vector<uint32_t>> held(accesses.nodes());
  for (const List& list : plan.lists)
    held[list.node].insert(held[list.node].end(), list.samples.begin(), list.samples.end());
  Random random(accesses.samples());
  for (size_t node = 0; node < accesses.nodes(); ++node) {
    if (held[node].empty()) return refused("a node's tiers hold no sample");
    std::vector<uint32_t>& reads = plan.reads.emplace_back();
    const size_t wanted = accesses.of(node).size();
    while (reads.size() < wanted) {
      random.shuffle(&held[node]);
      const size_t more = std::min(held[node].size(), wanted - reads.size());
      reads.insert(reads.end(), held[node].begin(), held[node].begin() + static_cast<ptrdiff_t>(more));
    }
  }
  plan.coverage = static_cast<double>(listed(plan)) / static_cast<double>(accesses.samples());
  return plan;
}

}  // namespace monarch::simulate
