// SPDX-License-Identifier: Apache-2.0
// monarchctl run: starts an agent, runs a command with the preload library, removes all traces.
//
// Who dies when: the agent holds the read end of a pipe (the lifeline) whose write end only monarchctl
// has, so it ends and cleans up when monarchctl is gone; when the agent is killed, another one goes on for
// it, once; when that is gone, too, monarchctl cleans up after the command; what is left when both were
// killed at once is swept by the next run.
#include <fcntl.h>
#include <fmt/core.h>
#include <poll.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/output.h"
#include "admin/tiers.h"
#include "admin/wait.h"
#include "runtime/agent/membership.h"
#include "runtime/agent/sweep.h"
#include "runtime/agent/use_watch.h"
#include "runtime/base/argv.h"
#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/base/paths.h"
#include "runtime/base/pipe.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/config/user_options.h"
#include "runtime/config/values.h"
#include "runtime/hierarchy/tier.h"
#include "runtime/metadata/board.h"
#include "runtime/node/closing.h"
#include "runtime/node/job_report.h"

extern char** environ;

namespace monarch::admin {
namespace {

constexpr int kOwnFailure = 125, kNotExecutable = 126, kNotFound = 127;
constexpr int kReadyPatienceMs = 30000;         // the PFS may be slow to show the dataset's root
constexpr char kStandardOutput[] = "-";         // as a report's name: behind what the command wrote
constexpr char kIdentity[] = "run";             // of a key that a person made
constexpr std::string_view kAlone = "ready\t";  // and why the agent has no peers
constexpr char kStageAll[] = "agent.prefetch_burst=4096P";  // AgentConfig::kBurstAll
constexpr int kStopPatienceMs = 5000, kKillPatienceMs = 1000;

struct RunOptions {
  std::vector<std::string> datasets, tiers, command;
  std::string config, report;
  std::string peers, peer_key;  // files
  uint32_t peer_index = 0;
  bool json = false;  // the report, on standard output
  std::string wait = "none", hints = "off";
  StagingWait staged;
};

// A line on standard error.
void tell(const std::string& text) { (void)fail("run", text); }

std::string run_base() {
  // The catalog is read at each open: in memory, if there is a place for it.
  struct stat st;
  for (const char* dir : {static_cast<const char*>("/dev/shm"), static_cast<const char*>(::getenv("TMPDIR"))})
    if (dir && ::stat(dir, &st) == 0 && S_ISDIR(st.st_mode) && ::access(dir, W_OK | X_OK) == 0) return dir;
  return "/tmp";
}

std::string random_id() {
  std::random_device random;
  return fmt::format("{}{}.{}.{:08x}", kUserDirPrefix, ::geteuid(), ::getpid(), random());
}

// Whether all of the board is there still: what is mapped of a file beyond its end is not to be touched.
bool is_whole(const Fd& board) {
  struct stat st;
  return board && ::fstat(board.get(), &st) == 0 && st.st_size >= static_cast<off_t>(sizeof(Board));
}

// The directories of this run, removed when it goes out of scope.
class RunDirs {
 public:
  explicit RunDirs(const Config& config) : config_(config), run_dir_(run_base() + "/" + random_id()) {}
  RunDirs(const RunDirs&) = delete;
  RunDirs& operator=(const RunDirs&) = delete;
  ~RunDirs() {
    for (const Made& made : made_)
      if (const Status s = remove(made); !s.ok()) tell("clean up: " + s.error().text);
  }

  const std::string& id() const { return id_; }  // of the directories on tiers
  const std::string& run_dir() const { return run_dir_; }

  // Where all users can make directories, one may take a name as soon as it is seen: so those on tiers have
  // another one than the run directory, and yet another one if one of several is taken. Each is locked, as
  // the agent does it, so that no sweep takes them for left-overs while only this process lives. Where a
  // tier's cannot be made the agent tells.
  Status make() {
    MONARCH_TRY(make_dir(run_dir_));
    for (int i = 0; i < kNames && !make_on_tiers(); ++i) {
      for (; made_.size() > 1; made_.pop_back()) (void)remove(made_.back()).ok();
      id_ = random_id();
    }
    return {};
  }

 private:
  static constexpr int kNames = 16;
  struct Made {
    std::string path;
    Fd dir;  // locked
  };

