// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/start.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <strings.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "runtime/base/argv.h"
#include "runtime/base/memory.h"
#include "runtime/base/os.h"
#include "runtime/base/paths.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/node/memory_tier.h"
#include "runtime/node/removal.h"
#include "runtime/node/sweep.h"

namespace monarch {
namespace {

constexpr int kLockPatienceMs = 1500;
constexpr int kKillPatienceMs = 500;
constexpr int kReadyPatienceMs = 1000;  // a PFS that hangs does not hold up the job's start

// ClusterName of slurm.conf, which is root's; "cluster" if it cannot be found out.
std::string cluster_name(const std::string& slurm_conf) {
  std::ifstream in(slurm_conf.empty() ? "/etc/slurm/slurm.conf" : slurm_conf);
  constexpr char kKey[] = "ClusterName=";
  for (std::string line; std::getline(in, line);) {
    if (::strncasecmp(line.c_str(), kKey, sizeof kKey - 1) != 0) continue;
    std::string name =
        line.substr(sizeof kKey - 1, line.find_first_of(" \t#", sizeof kKey - 1) - (sizeof kKey - 1));
    if (is_plain_name(name)) return name;
  }
  return "cluster";
}

// Bytes that other jobs on this node have reserved on the tier at `path`, those that are being removed
// included.
uint64_t reserved_by_others(const StateDir& state, const JobOnNode& job, const std::string& path) {
  uint64_t sum = 0;
  const auto add = [&](const Result<JobRecord>& other) {
    if (!other.ok() || other->job.node != job.node) return;  // slurmd -N: several nodes on this machine
    for (const TierRecord& t : other->tiers)
      if (t.path == path) sum += t.quota;
  };
  for (const std::string& key : state.jobs())
    if (key != job.key()) add(state.read_record(key));
  for (const std::string& removal : state.removals()) add(state.read_removal(removal));
  return sum;
}

// Makes <tier>/monarch (root's, 0711) and in it `name` for the user. Every step by descriptor: a user who
// can write the tier's directory must not get root to touch anything else.
Status make_job_dir(const TierConfig& tier, const std::string& name, const User& user) {
  const std::string what = "tier " + tier.name + ": " + tier.path;
  const Fd base(os::openat(AT_FDCWD, tier.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct stat st;
  if (!base || os::fstat(base.get(), &st) != 0) return errno_error(what);
  if ((st.st_mode & S_IWOTH) && !(st.st_mode & S_ISVTX))
    return Error{EPERM, what + ": all can write it and rename what is in it; run chmod +t " + tier.path};
  if (os::mkdirat(base.get(), "monarch", 0711) != 0 && errno != EEXIST) return errno_error(what + "/monarch");
  const Result<Fd> all = open_tier_jobs(tier.path);
  if (!all.ok()) return all.error();
  if (::fchmod(all->get(), 0711) != 0) return errno_error(what + "/monarch");
  if (os::mkdirat(all->get(), name.c_str(), 0700) != 0) return errno_error(what + "/monarch/" + name);
  const Fd own(os::open_beneath(all->get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!own || ::fchown(own.get(), user.uid, user.gid) != 0) return errno_error(what + "/monarch/" + name);
  if (tier.kind == TierConfig::Kind::kTmpfs) return mount_tmpfs(own, tier.quota.bytes, user);
  return {};
}

// The tiers this job gets, with quotas in bytes. One that cannot be used is left out, with a line in the log.
std::vector<TierConfig> job_tiers(const StateDir& state, const StartRequest& request, const Config& config) {
  std::vector<TierConfig> wanted = config.tiers;
  if (wanted.empty()) {
    Result<std::vector<Candidate>> found = discover({});
    if (found.ok()) {
      wanted = chosen(*found);
    } else {
      spdlog::warn("JobId={} discovery of tiers: {}", request.job.job, found.error().text);
    }
  }
  std::vector<TierConfig> tiers;
  for (TierConfig tier : wanted) {
    struct statvfs fs;
    if (::statvfs(tier.path.c_str(), &fs) != 0) {
      spdlog::warn("JobId={} tier {} ({}): {}", request.job.job, tier.name, tier.path, std::strerror(errno));
      continue;
    }
    const bool memory = tier.kind == TierConfig::Kind::kTmpfs;
    const uint64_t quota = tier.quota.of(memory ? total_memory() : uint64_t{fs.f_blocks} * fs.f_frsize);
    const uint64_t taken = reserved_by_others(state, request.job, tier.path);
    tier.quota = Quota{quota - std::min(quota, taken), -1};
    if (memory) tier.min_free = Quota{};  // nobody else is on it
    if (tiers.size() < kMaxTiers) tiers.push_back(std::move(tier));
  }
  return tiers;
}

std::string quota_text(const Quota& q) {
  return q.percent < 0 ? std::to_string(q.bytes) : fmt::format("{}%", q.percent);
}

// What the agent is told, in the words of monarch.conf(5).
std::string agent_conf(const AgentConfig& agent, const std::vector<TierConfig>& tiers, uint32_t nodes) {
  AgentConfig mine = agent;
  mine.divide_rates(nodes);
  const bool prefetch = agent.prefetch == AgentConfig::Prefetch::kOn ||
                        (agent.prefetch == AgentConfig::Prefetch::kAuto && nodes <= 1);
  std::string text = fmt::format(
      "# Written when the job started: its share of this node.\n[agent]\nthreads = {}\nwalk_threads = {}\n"
      "stage_wait_max = {}\nprefetch = {}\nconsistency = {}\nmetadata = {}\nbackground_io = {}\n"
      "pfs_bandwidth = {}\npfs_opens = {}\npfs_stats = {}\ntier_bandwidth = {}\nlog_level = {}\n",
      mine.threads, mine.walk_threads, mine.stage_wait_max, prefetch ? "on" : "off",
      consistency_name(mine.consistency), metadata_name(mine.metadata), io_name(mine.background_io),
      mine.pfs_bandwidth, mine.pfs_opens, mine.pfs_stats, mine.tier_bandwidth, mine.log_level);
  for (const TierConfig& t : tiers)
    text += fmt::format("\n[tier.{}]\npath = {}\nquota = {}\nmedium = {}\nmin_free = {}\n", t.name, t.path,
                        quota_text(t.quota), medium_name(t.medium), quota_text(t.min_free));
  return text;
}

Status make_run_dir(const std::string& path, const std::string& conf, const User& user) {
  if (::mkdir(path.c_str(), 0700) != 0) return errno_error("make " + path);  // its parent is root's
  const Fd dir(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  const Fd file(::openat(dir.get(), "agent.conf", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!dir || !file || ::fchmod(file.get(), 0644) != 0 ||
      ::write(file.get(), conf.data(), conf.size()) != static_cast<ssize_t>(conf.size()) ||
      ::fchown(dir.get(), user.uid, user.gid) != 0)
    return errno_error("fill " + path);
  return {};
}

constexpr int kReadyFd = 3, kGoFd = 4;

// /dev/null in the place of 0 to 2, `tell` in that of kReadyFd, `go` in that of kGoFd, and nothing else: what
// was open is root's log, the job's lock and, where a person runs the helper, a terminal, and the user can
// get at the descriptors of the agent.
void leave_only(int tell, int go) {
  tell = ::fcntl(tell, F_DUPFD, kGoFd + 1);  // out of the way of what follows
  go = ::fcntl(go, F_DUPFD, kGoFd + 1);
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < kReadyFd; ++fd) ::dup2(null, fd);
  ::dup2(tell, kReadyFd);
  ::dup3(go, kGoFd, O_CLOEXEC);
  if (::syscall(SYS_close_range, kGoFd + 1u, ~0u, 0u) != 0)
    for (int fd = kGoFd + 1; fd < 4096; ++fd) ::close(fd);
}

// Until the parent has recorded who this is: an agent that no record names would outlive its job.
bool wait_recorded() {
  char byte;
  ssize_t n;
  while ((n = ::read(kGoFd, &byte, 1)) < 0 && errno == EINTR) continue;
  return n == 1;
}

// In the child: an ordinary process of the user's, with nothing of root's or slurmstepd's.
[[noreturn]] void exec_agent(const JobRecord& record, const std::vector<std::string>& datasets) {
  std::ofstream("/proc/self/oom_score_adj") << "1000\n";
  ::setsid();
  rlimit none{0, 0}, files;
  ::setrlimit(RLIMIT_CORE, &none);
  if (::getrlimit(RLIMIT_NOFILE, &files) == 0) {
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);
  }
  ::umask(077);
  std::string error;
  if (const Status s = become(record.user); !s.ok()) error = s.error().text;
  if (error.empty()) {
    std::vector<std::string> words = {"monarchd",
                                      "--config",
                                      record.run_dir + "/agent.conf",
                                      "--run-dir",
                                      record.run_dir,
                                      "--job-dir",
                                      "monarch/" + record.name,
                                      "--leave",
                                      "--ready-fd",
                                      std::to_string(kReadyFd)};
    for (const std::string& d : datasets) words.insert(words.end(), {"--dataset", d});
    const std::vector<char*> argv = argv_of(words);
    char path[] = "PATH=/usr/bin:/bin";
    char* environment[] = {path, nullptr};
    ::execve("/proc/self/exe", argv.data(), environment);
    error = std::string("exec: ") + std::strerror(errno);
  }
  error += "\n";
  (void)!::write(kReadyFd, error.data(), error.size());
  ::_exit(1);
}

// "ready", why not, or "" if the agent has not said anything in time.
std::string wait_ready(const Fd& pipe) {
  std::string text;
  for (;;) {
    pollfd p = {pipe.get(), POLLIN, 0};
    const int rc = ::poll(&p, 1, kReadyPatienceMs);
    if (rc < 0 && errno == EINTR) continue;
    if (rc == 0) return text;
    char buffer[1024];
    const ssize_t n = ::read(pipe.get(), buffer, sizeof buffer);
    if (n > 0) text.append(buffer, static_cast<size_t>(n));
    if (n <= 0 && text.empty()) return "the agent ended before it was ready";
    if (n <= 0 || text.back() == '\n') break;
  }
  return text.substr(0, text.find('\n'));
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    if (end > at) parts.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Forks the agent, records it, and waits for it, as long as a hook may.
Status run_agent_child(const StateDir& state, const std::vector<std::string>& datasets, JobRecord* record) {
  int ready_ends[2], go_ends[2];
  if (::pipe2(ready_ends, O_CLOEXEC) != 0) return errno_error("pipe");
  const Fd ready(ready_ends[0]);
  Fd tell(ready_ends[1]);
  if (::pipe2(go_ends, O_CLOEXEC) != 0) return errno_error("pipe");
  const Fd wait(go_ends[0]);
  Fd go(go_ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return errno_error("fork");
  if (pid == 0) {
    leave_only(tell.get(), wait.get());
    if (!wait_recorded()) ::_exit(1);
    exec_agent(*record, datasets);
  }
  tell.reset();
  Result<ProcessId> agent = identify(pid);
  if (agent.ok()) record->agent = *agent;
  Status s = agent.ok() ? state.write_record(*record) : Status(agent.error());
  if (s.ok() && ::write(go.get(), "", 1) != 1) s = errno_error("tell the agent to begin");
  const std::string said = s.ok() ? wait_ready(ready) : "";
  if (s.ok() && said.empty())
    spdlog::warn("JobId={} the agent is not ready after {} ms; tasks use it from when it is", record->job.job,
                 kReadyPatienceMs);
  else if (s.ok() && said != "ready")
    s = Error{ECHILD, said};
  if (!s.ok()) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  return s;
}

// The directories and the agent of a job that has none yet. `record` says what was made, also on an error.
Status start_fresh(const StateDir& state, const StartRequest& request, const Config& config,
                   const std::vector<std::string>& datasets, JobRecord* record) {
  const std::vector<TierConfig> tiers = job_tiers(state, request, config);
  for (const TierConfig& tier : tiers)
    record->tiers.push_back({tier.name, medium_name(tier.medium), tier.path, tier.quota.bytes});
  // Recorded before anything is made, so that the epilog finds it whatever happens to this process.
  MONARCH_TRY(state.write_record(*record));
  std::vector<TierConfig> usable;
  for (const TierConfig& tier : tiers) {
    const Status made = make_job_dir(tier, record->name, request.user);
    if (made.ok()) {
      usable.push_back(tier);
    } else {
      spdlog::warn("JobId={} {}", request.job.job, made.error().text);
      std::erase_if(record->tiers, [&](const TierRecord& t) { return t.name == tier.name; });
    }
  }
  if (usable.empty()) return Error{ENOSPC, "no tier can be used on this node; monarchctl tiers tells why"};
  MONARCH_TRY(make_run_dir(record->run_dir, agent_conf(config.agent, usable, request.nodes), request.user));
  return run_agent_child(state, datasets, record);
}

// Without the file no job has Monarch; the code is not that of "nothing is wanted".
Result<Config> load_existing(const std::string& file) {
  Result<Config> config = load_config(file);
  if (!config.ok()) return Error{EINVAL, config.error().text};
  return config;
}

std::vector<std::string> tier_paths(const Config& config) {
  std::vector<std::string> paths;
  for (const TierConfig& t : config.tiers) paths.push_back(t.path);
  return paths;
}

std::string wanted_file(const JobOnNode& job) { return "jobs/" + job.key() + "/wanted"; }
std::string serves_file(const JobOnNode& job) { return "jobs/" + job.key() + "/serves"; }
std::string failed_file(const JobOnNode& job) { return "jobs/" + job.key() + "/failed"; }

// ENOENT: nothing is wanted.
Result<std::string> datasets_of(const StateDir& state, const StartRequest& request) {
  if (!request.datasets.empty()) return request.datasets;
  return state.read(wanted_file(request.job));
}

JobRecord new_record(const StateDir& state, const StartRequest& request) {
  JobRecord record;
  record.job = request.job;
  record.restart = request.restart;
  record.cluster = cluster_name(request.slurm_conf);
  record.name = record.cluster + "." + std::to_string(request.job.job) + "." +
                std::to_string(request.restart) + "." + request.job.node;
  record.serial = static_cast<uint64_t>(os::clock_ns(CLOCK_REALTIME));
  record.user = request.user;
  record.boot = boot_id();
  record.run_dir = state.run_dir(record.name);
  record.nodes = request.nodes;
  record.first_node = request.first_node;
  return record;
}

// The job was requeued before its epilog was through with the last run, or the node was rebooted, or a start
// was killed in the middle.
Status clear_last_run(const StateDir& state, JobRecord last, Result<Fd>* lock) {
  const JobOnNode job = last.job;
  if (last.boot == boot_id()) kill_and_wait(last.agent, kKillPatienceMs);
  MONARCH_TRY(set_aside(state, last));
  std::vector<Removal> removals;
  removals.push_back({std::move(last), lock->take()});
  remove_in_background(state, std::move(removals), 0);
  *lock = state.lock_job(job, true, kLockPatienceMs);
  return lock->ok() ? Status() : Status(lock->error());
}

// What this request wants and the job's agent does not serve, as a text for the user; or "".
std::string not_served(const StateDir& state, const StartRequest& request) {
  const Result<std::string> serves = state.read(serves_file(request.job));
  if (!serves.ok()) return "";
  const std::vector<std::string> roots = split(*serves, ':');
  std::string missing;
  for (const std::string& given : split(request.datasets, ':')) {
    const Result<std::string> path = absolute_path(given);
    if (path.ok() && std::none_of(roots.begin(), roots.end(), [&](const std::string& root) {
          const Result<std::string> clean = absolute_path(root);
          return clean.ok() && is_below(*path, *clean);
        }))
      missing += (missing.empty() ? "" : ":") + given;
  }
  if (missing.empty()) return "";
  return missing + " is not staged: this job's agent on " + request.job.node + " serves " + *serves +
         " since an earlier step; name all of them when the job is submitted: --monarch-dataset=" + *serves +
         ":" + missing;
}

// The job's first try on this node, by another step; its first line is for this run and boot only.
std::string run_of(const StartRequest& request) {
  return std::to_string(request.restart) + " " + boot_id() + "\n";
}

Status failed_before(const StateDir& state, const StartRequest& request, const std::string& datasets) {
  const Result<std::string> failure = state.read(failed_file(request.job));
  const std::string run = run_of(request);
  if (!failure.ok() || failure->rfind(run, 0) != 0) return {};
  const size_t reason_end = failure->find('\n', run.size());
  if (reason_end == std::string::npos || failure->substr(reason_end + 1) != datasets) return {};
  return Error{EALREADY, failure->substr(run.size(), reason_end - run.size())};
}

// Leaves nothing but that note, which goes with the job's epilog.
void note_failure(const StateDir& state, const JobRecord& record, const StartRequest& request,
                  const std::string& datasets, const std::string& reason) {
  (void)remove_job_files(state, record).ok();
  ::unlink((state.path() + "/jobs/" + record.job.key() + "/record.json").c_str());
  const Status noted =
      state.write(failed_file(record.job), run_of(request) + one_line(reason) + "\n" + datasets);
  if (!noted.ok()) spdlog::warn("JobId={} {}", record.job.job, noted.error().text);
}

}  // namespace

Status note_wanted(const StartRequest& request) {
  Result<StateDir> state = StateDir::open(request.state_dir);
  if (!state.ok()) return state.error();
  sweep(*state, request.job, {});
  Result<Fd> lock = state->lock_job(request.job, true, kLockPatienceMs);
  if (!lock.ok()) return lock.error();
  return state->write(wanted_file(request.job), request.datasets);
}

Result<Started> start_agent(const StartRequest& request) {
  Result<StateDir> state = StateDir::open(request.state_dir);
  if (!state.ok()) return state.error();
  const bool known = state->read_record(request.job.key()).ok();
  Result<Config> config = load_existing(request.config);
  if (!known) sweep(*state, request.job, config.ok() ? tier_paths(*config) : std::vector<std::string>());
  Result<Fd> lock = state->lock_job(request.job, !request.datasets.empty(), kLockPatienceMs);
  if (!lock.ok()) return lock.error();
  Result<std::string> datasets = datasets_of(*state, request);
  if (!datasets.ok()) return datasets.error();
  if (Result<JobRecord> last = state->read_record(request.job.key()); last.ok()) {
    // Without that file it is what a helper left that was killed in the middle.
    const bool started = state->read(serves_file(request.job)).ok();
    if (last->restart == request.restart && last->boot == boot_id() && started)
      return Started{last->run_dir, false, not_served(*state, request)};
    MONARCH_TRY(clear_last_run(*state, last.take(), &lock));
  }
  if (Status before = failed_before(*state, request, *datasets); !before.ok()) return before.error();

  JobRecord record = new_record(*state, request);
  Status started = config.ok() ? start_fresh(*state, request, *config, split(*datasets, ':'), &record)
                               : Status(config.error());
  if (started.ok()) started = state->write(serves_file(request.job), *datasets);
  if (!started.ok()) {
    note_failure(*state, record, request, *datasets, started.error().text);
    return started.error();
  }
  return Started{record.run_dir, true, ""};
}

}  // namespace monarch
