// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/await.h"

#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/patience.h"

namespace monarch {

bool poll_until(Clock& clock, int64_t until_ms, const std::function<bool()>& condition) {
  for (int64_t pause_ns = patience::kFirstPollNs;; pause_ns = std::min(2 * pause_ns, patience::kBusyLookNs)) {
    if (condition()) return true;
    const int64_t left_ns = until_ms * 1'000'000 - clock.now_ns();
    if (left_ns <= 0) return false;
    clock.sleep_ns(std::min(pause_ns, left_ns));
  }
}

std::optional<int> await_child(Clock& clock, pid_t child, int64_t until_ms) {
  int status = 0;
  pid_t ended = 0;
  poll_until(clock, until_ms, [&] {
    ended = ::waitpid(child, &status, WNOHANG);
    return ended != 0 && !(ended < 0 && errno == EINTR);
  });
  if (ended < 0) return 1 << 8;  // none of this process's: nobody knows
  return ended == child ? std::optional<int>(status) : std::nullopt;
}

bool kill_child(Clock& clock, pid_t child) {
  ::kill(child, SIGKILL);
  return await_child(clock, child, clock.now_ms() + patience::kDeathMs).has_value();
}

}  // namespace monarch
