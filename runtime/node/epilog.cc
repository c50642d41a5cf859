// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/epilog.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <functional>

#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "runtime/node/accounting.h"

namespace monarch {
namespace {

constexpr int kLockPatienceMs = 1000;
constexpr int kKillPatienceMs = 1000;
constexpr int kReadPatienceMs = 800;
constexpr int kRemovePatienceMs = 1500;
constexpr int kFlushSeconds = 60;

int64_t now_ms() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000;
}

// Runs `work` in a child that has become `user`, and kills it after `patience_ms`. What it writes to its
// descriptor is read into `out`, exactly `bytes` or nothing. True: it ended well in time.
bool run_as(const User& user, int patience_ms, void* out, size_t bytes,
            const std::function<bool(int)>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  const Fd in(ends[0]);
  Fd tell(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return false;
  if (pid == 0) {
    User plain = user;
    plain.groups.clear();
    const bool good = become(plain).ok() && work(tell.get());
    ::_exit(good ? 0 : 1);
  }
  tell.reset();
  const int64_t end = now_ms() + patience_ms;
  size_t got = 0;
  for (bool open = true; open;) {
    const int64_t left = end - now_ms();
    pollfd p = {in.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0) break;
    char buffer[1024];
    char* to = got < bytes ? static_cast<char*>(out) + got : buffer;
    const ssize_t n = ::read(in.get(), to, got < bytes ? bytes - got : sizeof buffer);
    if (n <= 0)
      open = n < 0 && errno == EINTR;
    else
      got += static_cast<size_t>(n);
  }
  int status = 0;
  // Its end of the pipe is closed when it ends, so mostly it has.
  pid_t ended = 0;
  for (int i = 0; i < 20 && ended == 0; ++i) {
    ended = ::waitpid(pid, &status, WNOHANG);
    if (ended == 0 && now_ms() >= end) break;
    if (ended == 0) ::usleep(500);
  }
  if (ended == 0) {
    ::kill(pid, SIGKILL);
    // One that hangs in the kernel is left to init.
    for (int i = 0; i < 100 && (ended = ::waitpid(pid, &status, WNOHANG)) == 0; ++i) ::usleep(1000);
    return false;
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0 && got == bytes;
}

bool counters_of(const JobRecord& record, JobCounters* counters) {
  return run_as(record.user, kReadPatienceMs, counters, sizeof *counters,
                [&](int fd) {
                  const Result<JobCounters> read = read_counters(record.run_dir);
                  return read.ok() && ::write(fd, &*read, sizeof *read) == sizeof *read;
                }) &&
         plausible(*counters);
}

// Empties the job's directories as their owner: what only the owner can be made to touch.
void remove_as_owner(const JobRecord& record) {
  run_as(record.user, kRemovePatienceMs, nullptr, 0, [&](int) {
    for (const TierRecord& t : record.tiers) {
      const Fd all(::open((t.path + "/monarch").c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
      if (all) (void)remove_tree(all.get(), record.name).ok();  // all but the directory itself
    }
    (void)remove_tree(AT_FDCWD, record.run_dir).ok();
    return true;
  });
}

// What is left after `patience_ms` goes on in a detached process. True: all is gone.
bool remove_as_root(const StateDir& state, const JobRecord& record, int patience_ms) {
  const pid_t pid = ::fork();
  if (pid < 0) return false;
  if (pid == 0) {
    ::setsid();
    ::signal(SIGHUP, SIG_IGN);
    for (int attempt = 0; attempt < 30; ++attempt) {
      const Status s = remove_job_files(record);
      if (s.ok()) {
        (void)state.remove_job(record.job).ok();
        ::_exit(0);
      }
      spdlog::warn("JobId={} clean up: {}", record.job.job, s.error().text);
      ::sleep(1);
    }
    ::_exit(1);
  }
  int status = 0;
  for (int waited = 0; waited < patience_ms; waited += 2) {
    if (::waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    ::usleep(2000);
  }
  return false;
}

}  // namespace

bool detach() {
  const pid_t pid = ::fork();
  if (pid != 0) return true;
  ::setsid();
  if (::fork() != 0) ::_exit(0);
  ::syscall(SYS_close_range, 3u, ~0u, 0u);
  for (int fd = 0; fd < 3; ++fd) {
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, fd);
    if (null > 2) ::close(null);
  }
  return false;
}

Status end_job(const EpilogRequest& request) {
  Result<StateDir> state = StateDir::open(request.state_dir);
  if (!state.ok()) return state.error();
  Result<Fd> lock = state->lock_job(request.job, false, kLockPatienceMs);
  if (!lock.ok()) return lock.error().code == ENOENT ? Status() : Status(lock.error());
  Result<JobRecord> record = state->read_record(request.job.key());
  if (!record.ok()) return state->remove_job(request.job);  // wanted, but never started

  if (!kill_and_wait(record->agent, kKillPatienceMs))
    spdlog::warn("JobId={} the agent (pid {}) does not end: it waits for the PFS", record->job.job,
                 record->agent.pid);
  JobCounters counters{};
  const bool counted = counters_of(*record, &counters);
  const std::string line = comment_line(*record, counted ? &counters : nullptr, 1);
  spdlog::info("JobId={} node={} {}", record->job.job, record->job.node, line);
  const bool account = !request.account_program.empty() && record->first_node;
  // Before anything is removed: whatever happens to this process, the line is kept.
  Status kept = account ? spool(*state, *record, line) : Status();
  remove_as_owner(*record);
  if (!remove_as_root(*state, *record, kRemovePatienceMs))
    spdlog::warn("JobId={} clean up goes on in the background", record->job.job);
  if (account && kept.ok() && !detach()) {
    const Status s = flush(*state, request.account_program, kFlushSeconds);
    ::_exit(s.ok() ? 0 : 1);
  }
  return kept;
}

}  // namespace monarch