  // Whatever mode the command has given it.
  static Status remove(const Made& made) { return remove_left_over({made.dir.get(), AT_FDCWD, made.path}); }
  Status make_dir(const std::string& path) {
    if (::mkdir(path.c_str(), kUserDirMode) != 0) return errno_error("make " + path);
    made_.push_back({path, Fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC))});
    const int dir = made_.back().dir.get();
    return ::flock(dir, LOCK_SH | LOCK_NB) == 0 ? Status() : Status(errno_error("lock " + path));
  }
  // False: one of them is taken.
  bool make_on_tiers() {
    std::set<std::pair<dev_t, ino_t>> places;  // tiers may be one directory
    for (const TierConfig& tier : config_.tiers) {
      struct stat st;
      if (::stat(tier.path.c_str(), &st) != 0 || !places.emplace(st.st_dev, st.st_ino).second) continue;
      const Status made = make_dir(tier.path + "/" + id_);
      if (!made.ok() && made.error().code == EEXIST) return false;
    }
    return true;
  }

  const Config& config_;
  const std::string run_dir_;
  std::string id_ = random_id();
  std::vector<Made> made_;  // the run directory first
};

// The agent's process, and the pipe whose end tells it that we are gone.
class AgentProcess {
 public:
  AgentProcess() = default;
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;
  ~AgentProcess() { stop(); }

  // Starts it and waits until it serves. The error is the agent's own. `config`: a file, or "".
  Status start(const RunOptions& options, const std::string& config, const std::vector<std::string>& datasets,
               const std::optional<JobKey>& key, const RunDirs& dirs) {
    words_ = {part_of_monarch("monarchd", "sbin", SBINDIR), "--run-dir", dirs.run_dir(), "--job-dir",
              dirs.id()};
    if (!config.empty()) words_.insert(words_.end(), {"--config", config});
    if (options.staged.percent > 0) words_.insert(words_.end(), {"--set", kStageAll});
    for (const std::string& t : options.tiers) words_.insert(words_.end(), {"--tier", t});
    for (const std::string& d : datasets) words_.insert(words_.end(), {"--dataset", d});
    key_ = key;
    if (key)
      words_.insert(words_.end(), {"--peers", options.peers, "--peer-index",
                                   std::to_string(options.peer_index), "--peer-identity", kIdentity});
    errors_ = dirs.run_dir() + "/monarchd.err";
    Fd ready;
    MONARCH_TRY(spawn(&ready));
    MONARCH_TRY(wait_ready(ready));
    serves_ = true;
    return {};
  }

  // A child has ended while the command ran. Of an agent that was killed another one takes the place, once.
  void ended(pid_t pid, int status) {
    if (pid != pid_) return;
    pid_ = -1;
    tell_failure(status);
    if (status == 0 || !serves_ || std::exchange(end_, AgentEnd::kResumed) == AgentEnd::kResumed) return;
    Fd ready;  // nobody waits for it
    if (const Status s = spawn(&ready); !s.ok()) tell("start another agent: " + s.error().text);
  }

  bool lives() const {
    siginfo_t info = {};
    return pid_ > 0 && ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
  }
  AgentEnd end() const { return lives() ? end_ : AgentEnd::kBefore; }

