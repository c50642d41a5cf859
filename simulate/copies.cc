// SPDX-License-Identifier: Apache-2.0
#include "simulate/copies.h"

namespace monarch::simulate {

Copies::Copies(const Machine& machine, const Accesses& accesses, const Plan& plan)
    : accesses_(accesses),
      keep_(plan.keep),
      heads_(accesses.samples(), kNone),
      has_(accesses.nodes(), std::vector<bool>(accesses.samples())) {
  for (size_t tier = 0; tier < plan.keeps_on; ++tier) empty_.push_back(machine.tiers[tier].capacity);
  room_.assign(accesses.nodes(), empty_);
  for (const List& list : plan.lists)
    if (list.tier != List::kAnyTier)
      for (const uint32_t sample : list.samples) add(sample, list.node, static_cast<size_t>(list.tier));
}

void Copies::add(uint32_t sample, size_t node, size_t tier) {
  copies_.push_back(
      {Copy::kPlanned, heads_[sample], static_cast<uint16_t>(node), static_cast<uint16_t>(tier)});
  heads_[sample] = static_cast<uint32_t>(copies_.size() - 1);
  has_[node][sample] = true;
}

const Copy* Copies::of(uint32_t sample, size_t node) const {
  if (!has_[node][sample]) return nullptr;
  const Copy* copy = first(sample);
  while (copy->node != node) copy = next(copy);
  return copy;
}

size_t Copies::tier_for(size_t node, uint32_t sample) const {
  size_t tier = 0;
  while (tier < room_[node].size() && room_[node][tier] < accesses_.size(sample)) ++tier;
  return tier;
}

bool Copies::may_keep(size_t node, uint32_t sample) const {
  if (keep_ == Plan::Keep::kPlanned || (keep_ == Plan::Keep::kFirst && first(sample))) return false;
  return has_room(node, sample);
}

size_t Copies::place(size_t node, uint32_t sample) {
  if (const Copy* copy = of(sample, node)) return copy->tier;
  const size_t tier = tier_for(node, sample);
  room_[node][tier] -= accesses_.size(sample);
  add(sample, node, tier);
  return tier;
}

void Copies::set_ready(size_t node, uint32_t sample, double time) {
  uint32_t copy = heads_[sample];
  while (copies_[copy].node != node) copy = copies_[copy].next;
  copies_[copy].ready = static_cast<float>(time);
}

void Copies::lose(size_t node) {
  for (uint32_t sample = 0; sample < accesses_.samples(); ++sample) {
    if (!has_[node][sample]) continue;
    if (keep_ == Plan::Keep::kPlanned) {
      set_ready(node, sample, Copy::kPlanned);
      continue;
    }
    uint32_t* copy = &heads_[sample];
    while (copies_[*copy].node != node) copy = &copies_[*copy].next;
    *copy = copies_[*copy].next;
    has_[node][sample] = false;
  }
  room_[node] = empty_;
}

}  // namespace monarch::simulate
