// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/launch.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "runtime/base/argv.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/pipe.h"
#include "runtime/config/dataset_rules.h"
#include "runtime/node/await.h"
#include "runtime/node/cgroup.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/life.h"

namespace monarch {
namespace {

constexpr int kFirstFd = 3;                                            // behind the standard streams
constexpr int kReadyFd = 3, kGoFd = 4, kKeyFd = 5, kFirstStoreFd = 6;  // of the agent
constexpr int kTierFd = 3, kRequestFd = 4, kAnswerFd = 5;              // of a store

// /dev/null in the place of 0 to 2, these (-1: none) in that of 3 and so on, and nothing else: what was open
// is root's log, the job's lock and, where a person runs the helper, a terminal, and the user can get at the
// descriptors of the agent.
void leave_only(std::vector<int> kept) {
  const int end = kFirstFd + static_cast<int>(kept.size());
  for (int& fd : kept)
    if (fd >= 0) fd = ::fcntl(fd, F_DUPFD, end);  // out of the way of what follows
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < kFirstFd; ++fd) ::dup2(null, fd);
  for (size_t i = 0; i < kept.size(); ++i) {
    const int fd = kFirstFd + static_cast<int>(i);
    kept[i] >= 0 ? ::dup2(kept[i], fd) : ::close(fd);
  }
  ::syscall(SYS_close_range, static_cast<unsigned>(end), ~0u, 0u);
}

// Until the parent has recorded who this is: an agent that no record names would outlive its job.
bool wait_recorded() {
  char byte;
  ssize_t n;
  while ((n = ::read(kGoFd, &byte, 1)) < 0 && errno == EINTR) continue;
  return n == 1;
}

// What the owner may have mounted on it is not asked.
bool has_file(const std::string& run_dir, const char* name) {
  return static_cast<bool>(Fd(::open((run_dir + "/" + name).c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)));
}

// In a child: monarchd with these words, and nothing of slurmstepd's. It is what the kernel should kill
// first, not the training. Returns if that fails.
void exec_monarchd(const std::vector<std::string>& words, mode_t mask) {
  std::ofstream("/proc/self/oom_score_adj") << "1000\n";
  ::setsid();
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
  ::umask(mask);
  std::vector<std::string> own = words;
  const std::vector<char*> argv = argv_of(own);
  char path[] = "PATH=/usr/bin:/bin";
  char* environment[] = {path, nullptr};
  ::execve("/proc/self/exe", argv.data(), environment);
}

// In the child: the agent, which becomes the user by itself. Who changes identity after execve(2) cannot be
// traced by that user at any moment; who executes as the user can.
[[noreturn]] void exec_agent(const StateDir& state, const AgentPeers* peers,
                             const std::vector<StartedStore>& stores, const JobRecord& record) {
  std::vector<std::string> words = {"monarchd",
                                    "--config",
                                    record.run_dir + "/" + kAgentConf,
                                    "--datasets-file",
                                    record.run_dir + "/" + kDatasets,
                                    "--grants",
                                    state.path() + "/" + record.grants(),
                                    "--run-dir",
                                    record.run_dir,
                                    "--job-dir",
                                    "monarch/" + record.on_tier(),
                                    "--leave",
                                    record.resumed ? "--resume" : "--watched",
                                    "--ready-fd",
                                    std::to_string(kReadyFd),
                                    "--uid",
                                    std::to_string(record.user.uid),
                                    "--gid",
                                    std::to_string(record.user.gid)};
  std::string groups;
  for (const gid_t g : record.user.groups) groups += (groups.empty() ? "" : ",") + std::to_string(g);
  if (!groups.empty()) words.insert(words.end(), {"--groups", groups});
  if (peers)
    words.insert(words.end(),
                 {"--peers", record.run_dir + "/" + kPeers, "--peer-index", std::to_string(peers->own),
                  "--peer-identity", peers->identity, "--peer-key-fd", std::to_string(kKeyFd)});
  if (has_file(record.run_dir, kExclude))
    words.insert(words.end(), {"--exclude-file", record.run_dir + "/" + kExclude});
  for (size_t i = 0; i < stores.size(); ++i) {
    const int first = kFirstStoreFd + 2 * static_cast<int>(i);
    words.insert(words.end(), {"--store", fmt::format("{}:{}:{}", stores[i].tier, first, first + 1)});
  }
  exec_monarchd(words, 077);
  const std::string error = std::string("exec: ") + std::strerror(errno) + "\n";
  (void)!::write(kReadyFd, error.data(), error.size());
  ::_exit(1);
}

// "ready", with a tab and why it has no peers if that is so, why not, or "" if the agent has not said it in
// time. The agent is its owner's, and so is what comes from it: both bytes and time are bounded in all.
std::string wait_ready(Clock& clock, const Fd& pipe, int patience_ms) {
  constexpr size_t kMostBytes = 4096;
  const int64_t until_ms = clock.now_ms() + patience_ms;
  std::string text;
  while (text.size() < kMostBytes) {
    if (!readable_until(clock, until_ms, pipe.get())) return "";
    char buffer[1024];
    const size_t n = static_cast<size_t>(std::max<ssize_t>(::read(pipe.get(), buffer, sizeof buffer), 0));
    text.append(buffer, n);
    if (text.empty()) return "the agent ended before it was ready";
    if (n == 0 || text.find('\n') != std::string::npos) return text.substr(0, text.find('\n'));
  }
  return "the agent's answer has no end";
}

// The store of one directory, as a process of root's in that control group.
Result<StartedStore> start_store(const StateDir& state, const Cgroups& groups, const JobDir& job,
                                 const JobRecord& record) {
  int requests[2], answers[2];
  if (::pipe2(requests, O_CLOEXEC) != 0) return errno_error("pipe");
  const Fd its_requests(requests[0]);
  StartedStore ends{job.tier, Fd(requests[1]), Fd(), -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, answers) != 0) return errno_error("socketpair");
  const Fd its_answers(answers[0]);
  ends.answers = Fd(answers[1]);
  ::shutdown(its_answers.get(), SHUT_RD);
  ends.store = ::fork();
  if (ends.store < 0) return errno_error("fork");
  if (ends.store > 0) return ends;
  (void)groups.enter(state.cgroup_of(record)).ok();
  leave_only({job.dir.get(), its_requests.get(), its_answers.get()});
  exec_monarchd({"monarchd", "--store", job.tier, "--tier-fd", std::to_string(kTierFd), "--request-fd",
                 std::to_string(kRequestFd), "--answer-fd", std::to_string(kAnswerFd), "--grants",
                 state.path() + "/" + record.grants()},
                022);
  ::_exit(1);
}

