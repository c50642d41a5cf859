// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/watch.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/node/cgroup.h"
#include "runtime/node/epilog.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

int64_t boot_seconds() { return os::clock_ns(CLOCK_BOOTTIME) / 1'000'000'000; }

// How scontrol suspend stops jobs where processes are tracked by control groups.
bool is_frozen(const std::string& group, const CgroupHierarchy& h) {
  std::ifstream in(group + (h.unified ? "/cgroup.events" : "/freezer.state"));
  for (std::string word, value; in >> word;)
    if (word == "FROZEN" || (word == "frozen" && in >> value && value == "1")) return true;
  return false;
}

// What slurmstepds run: nothing, something that goes on, or nothing that is not stopped.
enum class Tasks { kNone, kRun, kStopped };

// Of the slurmstepds with these pids. What of Monarch's they adopted does not count.
Tasks tasks_of(const StateDir& state, const std::vector<int>& stepds, const JobRecord& record) {
  static const Cgroups groups;
  const std::string own = "/monarch/" + state.cgroup_prefix();
  Tasks found = Tasks::kNone;
  for (const int stepd : stepds) {
    for (const int child : children(stepd)) {
      const char now = state_of(child);
      if (child == record.agent.pid || now == 'Z' || now == 'X') continue;
      bool is_own = false, stopped = now == 'T';
      for (const CgroupHierarchy& h : groups.hierarchies()) {
        const std::string group = group_in("/proc/" + std::to_string(child) + "/cgroup", h);
        is_own |= group.find(own) != std::string::npos;
        stopped = stopped || (!group.empty() && is_frozen(group, h));
      }
      if (is_own) continue;
      if (!stopped) return Tasks::kRun;
      found = Tasks::kStopped;
    }
  }
  return found;
}

// It has an agent, or should have had one long ago: the helper that was to start it was killed.
bool has_begun(const Result<JobRecord>& record) {
  if (!record.ok() || record->agent.pid != 0) return record.ok();
  const int64_t age_s = ::time(nullptr) - static_cast<int64_t>(record->serial / 1000000000);
  return age_s < 0 || age_s > patience::kRetrySeconds;
}

// A look at all processes of a node costs milliseconds: it is taken when the slurmstepd that was seen last is
// gone, or what it runs does not tell.
bool goes_on(const StateDir& state, const JobRecord& record) {
  return !record.suspended && !record.stepd.empty() && is_running(record.stepd.front()) &&
         tasks_of(state, {record.stepd.front().pid}, record) == Tasks::kRun;
}

// Notes the slurmstepds of a job that is locked, and has its agent rest while all that they run does. Whoever
// finds that noted of a job that runs lets the agent go on. False: that could not be noted.
bool follow(const StateDir& state, const std::vector<int>& stepds, JobRecord* record) {
  JobRecord now = *record;
  now.suspended = tasks_of(state, stepds, *record) == Tasks::kStopped;
  now.alone_since = !stepds.empty() ? 0 : now.alone_since > 0 ? now.alone_since : boot_seconds();
  if (const Result<ProcessId> seen = identify(stepds.empty() ? -1 : stepds.front()); seen.ok())
    now.stepd = {*seen};
  if (record->suspended && !now.suspended) (void)signal_and_wait(record->agent, SIGCONT, 0);
  const bool same = now.suspended == record->suspended && now.alone_since == record->alone_since &&
                    now.stepd == record->stepd;
  if (!same && !state.write_record(now).ok()) return false;
  *record = now;
  if (now.suspended && state_of(now.agent.pid) != 'T') (void)signal_and_wait(now.agent, SIGSTOP, 0);
  return true;
}

// Whether the job has had no slurmstepd for longer than one that goes on may have none.
bool is_over(const JobRecord& record) {
  // Without datasets a start was killed in the middle: no step has the agent.
  const bool is_soon = !record.anchors.empty() || record.serves.empty();
  const int grace = is_soon ? kAnchoredGraceSeconds : kOtherGraceSeconds;
  return record.alone_since > 0 && boot_seconds() - record.alone_since >= grace;
}

}  // namespace

void note_anchor(JobRecord* record) {
  const Result<std::vector<Slurmstepd>> all = slurmstepds();
  if (!all.ok()) return;
  for (const Slurmstepd& s : *all)
    if (s.job == record->job.job && s.anchor)
      if (const Result<ProcessId> one = identify(s.pid); one.ok()) record->anchors.push_back(*one);
}

void note_asker(JobRecord* record, pid_t asker) {
  const std::optional<Slurmstepd> stepd = slurmstepd_at(asker);
  if (!stepd || stepd->job != record->job.job || !stepd->anchor) return;
  std::vector<ProcessId>& all = record->anchors;
  if (const Result<ProcessId> one = identify(asker);
      one.ok() && std::find(all.begin(), all.end(), *one) == all.end())
    all.push_back(*one);
}

bool is_of_earlier_run(const JobRecord& record) {
  return !record.anchors.empty() && std::none_of(record.anchors.begin(), record.anchors.end(), &is_running);
}

bool jobs_need_look(const KeeperRequest&, const StateDir& state) {
  for (const std::string& key : state.jobs())
    if (const Result<JobRecord> record = state.read_record(key);
        record.ok() ? has_begun(record) && !goes_on(state, *record) : is_old_note(state, key))
      return true;
  return false;
}

void watch_jobs(const KeeperRequest& request, const StateDir& state) {
  std::optional<std::vector<Slurmstepd>> all;
  for (const std::string& key : state.jobs()) {
    const Result<JobRecord> record = state.read_record(key);
    const bool old_note = !record.ok() && is_old_note(state, key);
    if (old_note) {
      if (const Fd lock = lock_if_free(state.path() + "/jobs/" + key)) forget_note(state, key, lock);
      continue;
    }
    if (!has_begun(record) || goes_on(state, *record)) continue;
    if (!all) {
      Result<std::vector<Slurmstepd>> found = slurmstepds();
      if (!found.ok()) return spdlog::debug("keeper: {}", found.error().text);
      all = found.take();
    }
    std::vector<int> stepds;
    for (const Slurmstepd& s : *all)
      if (s.job == record->job.job) stepds.push_back(s.pid);
    {
      std::optional<LockedJob> job = state.lock_run(*record);
      if (!job || !follow(state, stepds, &job->record) || !is_over(job->record)) continue;
    }
    spdlog::info(
        "JobId={} node={} is over: no slurmstepd, and no epilog came; if the plugin's line is newer than "
        "slurmd, restart slurmd",
        record->job.job, record->job.node);
    const Status ended = end_job({request.state_dir, record->job, record->of_cluster.account_program,
                                  record->of_cluster.config, record->serial});
    if (!ended.ok()) spdlog::warn("JobId={} {}", record->job.job, ended.error().text);
  }
}

}  // namespace monarch
