// SPDX-License-Identifier: Apache-2.0
// All policies, the simplest ones, and what others are made of.
#include <numeric>
#include <utility>

#include "simulate/plan.h"

namespace monarch::simulate {
namespace {

Plan reading(Plan::Reading how) {
  Plan plan;
  plan.reading = how;
  return plan;
}
Plan perfect(const Machine&, const Accesses&) { return reading(Plan::Reading::kNone); }
Plan naive(const Machine&, const Accesses&) { return reading(Plan::Reading::kAsked); }
Plan staging_buffer(const Machine&, const Accesses&) { return reading(Plan::Reading::kAhead); }

}  // namespace

const std::vector<Policy>& policies() {
  static const std::vector<Policy> all = {
      {"perfect", "no sample is waited for", &perfect},
      {"naive", "each sample is read from the PFS when it is needed", &naive},
      {"staging-buffer", "samples are read from the PFS ahead", &staging_buffer},
      {"deepio-ordered", "memory holds a part; the rest is read when it is needed", &deepio_ordered},
      {"deepio-opportunistic", "only what memory holds is read", &deepio_opportunistic},
      {"parallel-staging", "each node reads its own part, from its tiers", &parallel_staging},
      {"lbann-dynamic", "the first node to read a sample keeps it in memory", &lbann_dynamic},
      {"lbann-preload", "memory holds all samples before training", &lbann_preload},
      {"locality-aware", "batches are divided by where samples are", &locality_aware},
      {"star", "the first node keeps all samples, and sends them to the others", &star},
      {"nopfs", "each node keeps what it reads most often", &nopfs},
      {"monarch", "each node keeps what it reads, and sends it to others", &monarch},
      {"monarch-alone", "each node keeps what it reads, for itself", &monarch_alone},
      {"monarch-order", "the same, with the order of reads known", &monarch_with_order}};
  return all;
}

const Policy* find_policy(const std::string& name) {
  for (const Policy& policy : policies())
    if (name == policy.name) return &policy;
  return nullptr;
}

std::vector<uint32_t> shard(const Accesses& accesses, size_t node) {
  std::vector<uint32_t> samples;
  for (size_t sample = node; sample < accesses.samples(); sample += accesses.nodes())
    samples.push_back(static_cast<uint32_t>(sample));
  return samples;
}

void fill(const Machine& machine, const Accesses& accesses, size_t node, const std::vector<uint32_t>& samples,
          const std::vector<size_t>& tiers, Plan* plan) {
  auto at = samples.begin();
  for (const size_t tier : tiers) {
    List list = {node, static_cast<int>(tier), machine.tiers[tier].threads, {}};
    double left = machine.tiers[tier].capacity;
    for (; at != samples.end() && accesses.size(*at) <= left; ++at) {
      left -= accesses.size(*at);
      list.samples.push_back(*at);
    }
    plan->lists.push_back(std::move(list));
  }
}

Plan stage_shards(const Machine& machine, const Accesses& accesses, const std::vector<size_t>& tiers) {
  Plan plan;
  plan.trains_when_staged = true;
  for (size_t node = 0; node < accesses.nodes(); ++node)
    fill(machine, accesses, node, shard(accesses, node), tiers, &plan);
  return plan;
}

Plan star(const Machine& machine, const Accesses& accesses) {
  std::vector<uint32_t> all(accesses.samples());
  std::iota(all.begin(), all.end(), 0);
  Plan plan;
  plan.trains_when_staged = true;
  fill(machine, accesses, 0, all, all_of(machine), &plan);
  return plan;
}

Plan refused(const std::string& why) {
  Plan plan;
  plan.refusal = why;
  return plan;
}

size_t listed(const Plan& plan) {
  size_t samples = 0;
  for (const List& list : plan.lists) samples += list.samples.size();
  return samples;
}

std::vector<size_t> all_of(const Machine& machine) {
  std::vector<size_t> tiers(machine.tiers.size());
  std::iota(tiers.begin(), tiers.end(), 0);
  return tiers;
}

std::vector<size_t> memory_of(const Machine& machine) {
  return machine.tiers.empty() ? std::vector<size_t>() : std::vector<size_t>{0};
}

}  // namespace monarch::simulate
