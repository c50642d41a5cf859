// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/removal.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "runtime/node/life.h"
#include "runtime/node/memory_tier.h"

namespace monarch {
namespace {

constexpr int kOwnerPatienceMs = 10000;  // then root goes on, whatever the owner did to that process
constexpr int kAttempts = 30;            // a second apart
constexpr int kPollUs = 2000;

int64_t now_ms() {
  timespec t;
  ::clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1000 + t.tv_nsec / 1000000;
}

[[noreturn]] void child_as(const User& user, int tell, const std::function<bool(int)>& work) {
  constexpr int kTellFd = 3;
  ::dup2(tell, kTellFd);
  ::syscall(SYS_close_range, kTellFd + 1u, ~0u, 0u);  // root's log and locks
  User plain = user;
  plain.groups.clear();
  ::_exit(become(plain).ok() && work(kTellFd) ? 0 : 1);
}

// Whether the child ended well; one that has not ended by `end` is killed.
bool reap(pid_t pid, int64_t end) {
  int status = 0;
  pid_t ended;
  while ((ended = ::waitpid(pid, &status, WNOHANG)) == 0 && now_ms() < end) ::usleep(kPollUs);
  if (ended != 0) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
  ::kill(pid, SIGKILL);
  // One that hangs in the kernel is left to init.
  for (int i = 0; i < 50 && ::waitpid(pid, &status, WNOHANG) == 0; ++i) ::usleep(kPollUs);
  return false;
}

// In the directory of all jobs, `record`'s own; a missing one is success.
Status rename_aside(int jobs, const JobRecord& record) {
  unmount_tmpfs(jobs, record.name);
  if (os::renameat(jobs, record.name.c_str(), jobs, record.aside().c_str()) == 0 || errno == ENOENT)
    return {};
  return errno_error("set aside " + record.name);
}

// What is to be done in the directory of all jobs on each tier, and in that of all run directories; the first
// error, but for what is missing.
Status in_each_place(const StateDir& state, const JobRecord& record, const std::function<Status(int)>& what) {
  Status first;
  const auto note = [&](const Status& s) {
    if (!s.ok() && s.error().code != ENOENT && first.ok()) first = s;
  };
  for (const TierRecord& t : record.tiers) {
    const Result<Fd> jobs = open_tier_jobs(t.path);
    note(jobs.ok() ? what(jobs->get()) : Status(jobs.error()));
  }
  const std::string path = state.path() + "/run";
  const Fd runs(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  note(runs ? what(runs.get()) : Status(errno_error("open " + path)));
  return first;
}

// As their owner: what only the owner can be made to touch. All but the directories themselves.
void empty_as_owner(const StateDir& state, const JobRecord& record) {
  run_as(record.user, kOwnerPatienceMs, nullptr, 0, [&](int) {
    (void)in_each_place(state, record, [&](int jobs) { return remove_tree(jobs, record.aside()); }).ok();
    return true;
  });
}

// Whether another run of the job has made directories of that name by now.
bool name_is_taken(const StateDir& state, const JobRecord& record) {
  const Result<JobRecord> now = state.read_record(record.job.key());
  return now.ok() && now->name == record.name;
}

// In the job's directory of the state: set_aside() could not move all.
constexpr char kUnmoved[] = "/unmoved";

Status remove_now(const StateDir& state, const JobRecord& record) {
  empty_as_owner(state, record);
  // Otherwise what has that name is the next run's, though it may not have said so yet.
  const bool unmoved = state.read("removing/" + record.removal() + kUnmoved).ok();
  return in_each_place(state, record, [&](int jobs) -> Status {
    if (unmoved && !name_is_taken(state, record)) MONARCH_TRY(rename_aside(jobs, record));
    return remove_tree(jobs, record.aside());
  });
}

bool remove_one(const StateDir& state, const JobRecord& record, int attempt) {
  Cgroups().end(state.cgroup_of(record), 0);
  const Status s = remove_now(state, record);
  if (s.ok())
    (void)remove_tree(AT_FDCWD, state.path() + "/removing/" + record.removal()).ok();
  else if (attempt == 0)
    spdlog::warn("JobId={} clean up: {}", record.job.job, s.error().text);
  return s.ok();
}

[[noreturn]] void remove_all(const StateDir& state, std::vector<Removal> removals) {
  ::setsid();
  ::signal(SIGHUP, SIG_IGN);
  const Fd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  for (int fd = 0; fd < 3; ++fd) ::dup2(null.get(), fd);  // nobody is to wait for the end of its output
  {
    const HelperCgroup group(state);
    for (int attempt = 0; attempt < kAttempts && !removals.empty(); ++attempt) {
      if (attempt > 0) ::sleep(1);
      std::erase_if(removals, [&](const Removal& r) { return remove_one(state, r.record, attempt); });
    }
  }
  for (const Removal& r : removals)
    spdlog::error("JobId={} clean up: given up until the next job on this node", r.record.job.job);
  ::_exit(removals.empty() ? 0 : 1);
}

}  // namespace

bool run_as(const User& user, int patience_ms, void* out, size_t bytes,
            const std::function<bool(int)>& work) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return false;
  const Fd in(ends[0]);
  Fd tell(ends[1]);
  const pid_t pid = ::fork();
  if (pid < 0) return false;
  if (pid == 0) child_as(user, tell.get(), work);
  tell.reset();
  const int64_t end = now_ms() + patience_ms;
  size_t got = 0;
  // No more than that: the child is its owner's, who can write into the pipe without an end.
  for (bool open = true; open && got < bytes;) {
    const int64_t left = end - now_ms();
    pollfd p = {in.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0) break;
    const ssize_t n = ::read(in.get(), static_cast<char*>(out) + got, bytes - got);
    if (n <= 0)
      open = n < 0 && errno == EINTR;
    else
      got += static_cast<size_t>(n);
  }
  return reap(pid, end) && got == bytes;
}

Status set_aside(const StateDir& state, const JobRecord& record) {
  const Status moved = in_each_place(state, record, [&](int jobs) { return rename_aside(jobs, record); });
  if (!moved.ok()) {
    spdlog::warn("JobId={} {}", record.job.job, moved.error().text);
    MONARCH_TRY(state.write("jobs/" + record.job.key() + kUnmoved, ""));
  }
  ::unlink((state.path() + "/" + record.grants()).c_str());
  const std::string from = state.path() + "/jobs/" + record.job.key();
  const std::string to = state.path() + "/removing/" + record.removal();
  if (::rename(from.c_str(), to.c_str()) != 0) return errno_error("rename " + from + " to " + to);
  return {};
}

Status remove_job_files(const StateDir& state, const JobRecord& record) {
  return in_each_place(state, record, [&](int jobs) {
    unmount_tmpfs(jobs, record.name);
    return remove_tree(jobs, record.name);
  });
}

bool remove_in_background(const StateDir& state, std::vector<Removal> removals, int patience_ms) {
  if (removals.empty()) return true;
  const pid_t pid = ::fork();
  if (pid < 0) return false;
  if (pid == 0) remove_all(state, std::move(removals));
  int status = 0;
  const int64_t end = now_ms() + patience_ms;
  do {
    if (::waitpid(pid, &status, WNOHANG) == pid) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
    if (patience_ms > 0) ::usleep(kPollUs);
  } while (now_ms() < end);
  return false;
}

}  // namespace monarch
