// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/life.h"

#include <spdlog/spdlog.h>

#include <set>

namespace monarch {
namespace {

// The agent itself, its catalog, which is in memory on most nodes, and pages that make way.
constexpr uint64_t kAgentBytes = uint64_t{2} << 30;
constexpr uint64_t kReserveShare = 16;  // the agent stops short of its group's limit, by a twentieth
constexpr int kEnterAttempts = 3;
constexpr int kSweepPatienceMs = 100;  // what does not hang in the kernel dies at once

}  // namespace

uint64_t agent_memory(const AgentConfig& agent, const std::vector<TierConfig>& tiers) {
  if (agent.memory_max != AgentConfig::kMemoryAuto) return agent.memory_max;
  uint64_t sum = kAgentBytes;
  for (const TierConfig& t : tiers)
    if (t.kind == TierConfig::Kind::kTmpfs || t.medium == Medium::kRam)
      sum += t.quota.bytes + t.quota.bytes / kReserveShare;
  return sum;
}

bool end_agent(const StateDir& state, const JobRecord& record, int patience_ms) {
  const bool gone = Cgroups().end(state.cgroup_of(record), patience_ms);
  return kill_and_wait(record.agent, gone ? patience_ms : 0);  // where there are no groups
}

void sweep_cgroups(const StateDir& state) {
  const Cgroups groups;
  const std::vector<std::string> found = groups.names(state.cgroup_prefix());
  if (found.empty()) return;
  std::set<std::string> known = {state.helpers_cgroup()};  // read after the groups, made before them
  for (const std::string& key : state.jobs())
    if (const Result<JobRecord> r = state.read_record(key); r.ok()) known.insert(state.cgroup_of(*r));
  for (const std::string& name : state.removals()) known.insert(state.cgroup_prefix() + name);
  for (const std::string& name : found)
    if (!known.count(name) && groups.end(name, kSweepPatienceMs))
      spdlog::info("control group {} removed: no job's on this node", name);
  groups.remove_if_empty(state.helpers_cgroup());  // of a helper that was killed
}

HelperCgroup::HelperCgroup(const StateDir& state) : name_(state.helpers_cgroup()) {
  // Who tidies up may remove it between the two. Without groups it stays where it is, which the log of the
  // job's start has told.
  for (int attempt = 0; attempt < kEnterAttempts; ++attempt) {
    (void)groups_.make(name_, 0).ok();
    if (groups_.enter(name_).ok()) break;
  }
}

HelperCgroup::~HelperCgroup() { groups_.leave(name_); }

}  // namespace monarch
