// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/keeper.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <climits>
#include <fstream>

#include "runtime/base/argv.h"
#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/base/patience.h"
#include "runtime/node/ledger.h"
#include "runtime/node/life.h"
#include "runtime/node/removal.h"
#include "runtime/node/resume.h"
#include "runtime/node/spool.h"
#include "runtime/node/watch.h"

extern char** environ;

namespace monarch {
namespace {

bool anything_left(const StateDir& state) {
  return !state.jobs().empty() || !state.removals().empty() || lines_wait(state) ||
         !stray_cgroups(state).empty();
}

// ---- the duties

void flush_spool(const KeeperRequest& request, const StateDir& state) {
  const SpoolConfig spool = load_config_or_defaults(request.config).spool;
  const Status s = flush(state, {"", request.account_program}, spool, Lines::kDue);
  if (!s.ok()) spdlog::debug("{}", s.error().text);
}

using Of = const KeeperRequest&;
using In = const StateDir&;
constexpr Duty kDuties[] = {
    {"space", 1, 10, [](Of, In state) { return can_grant(state); }, [](Of, In state) { grant(state); }},
    {"jobs", 1, 60, &jobs_need_look, &watch_jobs},
    {"agents", 1, 60, &agents_are_missed, &resume_agents},
    {"times", 1, 60, [](Of, In state) { return times_are_due(state); },
     [](Of request, In state) { ask_times(state, request.account_program); }},
    {"spool", 1, 120, [](Of, In state) { return flush_is_due(state); }, &flush_spool},
    {"removal", 2, 60, [](Of, In state) { return !state.removals().empty(); },
     [](Of, In state) { remove_in_background(state, unattended_removals(state), 0); }},
    {"groups", 5, 10, [](Of, In state) { return !stray_cgroups(state).empty(); },
     [](Of, In state) { sweep_cgroups(state); }},
};

// Tells one file of a path from a later one there.
struct FileId {
  dev_t dev = 0;
  ino_t ino = 0;
  int64_t mtime_ns = 0;
  bool operator==(const FileId&) const = default;
};

// All zero if there is none.
FileId file_id(const std::string& path) {
  struct stat st {};
  (void)!::stat(path.c_str(), &st);
  return {st.st_dev, st.st_ino, int64_t{st.st_mtim.tv_sec} * 1000000000 + st.st_mtim.tv_nsec};
}

// ---- the keeper is the new monarchd once its file was replaced

std::string own_path() {
  char path[PATH_MAX];
  const ssize_t n = ::readlink("/proc/self/exe", path, sizeof path);
  const std::string own(path, n > 0 ? static_cast<size_t>(n) : 0), gone = " (deleted)";
  return own.ends_with(gone) ? own.substr(0, own.size() - gone.size()) : own;
}

// An answer to whoever waits for that process: whether another file that can be executed is there now.
constexpr int kReplaced = 3;
bool is_replaced(const std::string& path, const FileId& mine) {
  return file_id(path) != mine && ::access(path.c_str(), X_OK) == 0;
}

// ---- processes

// What a process that is to outlive a hook must not have of the hook's.
void leave_all_behind() {
  ::setsid();
  const int null = ::open("/dev/null", O_RDWR);
  for (int fd = 0; fd < 3; ++fd) ::dup2(null, fd);
  ::syscall(SYS_close_range, 3u, ~0u, 0u);
  (void)!::chdir("/");
  std::ofstream("/proc/self/oom_score_adj") << "0\n";  // slurmstepd's is -999
}

std::vector<std::string> words_of(const KeeperRequest& r) {
  return {"monarchd",        "--keep",   "--state-dir", r.state_dir, "--account-program",
          r.account_program, "--config", r.config,      "--log",     r.log};
}

void execute(const std::string& path, const KeeperRequest& request) {
  std::vector<std::string> words = words_of(request);
  ::execve(path.c_str(), argv_of(words).data(), environ);
}

constexpr char kLock[] = "keeper.lock";

// Whether somebody has that lock. Who does not, and has to look whether anything is left, does so afterwards:
// meanwhile another hook, or a keeper that is just ending, may have taken this one for a keeper.
bool is_kept(const KeeperRequest& request) {
  const Fd lock(::open((request.state_dir + "/" + kLock).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
  return lock && ::flock(lock.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

class Keeper {
 public:
  Keeper(const KeeperRequest& request, RootLog* log, StateDir state, Fd lock)
      : request_(request),
        log_(log),
        state_(std::move(state)),
        lock_(std::move(lock)),
        path_(own_path()),
        mine_(file_id("/proc/self/exe")) {
    sigemptyset(&waited_);
    for (const int s : {SIGTERM, SIGINT, SIGCHLD}) sigaddset(&waited_, s);
    ::sigprocmask(SIG_BLOCK, &waited_, nullptr);
    ::signal(SIGHUP, SIG_IGN);
  }

  int run() {
    for (;;) {
      look_for_ends();
      if (replaced_) become_new();
      follow_log();
      start_what_is_due();
      if (!is_lock_ours() || (idle() && step_down())) return 0;
      const timespec beat = {patience::kBeatSeconds, 0};
      const int signal = ::sigtimedwait(&waited_, nullptr, &beat);
      if (signal == SIGTERM || signal == SIGINT) break;
    }
    kill_all();
    return 0;
  }

 private:
  struct Work {
    pid_t pid = 0;  // of the run, or 0
    int64_t next = 0, end = 0;
  };

  template <typename Run>
  void start(Work* work, int patience_s, const Run& run) {
    const pid_t keeper = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) return;  // tried again with the next beat
    if (pid == 0) {
      ::setpgid(0, 0);
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      if (::getppid() != keeper) ::_exit(1);
      lock_.reset();
      ::signal(SIGHUP, SIG_DFL);
      ::sigprocmask(SIG_UNBLOCK, &waited_, nullptr);
      ::_exit(run());
    }
    ::setpgid(pid, pid);
    *work = {pid, 0, now_s() + patience_s};
  }

  void start_what_is_due() {
    for (size_t i = 0; i < std::size(kDuties); ++i) {
      const Duty& duty = kDuties[i];
      if (work_[i].pid != 0 || now_s() < work_[i].next) continue;
      work_[i].next = now_s() + duty.every_s;
      if (!duty.due(request_, state_)) continue;
      start(&work_[i], duty.patience_s, [&] {
        duty.run(request_, state_);
        return 0;
      });
    }
    if (Work& look = work_[kLook]; look.pid == 0 && now_s() >= look.next)
      start(&look, patience::kLookAgainSeconds, [&] { return is_replaced(path_, mine_) ? kReplaced : 0; });
  }

  void follow_log() {
    if (!log_ || now_s() < next_log_) return;
    log_->follow();
    next_log_ = now_s() + patience::kLookAgainSeconds;
  }

  void look_for_ends() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;)
      for (size_t i = 0; i < std::size(work_); ++i)
        if (work_[i].pid == pid) ended(i, status);
    for (size_t i = 0; i < std::size(work_); ++i) {
      Work& w = work_[i];
      if (w.pid == 0 || now_s() < w.end) continue;
      spdlog::debug("keeper: {} takes too long", i == kLook ? "look" : kDuties[i].name);
      ::kill(-w.pid, SIGKILL);  // and is not done again before it is gone: it may hang in the kernel
      w.end = now_s() + patience::kBeatSeconds;
    }
  }

  void ended(size_t i, int status) {
    if (i == kLook) replaced_ = WIFEXITED(status) && WEXITSTATUS(status) == kReplaced;
    work_[i] = {0, now_s() + (i == kLook ? patience::kLookAgainSeconds : kDuties[i].every_s), 0};
  }

  void kill_all() {
    for (const Work& w : work_)
      if (w.pid > 0) ::kill(-w.pid, SIGKILL);
  }

  // Does not return, unless that one is broken. What was being done is begun anew.
  void become_new() {
    replaced_ = false;
    kill_all();
    execute(path_, request_);
  }

  int64_t now_s() const { return state_.clock().now_ms() / 1000; }

  // A look takes no part in it: the keeper may end beside one.
  bool idle() const {
    for (size_t i = 0; i < kLook; ++i)
      if (work_[i].pid != 0) return false;
    return !anything_left(state_);
  }

  // A hook that added something while the lock was held has started no keeper.
  bool step_down() {
    ::flock(lock_.get(), LOCK_UN);
    return !anything_left(state_) || ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0;
  }

  // Someone may have removed the state directory, or made it anew.
  bool is_lock_ours() const {
    return file_id("/proc/self/fd/" + std::to_string(lock_.get())) == file_id(state_.path() + "/" + kLock);
  }

  static constexpr size_t kLook = std::size(kDuties);  // whether monarchd was replaced
  const KeeperRequest& request_;
  RootLog* const log_;  // or none
  const StateDir state_;
  int64_t next_log_ = now_s() + patience::kLookAgainSeconds;
  Fd lock_;
  const std::string path_;
  const FileId mine_;
  sigset_t waited_;
  Work work_[kLook + 1];
  bool replaced_ = false;
};

}  // namespace

void ensure_keeper(const KeeperRequest& request) {
  const Result<StateDir> state = StateDir::open(request.state_dir);
  if (!state.ok()) return;       // the hook has told the error
  if (is_kept(request)) return;  // it looks by itself
  if (!anything_left(*state)) return Cgroups().remove_if_empty(state->helpers_cgroup());  // one was killed
  const Result<Fd> lock = state->lock_file(kLock, 0);
  if (!lock.ok() && lock.error().code == ETIMEDOUT) return;  // another hook starts one
  if (!lock.ok()) return spdlog::warn("keeper: {}", lock.error().text);
  const pid_t pid = ::fork();
  if (pid < 0) return spdlog::warn("keeper: {}", errno_error("fork").text);
  if (pid == 0) {
    if (::fork() != 0) ::_exit(0);
    leave_all_behind();
    execute("/proc/self/exe", request);
    ::_exit(127);
  }
  while (::waitpid(pid, nullptr, 0) < 0 && errno == EINTR) continue;
}

int keep(const KeeperRequest& request, RootLog* log) {
  Result<StateDir> state = StateDir::open(request.state_dir);
  if (!state.ok()) {
    spdlog::error("keeper: {}", state.error().text);
    return 1;
  }
  Result<Fd> lock =
      state->lock_file(kLock, patience::kHookWaitMs);  // a hook that starts one has it for a moment
  if (!lock.ok()) return 0;
  const HelperCgroup group(*state);  // not that of the hook that started it
  spdlog::debug("keeper of {} begins", request.state_dir);
  const int status = Keeper(request, log, state.take(), lock.take()).run();
  spdlog::debug("keeper of {} ends", request.state_dir);
  return status;
}

}  // namespace monarch
