// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/locality.h"

#include <numa.h>
#include <numaif.h>

#include <fstream>
#include <memory>
#include <set>

namespace monarch {
namespace {

constexpr uint64_t kSpareShare = 20;  // a node with less than a twentieth of its memory free is left alone

struct FreeMask {
  void operator()(bitmask* m) const { ::numa_bitmask_free(m); }
};
using Mask = std::unique_ptr<bitmask, FreeMask>;

}  // namespace

std::string processors_near(const std::vector<TierConfig>& tiers, const Sources& sources) {
  const Result<std::vector<Candidate>> found = discover(sources, tiers);
  if (!found.ok()) return {};
  std::set<int> nodes;
  for (const Candidate& c : *found)
    if (c.chosen && c.numa_node >= 0) nodes.insert(c.numa_node);
  std::string processors;
  for (const int node : nodes) {
    std::ifstream in(sources.root + "/sys/devices/system/node/node" + std::to_string(node) + "/cpulist");
    std::string list;
    if (in >> list) processors += (processors.empty() ? "" : ",") + list;
  }
  return processors;
}

Status run_on(const std::string& processors) {
  const Mask wanted(::numa_parse_cpustring_all(processors.c_str()));
  if (!wanted) return bad_input("no list of processors: '" + processors + "'");
  const Mask allowed(::numa_allocate_cpumask());
  if (::numa_sched_getaffinity(0, allowed.get()) < 0) return errno_error("sched_getaffinity");
  bool any = false;
  for (unsigned i = 0; i < allowed->size; ++i) {
    const bool both = ::numa_bitmask_isbitset(allowed.get(), i) && i < wanted->size &&
                      ::numa_bitmask_isbitset(wanted.get(), i);
    any |= both;
    if (!both) ::numa_bitmask_clearbit(allowed.get(), i);
  }
  if (!any) return {};  // the job has no processor there
  if (::numa_sched_setaffinity(0, allowed.get()) < 0) return errno_error("sched_setaffinity");
  return {};
}

std::vector<int> nodes_with_memory(const std::vector<uint64_t>& free, const std::vector<uint64_t>& all) {
  std::vector<int> nodes;
  for (size_t i = 0; i < free.size(); ++i)
    if (all[i] > 0 && free[i] > all[i] / kSpareShare) nodes.push_back(static_cast<int>(i));
  return nodes;
}

MemoryPolicy::MemoryPolicy(bool wanted) {
  static const bool several = ::numa_available() >= 0 && ::numa_num_configured_nodes() > 1;
  if (!wanted || !several) return;
  const Mask allowed(::numa_get_mems_allowed());
  std::vector<uint64_t> free, all;
  for (int node = 0; node <= ::numa_max_node(); ++node) {
    long long spare = 0;
    const bool ours = ::numa_bitmask_isbitset(allowed.get(), static_cast<unsigned>(node)) != 0;
    const long long size = ours ? ::numa_node_size64(node, &spare) : 0;
    all.push_back(size > 0 ? static_cast<uint64_t>(size) : 0);
    free.push_back(spare > 0 ? static_cast<uint64_t>(spare) : 0);
  }
  const Mask over(::numa_allocate_nodemask());
  for (const int node : nodes_with_memory(free, all))
    ::numa_bitmask_setbit(over.get(), static_cast<unsigned>(node));
  set_ = ::numa_bitmask_weight(over.get()) > 0 &&
         ::set_mempolicy(MPOL_INTERLEAVE, over->maskp, over->size + 1) == 0;
}

MemoryPolicy::~MemoryPolicy() {
  if (set_) ::set_mempolicy(MPOL_DEFAULT, nullptr, 0);
}

}  // namespace monarch