void warn_of_group(const JobRecord& record, const Error& error) {
  spdlog::warn("JobId={} the agent has no control group of its own: {}", record.job.job, error.text);
}

}  // namespace

std::vector<StartedStore> start_stores(const StateDir& state, uint64_t memory,
                                       const std::vector<JobDir>& dirs, const JobRecord& record) {
  const Cgroups groups(state.clock());
  const std::string group = state.cgroup_of(record);
  (void)groups.make(group, memory).ok();  // launch_agent() tells of an error
  std::vector<StartedStore> all;
  for (const JobDir& d : dirs) {
    Result<StartedStore> ends = start_store(state, groups, d, record);
    if (ends.ok())
      all.push_back(ends.take());
    else
      spdlog::warn("JobId={} tier {}: its store cannot be started: {}: the job goes without it",
                   record.job.job, d.tier, ends.error().text);
  }
  return all;
}

Result<std::string> launch_agent(const StateDir& state, uint64_t memory, int patience_ms,
                                 const AgentPeers* peers, std::vector<StartedStore> stores,
                                 JobRecord* record) {
  Fd key;
  if (peers) {
    Result<Fd> with_key = pipe_with({reinterpret_cast<const char*>(peers->key.data()), peers->key.size()});
    if (!with_key.ok()) return with_key.error();
    key = with_key.take();
  }
  int ready_ends[2], go_ends[2];
  if (::pipe2(ready_ends, O_CLOEXEC) != 0) return errno_error("pipe");
  const Fd ready(ready_ends[0]);
  Fd tell(ready_ends[1]);
  if (::pipe2(go_ends, O_CLOEXEC) != 0) return errno_error("pipe");
  const Fd wait(go_ends[0]);
  Fd go(go_ends[1]);
  const Cgroups groups(state.clock());
  const std::string group = state.cgroup_of(*record);
  const Status own = groups.make(group, memory);
  if (!own.ok()) warn_of_group(*record, own.error());
  const pid_t pid = ::fork();
  if (pid < 0) {
    const Error failed = errno_error("fork");
    groups.remove_if_empty(group);
    return failed;
  }
  if (pid == 0) {
    std::vector<int> kept = {tell.get(), wait.get(), key.get()};
    for (const StartedStore& s : stores) kept.insert(kept.end(), {s.requests.get(), s.answers.get()});
    leave_only(kept);
    if (!wait_recorded()) ::_exit(1);
    ::fcntl(kGoFd, F_SETFD, FD_CLOEXEC);
    exec_agent(state, peers, stores, *record);
  }
  tell.reset();
  const Status entered = groups.enter(group, pid);
  if (own.ok() && !entered.ok()) warn_of_group(*record, entered.error());
  record->shared_group = !own.ok() || !entered.ok();
  std::vector<pid_t> children = {pid};
  for (StartedStore& s : stores) {
    children.push_back(s.store);
    s.requests.reset();
    s.answers.reset();
  }
  Result<ProcessId> agent = identify(pid);
  if (agent.ok()) record->agent = *agent;
  Status s = agent.ok() ? state.write_record(*record) : Status(agent.error());
  if (s.ok() && ::write(go.get(), "", 1) != 1) s = errno_error("tell the agent to begin");
  const std::string said = s.ok() ? wait_ready(state.clock(), ready, patience_ms) : "";
  const size_t word = std::min(said.find('\t'), said.size());
  record->late = s.ok() && said.empty();
  if (record->late)
    spdlog::warn("JobId={} the agent is not ready after {} ms; tasks use it from when it is", record->job.job,
                 patience_ms);
  else if (s.ok() && said.starts_with(kRefusedWord))
    s = Error{kRefused, said.substr(word + 1)};
  else if (s.ok() && said.substr(0, word) != "ready")
    s = Error{ECHILD, said};
  if (!s.ok()) {
    for (const pid_t p : children) ::kill(p, SIGKILL);
    groups.end(group, patience::kHookStepMs);
    for (const pid_t p : children)
      await_child(state.clock(), p, state.clock().now_ms() + patience::kHookStepMs);
    return s.error();
  }
  return said.substr(std::min(word + 1, said.size()));
}

}  // namespace monarch
