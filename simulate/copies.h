// SPDX-License-Identifier: Apache-2.0
// Which nodes have, or are to have, a copy of which sample.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "simulate/accesses.h"
#include "simulate/model.h"
#include "simulate/plan.h"

namespace monarch::simulate {

struct Copy {
  static constexpr float kPlanned = std::numeric_limits<float>::infinity();
  float ready;  // from when it can be read
  uint32_t next;
  uint16_t node;
  uint16_t tier;
};

class Copies {
 public:
  // With those that the lists name, as planned.
  Copies(const Machine& machine, const Accesses& accesses, const Plan& plan);

  // Of a sample, the copies one by one; nullptr: no more. Good until the next place().
  const Copy* first(uint32_t sample) const { return at(heads_[sample]); }
  const Copy* next(const Copy* copy) const { return at(copy->next); }
  const Copy* of(uint32_t sample, size_t node) const;

  bool has_room(size_t node, uint32_t sample) const { return tier_for(node, sample) < room_[node].size(); }
  // By the plan, for a sample without a copy on the node that has read it.
  bool may_keep(size_t node, uint32_t sample) const;
  // The tier of the node's copy, which is made as planned if it is not there and there is room.
  size_t place(size_t node, uint32_t sample);
  // Of a copy that is there.
  void set_ready(size_t node, uint32_t sample, double time);
  // All that the node has: its tiers are empty again, and what is planned for them is planned anew.
  void lose(size_t node);

 private:
  static constexpr uint32_t kNone = UINT32_MAX;
  const Copy* at(uint32_t index) const { return index == kNone ? nullptr : &copies_[index]; }
  size_t tier_for(size_t node, uint32_t sample) const;
  void add(uint32_t sample, size_t node, size_t tier);

  const Accesses& accesses_;
  const Plan::Keep keep_;
  std::vector<uint32_t> heads_;
  std::vector<Copy> copies_;
  std::vector<std::vector<bool>> has_;  // [node][sample]
  std::vector<double> empty_;  // the room of a node without copies, on the tiers that it keeps samples on
  std::vector<std::vector<double>> room_;  // of each node
};

}  // namespace monarch::simulate
