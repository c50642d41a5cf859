// SPDX-License-Identifier: Apache-2.0
// A rate that background work keeps to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "runtime/base/clock.h"

namespace monarch {

// So many units (bytes, opens, stats) per second, evenly; short pauses may be made up for within
// kRateBurstNs. What somebody waits for is counted by take() and not held up: background work then waits
// longer. All members may be called from any thread.
class Throttle {
 public:
  // 0: no limit.
  explicit Throttle(uint64_t per_second, Clock& clock = system_clock())
      : per_second_(per_second), clock_(clock) {}
  Throttle(const Throttle&) = delete;
  Throttle& operator=(const Throttle&) = delete;

  bool limits() const { return per_second_ != 0; }

  // Counts `units` at once. What was taken in excess holds up wait() for kRateDebtNs at the most.
  void take(uint64_t units);
  // Counts `units` when the rate allows them; sleeps until then, in short slices. False, and nothing is
  // counted, if `give_up` returns true meanwhile.
  bool wait(uint64_t units, const std::function<bool()>& give_up);

 private:
  int64_t cost(uint64_t units) const;

  const uint64_t per_second_;
  Clock& clock_;
  std::atomic<int64_t> paid_until_ns_{0};  // what was counted is paid for by then
};

}  // namespace monarch
