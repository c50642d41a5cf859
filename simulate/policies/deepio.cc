// SPDX-License-Identifier: Apache-2.0
// DeepIO: the nodes' memory holds a part of the dataset, which all of them read. In its ordered mode the rest
// is read from the PFS when it is needed; in its opportunistic mode something that is held is read instead.
#include "simulate/plan.h"

namespace monarch::simulate {

Plan deepio_ordered(const Machine& machine, const Accesses& accesses) {
  Plan plan = stage_shards(machine, accesses, memory_of(machine));
  plan.reading = Plan::Reading::kCopiesAhead;
  return plan;
}

Plan deepio_opportunistic(const Machine& machine, const Accesses& accesses) {
  Plan plan = stage_shards(machine, accesses, memory_of(machine));
  std::vector<uint32_t> held;
  for (const List& list : plan.lists) held.insert(held.end(), list.samples.begin(), list.samples.end());
  if (held.empty()) return refused("memory holds no sample");
  std::vector<bool> is_held(accesses.samples());
  for (const uint32_t sample : held) is_held[sample] = true;
  plan.coverage = static_cast<double>(held.size()) / static_cast<double>(accesses.samples());
  plan.reads = accesses.all();
  Random random(accesses.samples());
  for (std::vector<uint32_t>& reads : plan.reads)
    for (uint32_t& sample : reads)
      if (!is_held[sample]) sample = held[random.below(static_cast<uint32_t>(held.size()))];
  return plan;
}

}  // namespace monarch::simulate
