// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/node/life.h"
#include "runtime/node/removal.h"

namespace monarch {
namespace {

constexpr int kReapAttempts = 20, kReapUs = 1000;
constexpr int kTellFd = 3;

// What root is about to do on a tier, but for changes.
void look_at(const std::string& tier) {
  const Fd base(os::openat(AT_FDCWD, tier.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  struct statvfs fs;
  (void)os::fstatvfs(base.get(), &fs);
  const Fd jobs(
      os::openat(base.get(), "monarch", O_PATH | O_NOFOLLOW | O_CLOEXEC));  // not what a user mounted
}

}  // namespace

std::vector<bool> probe(const StateDir& state, const std::vector<std::string>& tiers, int patience_ms) {
  std::vector<bool> answered(tiers.size(), false);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return std::vector<bool>(tiers.size(), true);
  const Fd in(ends[0]);
  Fd tell(ends[1]);
  std::vector<pid_t> children;
  for (size_t i = 0; i < tiers.size(); ++i) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::dup2(tell.get(), kTellFd);
      ::syscall(SYS_close_range, kTellFd + 1u, ~0u, 0u);  // locks: it may hang for ever
      if (!leave_standard_streams()) ::_exit(1);
      look_at(tiers[i]);
      const auto number = static_cast<uint32_t>(i);
      ::_exit(::write(kTellFd, &number, sizeof number) == sizeof number ? 0 : 1);
    }
    children.push_back(pid);
    if (pid < 0) answered[i] = true;  // not known to hang
  }
  tell.reset();
  const int64_t end = os::clock_ns(CLOCK_MONOTONIC) / 1000000 + patience_ms;
  while (std::find(answered.begin(), answered.end(), false) != answered.end()) {
    const int64_t left = end - os::clock_ns(CLOCK_MONOTONIC) / 1000000;
    pollfd p = {in.get(), POLLIN, 0};
    if (left <= 0 || ::poll(&p, 1, static_cast<int>(left)) == 0) break;
    uint32_t number;
    const ssize_t n = ::read(in.get(), &number, sizeof number);
    if (n == 0) break;  // a child died
    if (n == sizeof number && number < answered.size()) answered[number] = true;
  }
  for (size_t i = 0; i < children.size(); ++i) {
    if (children[i] < 0) continue;
    if (!answered[i]) ::kill(children[i], SIGKILL);
    pid_t gone = ::waitpid(children[i], nullptr, answered[i] ? 0 : WNOHANG);
    for (int k = 0; gone == 0 && k < kReapAttempts; ++k) {
      ::usleep(kReapUs);
      gone = ::waitpid(children[i], nullptr, WNOHANG);
    }
    if (gone == 0) leave_behind(state, children[i]);
  }
  return answered;
}

std::vector<bool> can_enter(const User& user, const std::vector<std::string>& tiers, int patience_ms) {
  std::string said(tiers.size(), '1');
  const bool told = run_as(user, patience_ms, said.data(), said.size(), [&](int fd) {
    std::string can;
    for (const std::string& path : tiers) can += os::access(path.c_str(), X_OK) == 0 ? '1' : '0';
    return ::write(fd, can.data(), can.size()) == static_cast<ssize_t>(can.size());
  });
  std::vector<bool> enters;
  for (const char c : said) enters.push_back(!told || c == '1');
  return enters;
}

}  // namespace monarch
