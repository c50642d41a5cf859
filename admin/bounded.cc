// SPDX-License-Identifier: Apache-2.0
#include "admin/bounded.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/argv.h"
#include "runtime/base/clock.h"
#include "runtime/base/os.h"

namespace monarch::admin {
namespace {

constexpr size_t kMost = 1 << 20;

}  // namespace

Question::Question(const std::function<std::string()>& ask)
    : asked_ms_(os::monotonic_ms()), child_([&](int tell) {
        ::setpgid(0, 0);
        return say(tell, ask());
      }) {}

Result<std::string> Question::answer(int patience_ms) {
  const int64_t left = asked_ms_ + patience_ms - os::monotonic_ms();
  Result<std::string> text =
      child_.output(static_cast<int>(std::max<int64_t>(left, 0)), kMost, system_clock());
  if (text.ok()) return text;
  if (text.error().code != ETIMEDOUT) return Error{ECHILD, "it cannot be asked"};
  return Error{ETIMEDOUT, "no answer in " + std::to_string(patience_ms / 1000) + " s"};
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

Result<std::string> ask_program(const std::vector<std::string>& words, int patience_ms) {
  Question asked([&] {
    int status;
    const std::string said = run_program(words, &status);
    if (status == 127 << 8) return "!there is no " + words[0] + " here";
    return (status == 0 ? "=" : "!") + said;
  });
  const Result<std::string> answer = asked.answer(patience_ms);
  if (!answer.ok()) return answer.error();
  if (answer->starts_with('=')) return answer->substr(1);
  return Error{ECHILD, answer->substr(1, answer->find('\n') - 1)};
}

}  // namespace monarch::admin
