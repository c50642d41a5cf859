// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utility>

#include "runtime/base/argv.h"
#include "runtime/node/await.h"

namespace monarch {

Fd Program::open_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    started_ = errno_error("pipe");
    return Fd();
  }
  output_ = Fd(ends[0]);
  return Fd(ends[1]);
}

Program::Program(std::vector<std::string> words, const std::string& slurm_conf) {
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

Program::Program(const std::function<std::string()>& ask) {
  const Fd out = open_pipe();
  if (out && (pid_ = ::fork()) < 0) started_ = errno_error("fork");
  if (pid_ != 0) return;
  const std::string text = ask();
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(out.get(), text.data() + done, text.size() - done);
    if (n <= 0) ::_exit(1);
    done += static_cast<size_t>(n);
  }
  ::_exit(0);
}

Program::Program(Program&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      output_(std::move(other.output_)),
      started_(std::move(other.started_)) {}

Program::~Program() {
  if (pid_ < 0) return;
  ::kill(-pid_, SIGKILL);
  kill_child(system_clock(), pid_);
}

Result<int> Program::end(int patience_ms, size_t most, std::string* said, Clock& clock) {
  if (!started_.ok()) return started_.error();
  const int64_t until_ms = clock.now_ms() + patience_ms;
  bool open = true;
  while (open && readable_until(clock, until_ms, output_.get())) {
    char buffer[65536];
    const ssize_t n = ::read(output_.get(), buffer, sizeof buffer);
    open = n > 0;
    if (open) said->append(buffer, static_cast<size_t>(n));
    if (said->size() > most) return Error{EFBIG, "its output has no end"};
  }
  const std::optional<int> status = open ? std::nullopt : await_child(clock, pid_, until_ms);
  if (!status) return Error{ETIMEDOUT, "it takes longer than " + std::to_string(patience_ms) + " ms"};
  pid_ = -1;
  return *status;
}

Result<std::string> Program::output(int patience_ms, size_t most, Clock& clock) {
  std::string said;
  const Result<int> status = end(patience_ms, most, &said, clock);
  if (!status.ok()) return status.error();
  if (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0) return Error{ECHILD, "it has failed"};
  return said;
}

}  // namespace monarch
