// SPDX-License-Identifier: Apache-2.0
// LBANN's data store: memory alone, one copy of each sample, of all samples or it does not run.
#include "simulate/plan.h"

namespace monarch::simulate {
namespace {

bool fits(const Machine& machine, const Accesses& accesses) {
  return !machine.tiers.empty() &&
         accesses.total() <= machine.tiers[0].capacity * static_cast<double>(accesses.nodes());
}
const char kTooLarge[] = "the dataset is larger than the memory of all nodes";

}  // namespace

Plan lbann_dynamic(const Machine& machine, const Accesses& accesses) {
  if (!fits(machine, accesses)) return refused(kTooLarge);
  Plan plan;
  plan.keep = Plan::Keep::kFirst;
  plan.keeps_on = 1;
  return plan;
}

Plan lbann_preload(const Machine& machine, const Accesses& accesses) {
  return fits(machine, accesses) ? stage_shards(machine, accesses, memory_of(machine)) : refused(kTooLarge);
}

}  // namespace monarch::simulate
