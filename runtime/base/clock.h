// SPDX-License-Identifier: Apache-2.0
// The clock that waits and deadlines go by, so that tests can drive them by hand (tests/manual_clock.h).
#pragma once

#include <cstdint>

#include "runtime/base/mutex.h"

namespace monarch {

// Time that only goes forward, and waits for it. All members may be called from any thread. A clock lives
// longer than what it is handed to.
class Clock {
 public:
  Clock() = default;
  Clock(const Clock&) = delete;
  Clock& operator=(const Clock&) = delete;
  virtual ~Clock() = default;

  // Nanoseconds since some moment: CLOCK_MONOTONIC's.
  virtual int64_t now_ns() = 0;
  int64_t now_ms() { return now_ns() / 1'000'000; }
  // Waits for `condition` until it is notified, or now_ns() is `until_ns`. May end early, as Condition's
  // waits.
  virtual void wait_until(Condition* condition, MutexLock* hold, int64_t until_ns) = 0;
  // Waits until the descriptor has one of `events` (poll(2)), or now_ns() is `until_ns`; whether it has. It
  // is looked at once at least.
  virtual bool poll_until(int fd, short events, int64_t until_ns);
  // So long at most may what waits by itself, such as libevent, wait before it looks at now_ns() again.
  virtual int64_t longest_wait_ns() { return INT64_MAX; }
  // Returns when now_ns() is `until_ns`.
  virtual void sleep_until(int64_t until_ns) = 0;
  void sleep_ns(int64_t ns) { sleep_until(now_ns() + ns); }
};

// CLOCK_MONOTONIC, for all that is handed no other clock.
Clock& system_clock();

}  // namespace monarch
