// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/clock.h"

#include <cerrno>
#include <chrono>
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
    const timespec until = {until_ns / 1'000'000'000, until_ns % 1'000'000'000};
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
};

}  // namespace

Clock& system_clock() {
  static SystemClock clock;
  return clock;
}

}  // namespace monarch
