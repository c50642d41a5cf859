// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/clock.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>

#include "runtime/base/os.h"

namespace monarch {
namespace {

class SystemClock final : public Clock {
 public:
  int64_t now_ns() override { return os::clock_ns(CLOCK_MONOTONIC); }
  void wait_until(Condition* condition, MutexLock* hold, int64_t until_ns) override {
    const int64_t left = until_ns - now_ns();
    if (left > 0) condition->wait_for(hold, std::chrono::nanoseconds(left));
  }
  void sleep_until(int64_t until_ns) override {
    // Not an absolute time: tests shift what now_ns() reads.
    for (int64_t left; (left = until_ns - now_ns()) > 0;) {
      const timespec nap = {left / 1'000'000'000, left % 1'000'000'000};
      ::clock_nanosleep(CLOCK_MONOTONIC, 0, &nap, nullptr);
    }
  }
};

}  // namespace

bool Clock::poll_until(int fd, short events, int64_t until_ns) {
  constexpr int64_t kMs = 1'000'000;
  for (;;) {
    pollfd at = {fd, events, 0};
    const int64_t left = std::max<int64_t>(until_ns - now_ns(), 0);
    const int64_t ms = std::min(std::min(left, longest_wait_ns()) / kMs + (left > 0), int64_t{INT_MAX});
    if (::poll(&at, 1, static_cast<int>(ms)) > 0) return true;
    if (left == 0) return false;
  }
}

Clock& system_clock() {
  static SystemClock clock;
  return clock;
}

}  // namespace monarch
