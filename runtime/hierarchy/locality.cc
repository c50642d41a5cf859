// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/locality.h"

#include <numa.h>
#include <numaif.h>

#include <unistd.h>

#include <algorithm>
#include <climits>
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

// The nodes of the processors on which the process may run; a copy thread may have been moved elsewhere.
std::set<int> nodes_of_process() {
  std::set<int> nodes;
  const Mask processors(::numa_allocate_cpumask());
  if (::numa_sched_getaffinity(::getpid(), processors.get()) < 0) return nodes;
  for (unsigned i = 0; i < processors->size; ++i) {
    if (!::numa_bitmask_isbitset(processors.get(), i)) continue;
    if (const int node = ::numa_node_of_cpu(static_cast<int>(i)); node >= 0) nodes.insert(node);
  }
  return nodes;
}

int distance_to(int node, const std::set<int>& from) {
  int least = INT_MAX;
  for (const int other : from)
    if (const int d = ::numa_distance(node, other); d > 0) least = std::min(least, d);
  return least;
}

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

std::vector<int> nodes_with_memory(const std::vector<NodeMemory>& nodes) {
  const auto has_memory = [](const NodeMemory& n) { return n.all > 0 && n.free > n.all / kSpareShare; };
  int nearest = INT_MAX;
  for (const NodeMemory& n : nodes)
    if (has_memory(n)) nearest = std::min(nearest, n.distance);
  std::vector<int> taken;
  for (size_t i = 0; i < nodes.size(); ++i)
    if (has_memory(nodes[i]) && nodes[i].distance == nearest) taken.push_back(static_cast<int>(i));
  return taken;
}

MemoryPolicy::MemoryPolicy(bool wanted) {
  static const bool several = ::numa_available() >= 0 && ::numa_num_configured_nodes() > 1;
  if (!wanted || !several) return;
  const Mask allowed(::numa_get_mems_allowed());
  static const std::set<int> near = nodes_of_process();
  std::vector<NodeMemory> nodes;
  for (int node = 0; node <= ::numa_max_node(); ++node) {
    long long spare = 0;
    const bool ours = ::numa_bitmask_isbitset(allowed.get(), static_cast<unsigned>(node)) != 0;
    const long long size = ours ? ::numa_node_size64(node, &spare) : 0;
    nodes.push_back({static_cast<uint64_t>(std::max(spare, 0LL)), static_cast<uint64_t>(std::max(size, 0LL)),
                     distance_to(node, near)});
  }
  const Mask over(::numa_allocate_nodemask());
  for (const int node : nodes_with_memory(nodes))
    ::numa_bitmask_setbit(over.get(), static_cast<unsigned>(node));
  set_ = ::numa_bitmask_weight(over.get()) > 0 &&
         ::set_mempolicy(MPOL_INTERLEAVE, over->maskp, over->size + 1) == 0;
}

MemoryPolicy::~MemoryPolicy() {
  if (set_) ::set_mempolicy(MPOL_DEFAULT, nullptr, 0);
}

}  // namespace monarch
