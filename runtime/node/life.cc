// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/life.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/node/await.h"
#include "runtime/node/slurmstepds.h"

namespace monarch {
namespace {

// The agent itself, its catalog, which is in memory on most nodes, and pages that make way.
constexpr uint64_t kAgentBytes = uint64_t{2} << 30;
constexpr uint64_t kReserveShare = 16;  // the agent stops short of its group's limit, by a twentieth
constexpr int kEnterAttempts = 3;

bool is_in_memory(const std::string& path) {
  const Fd dir(os::openat(AT_FDCWD, path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  struct statfs fs;
  return dir && os::fstatfs(dir.get(), &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC);
}

}  // namespace

uint64_t agent_memory(const AgentConfig& agent, const std::vector<TierConfig>& tiers, uint64_t job_memory) {
  if (agent.memory_max != AgentConfig::kMemoryAuto) return agent.memory_max;
  uint64_t sum = kAgentBytes;
  for (const TierConfig& t : tiers) {
    if (t.kind != TierConfig::Kind::kTmpfs && t.medium != Medium::kRam && !is_in_memory(t.path)) continue;
    const bool charged = t.charge == TierConfig::Charge::kJob;
    const uint64_t bytes = charged ? std::min(t.quota.bytes, job_memory) : t.quota.bytes;
    sum += bytes + bytes / kReserveShare;
  }
  return sum;
}

AgentEnd look_at_agent(const StateDir& state, JobRecord* record) {
  const AgentEnd lives = record->resumed ? AgentEnd::kResumed : AgentEnd::kWithJob;
  if (record->agent.pid == 0 || record->boot != boot_id() || record->stopping || record->shared_group ||
      !Cgroups().exists(state.cgroup_of(*record)))
    return lives;
  // The sweep takes it for dead by its first thread; others of a process that was killed end a little later.
  if (!is_running(record->agent) || is_ending(record->agent)) return AgentEnd::kBefore;
  record->stopping = true;
  (void)state.write_record(*record).ok();
  return lives;
}

bool stop_agent(const StateDir& state, const JobRecord& record, int patience_ms) {
  Cgroups().kill(state.cgroup_of(record));
  signal_and_wait(record.agent, SIGKILL, 0);  // where there are no groups
  return poll_until(state.clock(), state.clock().now_ms() + patience_ms,
                    [&] { return is_ending(record.agent); });
}

bool end_agent(const StateDir& state, const JobRecord& record, int patience_ms) {
  const bool gone = Cgroups(state.clock()).end(state.cgroup_of(record), patience_ms);
  return signal_and_wait(record.agent, SIGKILL, gone ? patience_ms : 0,
                         state.clock());  // where there are no groups
}

std::vector<std::string> stray_cgroups(const StateDir& state) {
  std::vector<std::string> strays = Cgroups().names(state.cgroup_prefix());
  std::erase(strays, state.helpers_cgroup());
  if (strays.empty()) return strays;
  // Read after the groups, which are made after their records; and jobs first, from where these go to
  // removals.
  const Result<std::vector<std::string>> jobs = state.list("jobs");
  if (!jobs.ok()) return {};
  std::set<std::string> known;
  for (const std::string& key : *jobs) {
    const Result<JobRecord> record = state.read_record(key);
    if (record.ok()) known.insert(state.cgroup_of(*record));
    if (!record.ok() && record.error().code != ENOENT && record.error().code != EINVAL) return {};
  }
  const Result<std::vector<std::string>> removals = state.list("removing");
  if (!removals.ok()) return {};
  for (const std::string& name : *removals) known.insert(state.cgroup_prefix() + name);
  std::erase_if(strays, [&](const std::string& name) { return known.count(name) > 0; });
  return strays;
}

void sweep_cgroups(const StateDir& state) {
  const Cgroups groups(state.clock());
  const std::vector<std::string> strays = stray_cgroups(state);
  for (const std::string& name : strays) groups.kill(name);
  const int64_t until_ms = state.clock().now_ms() + patience::kDeathMs;  // for all
  for (const std::string& name : strays)
    if (groups.end(name, static_cast<int>(std::max<int64_t>(until_ms - state.clock().now_ms(), 0))))
      spdlog::info("control group {} removed: no job's on this node", name);
  groups.remove_if_empty(state.helpers_cgroup());  // of a helper that was killed
}

void leave_behind(const StateDir& state, pid_t process) {
  const Cgroups groups(state.clock());
  (void)groups.make(state.helpers_cgroup(), 0).ok();
  (void)groups.enter(state.helpers_cgroup(), process).ok();
  // What it starts from now on is there already.
  for (const int child : children(process)) (void)groups.enter(state.helpers_cgroup(), child).ok();
}

void note_hanging(JobRecord* record, pid_t process) {
  std::vector<ProcessId>& all = record->hanging;
  std::erase_if(all, [](const ProcessId& p) { return !is_running(p); });
  if (const Result<ProcessId> found = identify(process); found.ok()) all.push_back(*found);
}

bool hangs(const JobRecord& record) {
  return std::any_of(record.hanging.begin(), record.hanging.end(), &is_running);
}

Result<std::string> said_by(const StateDir& state, Child* child, int patience_ms, JobRecord* of) {
  constexpr size_t kMost = 1 << 16;
  Result<std::string> said = child->output(patience_ms, kMost, state.clock());
  if (child->left_behind() > 0) {
    leave_behind(state, child->left_behind());
    if (of) note_hanging(of, child->left_behind());
  }
  if (said.ok() || said.error().code != ETIMEDOUT) return said;
  return Error{ETIMEDOUT, fmt::format("not through after {} ms", patience_ms)};
}

Result<std::string> said_in_time(const StateDir& state, int patience_ms, std::vector<int> kept,
                                 const std::function<std::string()>& work, JobRecord* of) {
  Child child([&](int tell) { return say(tell, work()); }, std::move(kept));
  return said_by(state, &child, patience_ms, of);
}

HelperCgroup::HelperCgroup(const StateDir& state, Enters enters)
    : groups_(state.clock()), name_(state.helpers_cgroup()), entered_(enters == Enters::kNow) {
  if (!entered_) return;
  // Who tidies up may remove it between the two. Without groups it stays where it is, which the log of the
  // job's start has told.
  for (int attempt = 0; attempt < kEnterAttempts; ++attempt) {
    (void)groups_.make(name_, 0).ok();
    if (groups_.enter(name_).ok()) break;
  }
}

HelperCgroup::~HelperCgroup() {
  const auto is_there = [this] {
    const std::vector<int> all = groups_.processes(name_);
    return std::find(all.begin(), all.end(), ::getpid()) != all.end();
  };
  if (entered_ || is_there()) groups_.leave(name_);
}

pid_t in_background(const StateDir& state, HelperCgroup::Enters enters, const std::vector<int>& kept,
                    const std::function<bool()>& work) {
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::setsid();
  ::signal(SIGHUP, SIG_IGN);
  (void)leave_standard_streams();
  leave_open(kept);
  bool done = false;
  {
    const HelperCgroup group(state, enters);
    done = work();
  }
  ::_exit(done ? 0 : 1);
}

}  // namespace monarch
