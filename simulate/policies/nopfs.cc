// SPDX-License-Identifier: Apache-2.0
// NoPFS: what a node reads more often goes to a faster tier, until the tiers are full. Each tier is filled in
// the order of first use.
#include <algorithm>

#include "simulate/plan.h"

namespace monarch::simulate {
namespace {

struct Use {
  uint32_t sample, times, first;
};

std::vector<Use> uses_of(const Accesses& accesses, size_t node) {
  constexpr uint32_t kNone = UINT32_MAX;
  std::vector<uint32_t> at(accesses.samples(), kNone);
  std::vector<Use> uses;
  uint32_t number = 0;
  for (const uint32_t sample : accesses.of(node)) {
    if (at[sample] == kNone) {
      at[sample] = static_cast<uint32_t>(uses.size());
      uses.push_back({sample, 0, number});
    }
    ++uses[at[sample]].times;
    ++number;
  }
  return uses;
}

}  // namespace

Plan nopfs(const Machine& machine, const Accesses& accesses) {
  Plan plan;
  plan.source = Plan::Source::kFastest;
  std::vector<uint32_t> first(accesses.samples());
  for (size_t node = 0; node < accesses.nodes(); ++node) {
    std::vector<Use> uses = uses_of(accesses, node);
    std::stable_sort(uses.begin(), uses.end(), [](const Use& a, const Use& b) { return a.times > b.times; });
    std::vector<uint32_t> samples;
    for (const Use& use : uses) {
      samples.push_back(use.sample);
      first[use.sample] = use.first;
    }
    const size_t begin = plan.lists.size();
    fill(machine, accesses, node, samples, all_of(machine), &plan);
    for (size_t list = begin; list < plan.lists.size(); ++list)
      std::sort(plan.lists[list].samples.begin(), plan.lists[list].samples.end(),
                [&](uint32_t a, uint32_t b) { return first[a] < first[b]; });
  }
  return plan;
}

}  // namespace monarch::simulate
