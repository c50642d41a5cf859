// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/resume.h"

#include <fcntl.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/node/await.h"
#include "runtime/node/cgroup.h"
#include "runtime/node/identity.h"
#include "runtime/node/job_peers.h"
#include "runtime/node/launch.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

// Of one in control groups of its own: elsewhere Slurm may have ended it. `serves`: the job's start has come
// to its end.
bool is_missed(const JobRecord& record) {
  return record.agent.pid != 0 && !record.resumed && !record.stopping && !record.accounted &&
         !record.shared_group && record.has_roots_tiers() && !record.serves.empty() &&
         record.boot == boot_id() && (!is_running(record.agent) || is_ending(record.agent));
}

// What it was made to start, and its stores.
bool end_rest(const StateDir& state, const JobRecord& record, int64_t end_ms) {
  const Cgroups groups(state.clock());
  const std::string group = state.cgroup_of(record);
  groups.kill(group);
  return poll_until(state.clock(), end_ms, [&] { return groups.processes(group).empty(); });
}

std::vector<JobDir> open_job_dirs(const JobRecord& record) {
  std::vector<JobDir> dirs;
  for (const TierRecord& tier : record.tiers) {
    const Result<Fd> all = open_tier_jobs(tier.path);
    constexpr int kList = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    Fd dir(all.ok() ? os::openat(all->get(), record.on_tier().c_str(), kList) : -1);
    if (dir) dirs.push_back({tier.name, std::move(dir)});
  }
  return dirs;
}

Status resume(const StateDir& state, JobRecord* record, int64_t end_ms) {
  // Whatever becomes of this one, there is no other.
  record->resumed = true;
  MONARCH_TRY(state.write_record(*record));
  const std::optional<AgentPeers> peers = peers_of(*record);
  if (record->peers && !peers) return bad_input("the key of its peers is not known any more");
  std::vector<JobDir> dirs = open_job_dirs(*record);
  if (dirs.size() != record->tiers.size()) return Error{ENOENT, "a tier is not there"};
  std::vector<StartedStore> stores = start_stores(state, record->agent_memory, dirs, *record);
  if (stores.size() != dirs.size()) return Error{ECHILD, "a store cannot be started"};
  const int left_ms = std::max(patience::kLeastMs, static_cast<int>(end_ms - state.clock().now_ms()));
  const Result<std::string> launched = launch_agent(state, record->agent_memory, left_ms,
                                                    peers ? &*peers : nullptr, std::move(stores), record);
  return launched.ok() ? Status() : Status(launched.error());
}

}  // namespace

bool agents_are_missed(const KeeperRequest&, const StateDir& state) {
  for (const std::string& key : state.jobs())
    if (const Result<JobRecord> record = state.read_record(key); record.ok() && is_missed(*record))
      return true;
  return false;
}

void resume_agents(const KeeperRequest&, const StateDir& state) {
  for (const std::string& key : state.jobs()) {
    const Result<JobRecord> seen = state.read_record(key);
    if (!seen.ok() || !is_missed(*seen)) continue;
    std::optional<LockedJob> job = state.lock_run(*seen);
    const int64_t end_ms = state.clock().now_ms() + patience::kHookStepMs;  // the job's epilog waits
    if (!job || !is_missed(job->record) || !has_slurmstepd(seen->job.job) ||
        !end_rest(state, job->record, end_ms))
      continue;
    const Status resumed = resume(state, &job->record, end_ms);
    const std::string what =
        fmt::format("JobId={} node={} its agent was killed", seen->job.job, seen->job.node);
    if (resumed.ok())
      spdlog::warn("{}: another one goes on for it", what);
    else
      spdlog::warn("{}, and no other can go on for it: {}", what, resumed.error().text);
  }
}

}  // namespace monarch
