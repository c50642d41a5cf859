// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/watch.h"

#include <signal.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>

#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/patience.h"
#include "runtime/node/cgroup.h"
#include "runtime/node/epilog.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

std::string anchor_file(const std::string& key) { return "jobs/" + key + "/anchored"; }   // a line for each
std::string alone_file(const std::string& key) { return "jobs/" + key + "/alone"; }       // since when
std::string known_file(const std::string& key) { return "jobs/" + key + "/slurmstepd"; }  // one that was seen
std::string suspended_file(const std::string& key) { return "jobs/" + key + "/suspended"; }

int64_t boot_seconds() {
  timespec t;
  ::clock_gettime(CLOCK_BOOTTIME, &t);
  return t.tv_sec;
}

std::string text_of(const ProcessId& process) {
  return fmt::format("{} {}", process.pid, process.start_time);
}

// Whose texts, if any, are in a file.
std::vector<ProcessId> noted(const StateDir& state, const std::string& file) {
  const Result<std::string> text = state.read(file);
  std::istringstream words(text.ok() ? *text : "");
  std::vector<ProcessId> found;
  for (ProcessId one; words >> one.pid >> one.start_time;) found.push_back(one);
  return found;
}

void write_anchors(const StateDir& state, const std::string& key, const std::vector<ProcessId>& all) {
  std::string text;
  for (const ProcessId& one : all) text += text_of(one) + "\n";
  if (!all.empty()) (void)state.write(anchor_file(key), text).ok();
}

void forget(const StateDir& state, const std::string& below) {
  ::unlink((state.path() + "/" + below).c_str());
}

// How scontrol suspend stops jobs where processes are tracked by control groups.
bool is_frozen(const Cgroups& groups, const std::vector<std::string>& places) {
  for (const std::string& line : places) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    const std::string controllers = line.substr(first + 1, second - first - 1);
    for (const CgroupHierarchy& h : groups.hierarchies()) {
      if (h.unified != controllers.empty() || (!h.unified && h.controllers != controllers)) continue;
      std::ifstream in(h.mount + line.substr(second + 1) + (h.unified ? "/cgroup.events" : "/freezer.state"));
      for (std::string word, value; in >> word;)
        if (word == "FROZEN" || (word == "frozen" && in >> value && value == "1")) return true;
    }
  }
  return false;
}

std::vector<std::string> groups_of(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/cgroup");
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
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
      const std::vector<std::string> places = groups_of(child);
      if (std::any_of(places.begin(), places.end(),
                      [&](const std::string& p) { return p.find(own) != std::string::npos; }))
        continue;
      if (now != 'T' && !is_frozen(groups, places)) return Tasks::kRun;
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
bool goes_on(const StateDir& state, const std::string& key, const JobRecord& record) {
  const std::vector<ProcessId> known = noted(state, known_file(key));
  if (known.empty() || state.read(suspended_file(key)).ok()) return false;
  return is_running(known.front()) && tasks_of(state, {known.front().pid}, record) == Tasks::kRun;
}

void note_seen(const StateDir& state, const std::string& key, int stepd) {
  const Result<ProcessId> seen = identify(stepd);
  if (seen.ok()) (void)state.write(known_file(key), text_of(*seen)).ok();
}

void send(const ProcessId& process, int number) {
  // The descriptor pins the process: what is identified afterwards is what is signalled.
  const Fd fd(static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0)));
  if (!is_running(process)) return;
  if (fd) ::syscall(SYS_pidfd_send_signal, fd.get(), number, nullptr, 0);
}

// Noted first: whoever finds the note and a job that runs lets the agent go on.
void follow(const StateDir& state, const std::string& key, const JobRecord& record, bool suspended) {
  const bool noted = state.read(suspended_file(key)).ok();
  if (suspended) {
    if (!noted && !state.write(suspended_file(key), "").ok()) return;
    if (state_of(record.agent.pid) != 'T') send(record.agent, SIGSTOP);
  } else if (noted) {
    send(record.agent, SIGCONT);
    forget(state, suspended_file(key));
  }
}

// Whether the job has had no slurmstepd for longer than one that goes on may have none.
bool is_over(const StateDir& state, const std::string& key, bool has_stepd) {
  if (has_stepd) {
    forget(state, alone_file(key));
    return false;
  }
  const Result<std::string> since = state.read(alone_file(key));
  if (!since.ok()) {
    (void)state.write(alone_file(key), std::to_string(boot_seconds())).ok();
    return false;
  }
  // Without `serves` a start was killed in the middle: no step has the agent.
  const bool is_soon = state.read(anchor_file(key)).ok() || !state.read("jobs/" + key + "/serves").ok();
  const int grace = is_soon ? kAnchoredGraceSeconds : kOtherGraceSeconds;
  return boot_seconds() - std::strtoll(since->c_str(), nullptr, 10) >= grace;
}

}  // namespace

void note_anchor(const StateDir& state, const JobOnNode& job) {
  const Result<std::vector<Slurmstepd>> all = slurmstepds();
  if (!all.ok()) return;
  std::vector<ProcessId> found;
  for (const Slurmstepd& s : *all)
    if (s.job == job.job && s.anchor)
      if (const Result<ProcessId> one = identify(s.pid); one.ok()) found.push_back(*one);
  write_anchors(state, job.key(), found);
}

void note_asker(const StateDir& state, const JobOnNode& job, pid_t asker) {
  const std::optional<Slurmstepd> stepd = slurmstepd_at(asker);
  if (!stepd || stepd->job != job.job || !stepd->anchor) return;
  const Result<ProcessId> one = identify(asker);
  std::vector<ProcessId> all = noted(state, anchor_file(job.key()));
  if (!one.ok() || std::find(all.begin(), all.end(), *one) != all.end()) return;
  all.push_back(*one);
  write_anchors(state, job.key(), all);
}

bool is_of_earlier_run(const StateDir& state, const std::string& key) {
  const std::vector<ProcessId> all = noted(state, anchor_file(key));
  return !all.empty() && std::none_of(all.begin(), all.end(), &is_running);
}

bool jobs_need_look(const KeeperRequest&, const StateDir& state) {
  for (const std::string& key : state.jobs())
    if (const Result<JobRecord> record = state.read_record(key);
        record.ok() ? has_begun(record) && !goes_on(state, key, *record) : is_old_note(state, key))
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
    if (!has_begun(record) || goes_on(state, key, *record)) continue;
    if (!all) {
      Result<std::vector<Slurmstepd>> found = slurmstepds();
      if (!found.ok()) return spdlog::debug("keeper: {}", found.error().text);
      all = found.take();
    }
    std::vector<int> stepds;
    for (const Slurmstepd& s : *all)
      if (s.job == record->job.job) stepds.push_back(s.pid);
    follow(state, key, *record, tasks_of(state, stepds, *record) == Tasks::kStopped);
    if (!stepds.empty()) note_seen(state, key, stepds.front());
    if (!is_over(state, key, !stepds.empty())) continue;
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
