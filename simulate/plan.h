// SPDX-License-Identifier: Apache-2.0
// What a policy decides before a run: which samples are copied where, in which order, and from where nodes
// read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "simulate/accesses.h"
#include "simulate/model.h"

namespace monarch::simulate {

// Samples that threads of a node copy, one after the other.
struct List {
  // To the first tier that has room when the copy begins.
  static constexpr int kAnyTier = -1;
  size_t node = 0;
  int tier = kAnyTier;
  uint32_t threads = 1;
  std::vector<uint32_t> samples;
};

struct Plan {
  std::string refusal;  // why the policy cannot run; empty: it can
  // kNone: no sample is ever waited for. kAsked: each is read when the computation needs it.
  // kCopiesAhead: ahead, as far as the staging buffer goes, but for what no node has a copy of.
  enum class Reading { kNone, kAsked, kCopiesAhead, kAhead } reading = Reading::kAhead;
  // kCopies: from the node's own copy, else from another node's, else from the PFS. kFastest: by their rates.
  // kRoom: as kCopies, but a node without room for a copy reads the PFS. kOwn: no other node's copy.
  enum class Source { kCopies, kFastest, kRoom, kOwn } source = Source::kCopies;
  // Which samples that were read stay on the node: those of its lists, also those that no node has yet, or
  // all. For the latter two, as far as the first `keeps_on` tiers have room.
  enum class Keep { kPlanned, kFirst, kAll } keep = Keep::kPlanned;
  size_t keeps_on = 0;
  bool trains_when_staged = false;  // the lists come first, and the computation after them
  bool follows = false;             // a sample that another node is reading is waited for, and got from there
  std::vector<List> lists;
  std::vector<std::vector<uint32_t>> reads;  // per node, instead of the order that was drawn; empty: that one
  double coverage = 1;                       // part of the samples that are read at all
};

struct Policy {
  const char* name;
  const char* text;
  Plan (*plan)(const Machine& machine, const Accesses& accesses);
};
const std::vector<Policy>& policies();
// nullptr: there is none of that name.
const Policy* find_policy(const std::string& name);

// What policies are made of.

// Each node's part of the samples: every one of `nodes`.
std::vector<uint32_t> shard(const Accesses& accesses, size_t node);
// Adds a list of the node's for each of these tiers, in this order, with as much of `samples` as it has room
// for.
void fill(const Machine& machine, const Accesses& accesses, size_t node, const std::vector<uint32_t>& samples,
          const std::vector<size_t>& tiers, Plan* plan);
// Each node's part is copied to these tiers before training begins.
Plan stage_shards(const Machine& machine, const Accesses& accesses, const std::vector<size_t>& tiers);
std::vector<size_t> all_of(const Machine& machine);
// The first tier, which is taken for it; none if there is no tier.
std::vector<size_t> memory_of(const Machine& machine);
// The number of samples in the lists.
size_t listed(const Plan& plan);
Plan refused(const std::string& why);

Plan deepio_ordered(const Machine& machine, const Accesses& accesses);
Plan deepio_opportunistic(const Machine& machine, const Accesses& accesses);
Plan parallel_staging(const Machine& machine, const Accesses& accesses);
Plan lbann_dynamic(const Machine& machine, const Accesses& accesses);
Plan lbann_preload(const Machine& machine, const Accesses& accesses);
Plan locality_aware(const Machine& machine, const Accesses& accesses);
Plan star(const Machine& machine, const Accesses& accesses);
Plan nopfs(const Machine& machine, const Accesses& accesses);
Plan monarch(const Machine& machine, const Accesses& accesses);
Plan monarch_alone(const Machine& machine, const Accesses& accesses);
Plan monarch_with_order(const Machine& machine, const Accesses& accesses);

}  // namespace monarch::simulate