  // SIGTERM, and SIGKILL if it does not end; reaps it. One that hangs in a PFS call ends when that returns:
  // it is not waited for.
  void stop() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGTERM);
    lifeline_.reset();
    if (const std::optional<int> status = reap(kStopPatienceMs)) {
      tell_failure(*status);
    } else {
      tell(fmt::format("the agent needs more than {} s to end; removing the copies", kStopPatienceMs / 1000));
      ::kill(pid_, SIGKILL);
      if (!reap(kKillPatienceMs))
        tell(fmt::format("the agent (pid {}) hangs in the dataset's file system; not waited for", pid_));
    }
    pid_ = -1;
  }

 private:
  // `ready`: where it says that it is.
  Status spawn(Fd* ready) {
    int ends[2], life[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe");
    *ready = Fd(ends[0]);
    const Fd ready_write(ends[1]);
    if (::pipe2(life, O_CLOEXEC) != 0) return errno_error("pipe");
    const Fd life_read(life[0]);
    lifeline_ = Fd(life[1]);
    std::vector<std::string> words = words_;
    words.push_back(end_ == AgentEnd::kResumed ? "--resume" : "--watched");
    words.insert(words.end(), {"--ready-fd", std::to_string(ready_write.get()), "--lifeline-fd",
                               std::to_string(life_read.get())});
    Fd key_read;
    if (key_) {
      Result<Fd> pipe = pipe_with({reinterpret_cast<const char*>(key_->data()), key_->size()});
      if (!pipe.ok()) return pipe.error();
      key_read = pipe.take();
      words.insert(words.end(), {"--peer-key-fd", std::to_string(key_read.get())});
    }
    const std::vector<char*> argv = argv_of(words);
    // Not on our own 0-2: when it hangs in a PFS call, who reads our output must still see its end.
    const Fd null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    const Fd errors(::open(errors_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    if (!null || !errors) return errno_error("make " + errors_);
    pid_ = ::fork();
    if (pid_ < 0) return errno_error("fork");
    if (pid_ == 0) {
      ::setsid();  // a Ctrl-C at the terminal is for the command
      ::dup2(null.get(), 0);
      ::dup2(errors.get(), 1);
      ::dup2(errors.get(), 2);
      ::fcntl(ready_write.get(), F_SETFD, 0);
      ::fcntl(life_read.get(), F_SETFD, 0);
      if (key_read) ::fcntl(key_read.get(), F_SETFD, 0);
      ::unsetenv("LD_PRELOAD");
      ::execv(argv[0], argv.data());
      const std::string text = "start " + words[0] + ": " + std::strerror(errno) + "\n";
      (void)!::write(ready_write.get(), text.data(), text.size());
      ::_exit(127);
    }
    return {};
  }

  // Its status, as of waitpid(2), if it ended within that time.
  std::optional<int> reap(int patience_ms) const {
    for (int waited = 0; waited < patience_ms; waited += 5) {
      int status;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) return status;
      ::usleep(5000);
    }
    return {};
  }

  void tell_failure(int status) const {
    if (WIFSIGNALED(status)) tell("the agent was ended by signal " + std::to_string(WTERMSIG(status)));
    std::ifstream text(errors_);
    if (status != 0 && text.peek() != std::ifstream::traits_type::eof()) std::cerr << text.rdbuf();
  }

  static Status wait_ready(const Fd& pipe) {
    std::string text;
    while (!text.ends_with('\n')) {
      pollfd p = {pipe.get(), POLLIN, 0};
      const int rc = ::poll(&p, 1, kReadyPatienceMs);
      if (rc < 0 && errno == EINTR) continue;
      if (rc == 0)
        return Error{ETIMEDOUT,
                     "the agent did not get ready in 30 s; does the dataset's file system answer?"};
      char buffer[4096];
      const ssize_t n = rc > 0 ? ::read(pipe.get(), buffer, sizeof buffer) : 0;
      if (n <= 0) break;
      text.append(buffer, static_cast<size_t>(n));
    }
    if (text.empty()) return Error{ECHILD, "the agent ended before it was ready"};
    text.pop_back();
    if (text.starts_with(kAlone))
      tell("this node gets no files from the job's other nodes: " + text.substr(kAlone.size()));
    return text == "ready" || text.starts_with(kAlone) ? Status() : Status(Error{ECHILD, text});
  }

  pid_t pid_ = -1;
  bool serves_ = false;                // it was ready
  AgentEnd end_ = AgentEnd::kWithJob;  // of it, or of the one before
  std::vector<std::string> words_;
  std::optional<JobKey> key_;
  std::string errors_;  // file that takes its standard error
  Fd lifeline_;
};

// For the agent; see UseWatch.
void note_begin(const std::string& run_dir) {
  std::ofstream(run_dir + "/" + kBeganFile) << os::monotonic_ms();
}

void set_command_environment(const std::string& run_dir, const RunOptions& options) {
  const auto value = [](const char* variable) {
    const char* text = ::getenv(variable);
    return std::string(text ? text : "");
  };
  const auto joined = [](const std::string& a, const std::string& b) {
    return a + (a.empty() || b.empty() ? "" : ":") + b;
  };
  // After the user's own: a sanitizer's runtime must come first, and wrappers such as Darshan's see the
  // program's calls before they are redirected.
  const std::string library = part_of_monarch("libmonarch_preload.so", "lib/monarch", PKGLIBDIR);
  ::setenv("LD_PRELOAD", joined(value("LD_PRELOAD"), library).c_str(), 1);
  ::setenv("MONARCH_IO_RUN_DIR", run_dir.c_str(), 1);
  ::setenv("MONARCH_IO_STATE", (run_dir + "/state").c_str(), 1);
  if (options.hints != "torch") return;
  const std::string python = part_of_monarch("python", "share/monarch", PKGDATADIR);
  ::setenv("PYTHONPATH", joined(python, value("PYTHONPATH")).c_str(), 1);
  ::setenv("MONARCH_IO_HINTS", "torch", 1);
}

volatile sig_atomic_t command_pid = -1;

void forward(int number) {
  if (command_pid > 0) ::kill(command_pid, number);
}

// Signals meant for the job reach the command; those that a terminal sends reach it by themselves.
void forward_signals() {
  struct sigaction action {};
  action.sa_handler = &forward;
  for (const int s : {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT}) ::sigaction(s, &action, nullptr);
  ::signal(SIGINT, SIG_IGN);
  ::signal(SIGQUIT, SIG_IGN);
}

const char* remedy_for_command(const char* name, int error) {
  struct stat st;
  if (::stat(name, &st) == 0 && S_ISDIR(st.st_mode))
    return "it is a directory: give --dataset before each dataset's directory, and the command after --";
  switch (error) {
    case ENOENT:
      return "give the path of a program, or the name of one in $PATH";
    case EACCES:
      return "name a program, or make it executable (chmod +x)";
    default:
      return "name a program that this node can run";
  }
}

// Runs the command, without Monarch if `run_dir` is empty; its exit status as a shell would give it.
int run_command(const RunOptions& options, const std::string& run_dir, AgentProcess* agent) {
  std::vector<std::string> words = options.command;
  const std::vector<char*> argv = argv_of(words);
  const auto on_child = ::signal(SIGCHLD, SIG_DFL);  // a caller that ignores it would keep us from waiting
  sigset_t all, before;
  ::sigfillset(&all);
  ::sigprocmask(SIG_BLOCK, &all, &before);  // no signal between fork and knowing the pid is lost
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::signal(SIGCHLD, on_child);
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    if (!run_dir.empty()) set_command_environment(run_dir, options);
    ::execvp(argv[0], argv.data());
    const int error = errno;
    tell(errno_error(argv[0], error).text + "; " + remedy_for_command(argv[0], error));
    ::_exit(error == ENOENT ? kNotFound : kNotExecutable);
  }
  if (pid < 0) {
    tell(errno_error("fork").text + "; try again when fewer processes run");
    ::sigprocmask(SIG_SETMASK, &before, nullptr);
    return kOwnFailure;
  }
  command_pid = pid;
  forward_signals();
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  int status;
  for (pid_t ended; (ended = ::waitpid(-1, &status, 0)) != pid && (ended > 0 || errno == EINTR);)
    if (ended > 0) agent->ended(ended, status);
  command_pid = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

Status write_report(const RunOptions& options, const Board& board, const Series& series,
                    const NodesTold* nodes, const Config& config) {
  std::vector<TierInReport> tiers;
  for (const TierConfig& t : config.tiers)
    tiers.push_back({t.name, t.medium, tier_totals(board, static_cast<uint32_t>(tiers.size())).granted});
  const bool first = !options.peers.empty() && options.peer_index == 0;
  Json told = report(counters_of(board), tiers, first ? Reports::kJob : Reports::kNode, nodes);
  add_about(&told, ::geteuid(), options.datasets);
  const std::string text = report_text(told, tiers.size(), series);
  if (options.json || options.report == kStandardOutput) {
    std::cout << text << std::flush;
    if (!std::cout) return with_remedy(errno_error("write the report"), "name a file by --report");
  }
  if (options.report.empty() || options.report == kStandardOutput) return {};
  std::ofstream out(options.report);
  out << text;
  out.close();
  if (!out)
    return with_remedy(errno_error("write the report " + options.report),
                       "make room there, or name another file");
  return {};
}

void sweep(const Config& config) {
  // Left-overs of earlier runs, if any; what another user left is not ours to remove.
  (void)sweep_user_dirs(run_base()).ok();
  for (const TierConfig& tier : config.tiers) (void)sweep_user_dirs(tier.path).ok();
}

// The key that the user names, once all that goes with it is right; nothing without --peers.
Result<std::optional<JobKey>> check_peers(const RunOptions& options, const PeerConfig& config) {
  if (options.peers.empty()) return std::optional<JobKey>();
  const Result<std::vector<NodeAddress>> nodes =
      read_nodes(options.peers, ports_of(kIdentity, config.ports.first, config.ports.last));
  if (!nodes.ok())
    return Error{nodes.error().code,
                 "--peers " + nodes.error().text + "; name a file with a line ADDRESS:PORT for each node"};
  if (options.peer_index >= nodes->size())
    return bad_input("--peer-index " + std::to_string(options.peer_index) + ": " + options.peers + " has " +
                     std::to_string(nodes->size()) + " nodes; give a number below that");
  Result<JobKey> key = read_key_file(options.peer_key);
  if (!key.ok())
    return Error{key.error().code, "--peer-key " + key.error().text +
                                       "; name a file of 32 random bytes that you alone can read"};
  return std::optional<JobKey>(*key);
}

// Whether this user, with these datasets, can have the tier.
Status check_for_user(const TierConfig& tier, const std::vector<std::string>& datasets) {
  MONARCH_TRY(check_apart(tier, datasets));
  Config alone;
  alone.tiers = {tier};
  return check_writable(alone);
}

// ", for example ..." of a tier that can be had, for a message; "": none is known.
std::string example_tier(const std::vector<std::string>& datasets) {
  TierConfig tier;
  for (const char* const path : {"/tmp", "/var/tmp", "/dev/shm"}) {
    tier.path = path;
    if (check_for_user(tier, datasets).ok()) return ", for example --tier ssd:" + tier.path + ":10G";
  }
  return "";
}

// What `monarchctl tiers` chooses, of that what this user and these datasets can have; says which.
Result<std::vector<TierConfig>> choose_tiers(const std::vector<std::string>& datasets) {
  std::vector<TierConfig> configured;
  if (const std::string file = default_config(); ::access(file.c_str(), F_OK) == 0) {
    Result<Config> config = load_default_config();
    if (!config.ok()) return with_remedy(config.error(), "mend it, or give --tier NAME:PATH:SIZE");
    configured = std::move(config->tiers);
  }
  const Result<std::vector<Candidate>> found = look_at_tiers(configured);
  if (!found.ok()) return with_remedy(found.error(), "give --tier NAME:PATH:SIZE");
  std::vector<TierConfig> tiers;
  for (const Candidate& c : *found) {
    if (!c.chosen) continue;
    Status usable = check_for_user(c.tier, datasets);
    // Of the agent's configuration, where it goes, a line ends there.
    if (usable.ok() && comment_in(c.path) != std::string::npos)
      usable = bad_input(c.path + " has a blank before # or ;");
    if (usable.ok()) tiers.push_back(c.tier);
    tell("tier " + c.tier.name + ": " +
         (usable.ok()
              ? c.path + ", quota " + format_size(c.tier.quota.of(c.size)) + ", as 'monarchctl tiers' chooses"
              : "not used: " + usable.error().text));
  }
  if (tiers.empty())
    return bad_input(
        "no tier can be chosen on this node, see 'monarchctl tiers'; give --tier NAME:PATH:SIZE" +
        example_tier(datasets));
  return tiers;
}

// The agent's configuration: the user's, and the tiers that were chosen.
Status write_config(const std::string& path, const std::string& user_file,
                    const std::vector<TierConfig>& tiers) {
  std::ofstream out(path);
  if (!user_file.empty()) out << std::ifstream(user_file).rdbuf() << "\n";
  for (const TierConfig& t : tiers)
    out << "[tier." << t.name << "]\npath = " << t.path << "\ndriver = " << name_of(t.kind)
        << "\nquota = " << quota_text(t.quota) << "\nmedium = " << name_of(t.medium)
        << "\nmin_free = " << quota_text(t.min_free) << "\n";
  out.close();
  return out ? Status() : Status(errno_error("write " + path));
}

// What is known before anything is made.
struct Prepared {
  Config config;
  std::vector<std::string> datasets;
  std::optional<JobKey> key;
  bool chosen = false;  // the tiers, by us
};

Error with_path_remedy(Error error, const RunOptions& options) {
  const bool missing = error.code == ENOENT;
  if (!error.text.starts_with("dataset"))
    return with_remedy_if_none(std::move(error), missing ? "make it, or name another one"
                                                         : "name a directory that you can write to");
  const bool is_list = std::any_of(options.datasets.begin(), options.datasets.end(),
                                   [](const std::string& d) { return d.find(':') != std::string::npos; });
  const char* const remedy =
      missing && is_list ? "give --dataset for each directory" : remedy_for_dataset(error.code);
  return with_remedy_if_none(std::move(error), remedy);
}

Status prepare(const RunOptions& options, Prepared* out) {
  if (!options.config.empty()) {
    Result<Config> loaded = load_config(options.config);
    if (!loaded.ok())
      return with_remedy(loaded.error(), lacks_remedy(loaded.error())
                                             ? "name another one, or leave out --config"
                                             : "mend it, or leave out --config");
    out->config = loaded.take();
  }
  for (const std::string& text : options.tiers) {
    Result<TierConfig> tier = parse_tier_option(text);
    if (!tier.ok()) return tier.error();
    if (tier->quota.percent == 0 || (tier->quota.percent < 0 && tier->quota.bytes == 0))
      return bad_input("--tier " + text + " has no room for any file; write for example " + tier->name + ":" +
                       tier->path + ":10G");
    MONARCH_TRY(add_tier(&out->config, tier.take()));
  }
  Result<std::vector<std::string>> roots = check_paths(out->config, options.datasets);
  if (!roots.ok()) return with_path_remedy(roots.error(), options);
  if (const Status s = check_writable(out->config); !s.ok()) return with_path_remedy(s.error(), options);
  out->datasets = roots.take();
  out->chosen = out->config.tiers.empty();
  if (out->chosen) {
    Result<std::vector<TierConfig>> tiers = choose_tiers(out->datasets);
    if (!tiers.ok()) return tiers.error();
    out->config.tiers = tiers.take();
  }
  Result<std::optional<JobKey>> checked = check_peers(options, out->config.peer);
  if (!checked.ok()) return checked.error();
  out->key = checked.take();
  if (!options.report.empty() && options.report != kStandardOutput) {
    const Fd probe(::open(options.report.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666));
    if (!probe)
      return Error{errno,
                   errno_error("--report " + options.report).text + "; name a file that you can write"};
  }
  return {};
}

// What the command is served by. That it cannot be had (limits, no memory, no room) is no fault of the
// command's.
Result<BoardFile> start(const RunOptions& options, const Prepared& job, RunDirs* dirs, AgentProcess* agent) {
  MONARCH_TRY(dirs->make());
  std::string file = options.config;
  if (job.chosen || (options.staged.percent > 0 && file.empty())) {  // --set goes before a file
    file = dirs->run_dir() + "/agent.conf";
    MONARCH_TRY(
        write_config(file, options.config, job.chosen ? job.config.tiers : std::vector<TierConfig>()));
  }
  MONARCH_TRY(agent->start(options, file, job.datasets, job.key, *dirs));
  return BoardFile::open(dirs->run_dir());
}

// As a job's output ends.
void tell_at_end(const RunOptions& options, const JobCounters& counters, const AgentProcess& agent) {
  if (::getenv("MONARCH_IO_QUIET")) return;
  Closing of = {"this node", static_cast<uint32_t>(counters.nodes)};
  of.agent = agent.end();
  if (counters[AgentCounter::no_fit_files] > 0) of.report = "give them more by --tier NAME:PATH:SIZE";
  if (!options.report.empty() && options.report != kStandardOutput)
    of.report += (of.report.empty() ? "" : "; ") + ("report: monarchctl report " + options.report);
  tell(closing_text(counters, of));
}

int run(const RunOptions& options) {
  Prepared job;
  if (const Status s = prepare(options, &job); !s.ok()) return fail("run", s.error()), kOwnFailure;
  sweep(job.config);
  RunDirs dirs(job.config);
  AgentProcess agent;
  Result<BoardFile> board = start(options, job, &dirs, &agent);
  if (!board.ok()) {
    tell(board.error().text + "; the command runs without Monarch");
    return run_command(options, "", &agent);
  }
  if (options.staged.percent > 0)
    wait_until_staged(dirs.run_dir(), options.staged, [&] { return agent.lives(); });
  note_begin(dirs.run_dir());
  const Fd file(::open((dirs.run_dir() + "/board").c_str(), O_RDONLY | O_CLOEXEC));
  const int status = run_command(options, dirs.run_dir(), &agent);
  const bool reports = options.json || !options.report.empty();
  if (!is_whole(file)) {
    tell("the command has cut " + dirs.run_dir() +
         "/board: nothing is known of what it read; have it leave that directory alone");
    return status == 0 && reports ? kOwnFailure : status;
  }
  const JobCounters counters = counters_of(*board->get());
  if (status != kNotExecutable && status != kNotFound) tell_at_end(options, counters, agent);
  Series series;
  std::unique_ptr<NodesTold> nodes;
  if (reports) {  // the agent removes them
    if (Result<Series> taken = read_series(dirs.run_dir()); taken.ok()) series = *taken;
    if (Result<std::unique_ptr<NodesTold>> taken = read_nodes_told(dirs.run_dir()); taken.ok())
      nodes = taken.take();
  }
  agent.stop();
  if (!reports) return status;
  if (series.count > 0) close_series(*board->get(), &series);
  if (const Status s = write_report(options, *board->get(), series, nodes.get(), job.config); !s.ok()) {
    tell(s.error().text);
    if (status == 0) return kOwnFailure;
  }
  return status;
}

}  // namespace

