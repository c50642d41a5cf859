// SPDX-License-Identifier: Apache-2.0
#include "admin/bounded.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "runtime/base/argv.h"
#include "runtime/base/os.h"
#include "runtime/node/life.h"

namespace monarch::admin {
namespace {

constexpr size_t kMost = 1 << 20;

}  // namespace

Question::Question(const std::function<std::string()>& ask) : asked_ms_(os::monotonic_ms()) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  answer_ = Fd(ends[0]);
  const Fd tell(ends[1]);
  pid_ = ::fork();
  if (pid_ > 0) ::setpgid(pid_, pid_);  // both do: whoever comes first
  if (pid_ != 0) return;
  ::setpgid(0, 0);
  if (!leave_standard_streams()) ::_exit(1);
  const std::string text = ask() + '\n';
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = ::write(tell.get(), text.data() + done, text.size() - done);
    if (n <= 0) ::_exit(1);
    done += static_cast<size_t>(n);
  }
  ::_exit(0);
}

Question::Question(Question&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), answer_(std::move(other.answer_)), asked_ms_(other.asked_ms_) {}

Question::~Question() {
  if (pid_ <= 0) return;
  ::kill(-pid_, SIGKILL);
  for (int i = 0; i < 100 && ::waitpid(pid_, nullptr, WNOHANG) == 0; ++i) ::usleep(1000);
}

Result<std::string> Question::answer(int patience_ms) {
  std::string text;
  while (pid_ > 0) {
    const int64_t left = asked_ms_ + patience_ms - os::monotonic_ms();
    pollfd p = {answer_.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0)
      return Error{ETIMEDOUT, "no answer in " + std::to_string(patience_ms / 1000) + " s"};
    char buffer[65536];
    const ssize_t n = ::read(answer_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  if (text.empty()) return Error{ECHILD, "it cannot be asked"};
  text.pop_back();
  return text;
}

std::string run_program(const std::vector<std::string>& words, int* status) {
  std::vector<std::string> copy = words;
  const std::vector<char*> argv = argv_of(copy);
  *status = 127 << 8;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return "";
  const Fd out(ends[0]);
  Fd in(ends[1]);
  const pid_t pid = ::fork();
  if (pid == 0) {
    const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::dup2(null, 0);
    ::dup2(in.get(), 1);
    ::dup2(in.get(), 2);
    ::unsetenv("LD_PRELOAD");
    ::execvp(argv[0], argv.data());
    ::_exit(127);
  }
  in.reset();
  std::string text;
  char buffer[65536];
  for (ssize_t n; pid > 0 && (n = ::read(out.get(), buffer, sizeof buffer)) > 0;)
    text.append(buffer, std::min(static_cast<size_t>(n), kMost - std::min(kMost, text.size())));
  if (pid > 0) ::waitpid(pid, status, 0);
  return text;
}

}  // namespace monarch::admin
