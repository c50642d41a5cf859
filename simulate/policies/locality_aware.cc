// SPDX-License-Identifier: Apache-2.0
// The locality-aware loading of Yang and Cong: the nodes' tiers hold the dataset once, and each batch is
// divided so that nodes read what they hold, as far as they have equal parts.
#include "simulate/plan.h"

namespace monarch::simulate {
namespace {

constexpr uint32_t kNowhere = UINT32_MAX;

// Of one batch of the job, which begins at `at` of each node's reads.
void divide(const Accesses& accesses, const std::vector<uint32_t>& holder, size_t at,
            std::vector<std::vector<uint32_t>>* reads) {
  std::vector<uint32_t> left;
  for (const std::vector<uint32_t>& drawn : accesses.all())
    for (size_t i = at; i < at + accesses.batch(); ++i) {
      const uint32_t node = holder[drawn[i]];
      const bool is_near = node != kNowhere && (*reads)[node].size() < at + accesses.batch();
      (is_near ? (*reads)[node] : left).push_back(drawn[i]);
    }
  for (std::vector<uint32_t>& of_node : *reads)
    for (; of_node.size() < at + accesses.batch(); left.pop_back()) of_node.push_back(left.back());
}

}  // namespace

Plan locality_aware(const Machine& machine, const Accesses& accesses) {
  Plan plan = stage_shards(machine, accesses, all_of(machine));
  std::vector<uint32_t> holder(accesses.samples(), kNowhere);
  for (const List& list : plan.lists)
    for (const uint32_t sample : list.samples) holder[sample] = static_cast<uint32_t>(list.node);
  plan.reads.resize(accesses.nodes());
  for (size_t at = 0; at < accesses.of(0).size(); at += accesses.batch())
    divide(accesses, holder, at, &plan.reads);
  return plan;
}

}  // namespace monarch::simulate