void add_run(CommandLine app, int* status) {
  auto options = std::make_shared<RunOptions>();
  app.add_option("--dataset", options->datasets, "directory of the dataset; may be given several times")
      .required()
      .takes_one();
  app.add_option("--tier", options->tiers,
                 "NAME:PATH:SIZE; SIZE as 500M, 10G or 50%; filled in the order given; default: as "
                 "'monarchctl tiers' chooses")
      .takes_one();
  app.add_option("--config", options->config, "configuration, monarch.conf(5)");
  app.add_option("--report", options->report,
                 "write the counters as JSON to this file; -: to standard output")
      .check([](const std::string& text) {
        return text != "--" ? std::string() : "give it a file's name, or - for standard output";
      });
  app.add_flag("--json", options->json, "as --report -, also beside a --report FILE");
  app.add_option("--wait", options->wait,
                 "none, NN% or full: begin once so much of the dataset is staged; stages all of it")
      .check([](const std::string& text) {
        int percent = 0;
        return parse_wait(text, &percent) ? std::string()
                                          : "'" + text + "' is not none, full, or 1% to 100%, such as 50%";
      });
  app.add_option("--wait-timeout", options->staged.seconds, "seconds that --wait takes at most, up to 604800")
      .capture_default_str()
      .range(1, kMostWaitSeconds);
  app.add_option("--hints", options->hints,
                 "torch or off: torch's DataLoader tells which files it will read next")
      .capture_default_str()
      .check([](const std::string& text) {
        return text == "torch" || text == "off" ? std::string() : "'" + text + "' is not torch or off";
      });
  auto peers = app.add_option("--peers", options->peers,
                              "file with a line ADDRESS:PORT for each node that runs the same, node 0 first");
  auto index = app.add_option("--peer-index", options->peer_index, "this node's line in it, from 0");
  auto key = app.add_option("--peer-key", options->peer_key, "file with 32 bytes that the nodes share");
  peers.needs(index).needs(key);
  index.needs(peers);
  key.needs(peers);
  app.add_option("command", options->command, "the command and its arguments, after --").required();
  app.footer(
      "Example: monarchctl run --dataset /lustre/imagenet --tier nvme:/scratch:500G -- python3 train.py\n"
      "Where the agent cannot start, the command runs without Monarch.\n"
      "Exit status: the command's own, 128+N if signal N ended it,\n"
      "125 if an option or the configuration is wrong, or the report cannot be written,\n"
      "126 if the command cannot be executed, 127 if it is not found.");
  app.callback([options, status] {
    (void)parse_wait(options->wait, &options->staged.percent);
    *status = run(*options);
  });
}

}  // namespace monarch::admin
