// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/child.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "runtime/base/argv.h"
#include "runtime/node/await.h"

namespace monarch {

bool leave_standard_streams() {
  Fd null(::open("/dev/null", O_RDWR));
  bool left = static_cast<bool>(null);
  for (int fd = STDIN_FILENO; left && fd <= STDERR_FILENO; ++fd) left = ::dup2(null.get(), fd) == fd;
  if (null.get() <= STDERR_FILENO) (void)null.release();
  return left;
}

void leave_open(const std::vector<int>& kept) {
  std::vector<int> open;
  {
    const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir("/proc/self/fd"), &::closedir);
    while (const dirent* e = dir ? ::readdir(dir.get()) : nullptr)
      if (e->d_name[0] != '.') open.push_back(std::atoi(e->d_name));
  }
  for (const int fd : open) {
    struct stat st;
    if (fd < 3 || std::find(kept.begin(), kept.end(), fd) != kept.end() || ::fstat(fd, &st) != 0) continue;
    const bool is_log =
        S_ISSOCK(st.st_mode) || (S_ISREG(st.st_mode) && (::fcntl(fd, F_GETFL) & O_APPEND) != 0);
    if (!is_log) ::close(fd);
  }
}

Fd Child::open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    started_ = errno_error("pipe");
    return Fd();
  }
  output_ = Fd(ends[0]);
  return Fd(ends[1]);
}

bool Child::forks() {
  pid_ = ::fork();
  if (pid_ < 0) started_ = errno_error("fork");
  return pid_ == 0;
}

Child::Child(std::vector<std::string> words, const std::string& slurm_conf) {
  const Fd out = open_pipe();
  if (!out) return;
  std::vector<std::string> variables = {"PATH=/usr/sbin:/usr/bin:/sbin:/bin"};
  if (!slurm_conf.empty()) variables.push_back("SLURM_CONF=" + slurm_conf);
  const std::vector<char*> argv = argv_of(words), env = argv_of(variables);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, out.get(), 1);
  pid_t pid = -1;
  const int failed = ::posix_spawn(&pid, argv[0], &actions, nullptr, argv.data(), env.data());
  ::posix_spawn_file_actions_destroy(&actions);
  if (failed == 0)
    pid_ = pid;
  else
    started_ = errno_error("run " + words[0], failed);
}

Child::Child(const Work& work, std::vector<int> kept) {
  const Fd out = open_pipe();
  if (!out || !forks()) return;
  kept.push_back(out.get());
  leave_open(kept);
  ::_exit(leave_standard_streams() && work(out.get()) ? 0 : 1);
}

Child::Child(const User& user, const Work& work) {
  const Fd out = open_pipe();
  if (!out || !forks()) return;
  constexpr int kTellFd = 3;
  ::dup2(out.get(), kTellFd);
  ::syscall(SYS_close_range, kTellFd + 1u, ~0u, 0u);  // root's log and locks
  ::_exit(leave_standard_streams() && become(user).ok() && work(kTellFd) ? 0 : 1);
}

Child::Child(Child&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      left_behind_(other.left_behind_),
      output_(std::move(other.output_)),
      started_(std::move(other.started_)) {}

Child::~Child() {
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);
  kill_child(system_clock(), pid_);
}

Result<int> Child::end(int64_t until_ms, size_t most, std::string* said, Clock& clock) {
  if (!started_.ok()) return started_.error();
  const int64_t begin_ms = clock.now_ms();
  bool open = true;
  // What has come by then is read, however long another one was waited for.
  while (open && said->size() <= most && readable_until(clock, until_ms, output_.get())) {
    char buffer[65536];
    const ssize_t n = ::read(output_.get(), buffer, sizeof buffer);
    open = n > 0 || (n < 0 && errno == EINTR);
    if (n > 0) said->append(buffer, static_cast<size_t>(n));
  }
  const std::optional<int> status = open ? std::nullopt : await_child(clock, pid_, until_ms);
  const pid_t pid = std::exchange(pid_, -1);
  if (status) return *status;
  ::kill(-pid, SIGKILL);
  if (!kill_child(clock, pid)) left_behind_ = pid;
  if (said->size() > most) return Error{EFBIG, "its output has no end"};
  return Error{ETIMEDOUT, "it takes longer than " + std::to_string(until_ms - begin_ms) + " ms"};
}

Result<std::string> Child::output(int patience_ms, size_t most, Clock& clock) {
  std::string said;
  const Result<int> status = end(clock.now_ms() + patience_ms, most, &said, clock);
  if (!status.ok()) return status.error();
  if (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0) return Error{ECHILD, "it has failed"};
  return said;
}

bool Child::fill(int64_t until_ms, void* out, size_t bytes, Clock& clock) {
  std::string said;
  const Result<int> status = end(until_ms, bytes, &said, clock);
  if (!status.ok() || *status != 0 || said.size() != bytes) return false;
  std::memcpy(out, said.data(), bytes);
  return true;
}

bool say(int to, const std::string& text) {
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(to, text.data() + done, text.size() - done);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

}  // namespace monarch
