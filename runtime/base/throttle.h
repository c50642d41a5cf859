// SPDX-License-Identifier: Apache-2.0
// A rate that background work keeps to.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace monarch {

// So many units (bytes, opens, stats) per second, evenly; short pauses may be made up for within kBurstNs.
// What somebody waits for is counted by take() and not held up: background work then waits longer. All
// members may be called from any thread.
class Throttle {
 public:
  explicit Throttle(uint64_t per_second) : per_second_(per_second) {}  // 0: no limit
  Throttle(const Throttle&) = delete;
  Throttle& operator=(const Throttle&) = delete;

  bool limits() const { return per_second_ != 0; }

  // Counts `units` at once. What was taken in excess holds up wait() for kMaxDebtNs at the most.
  void take(uint64_t units);
  // Counts `units` when the rate allows them; sleeps until then, in short slices. False, and nothing is
  // counted, if `give_up` returns true meanwhile.
  bool wait(uint64_t units, const std::function<bool()>& give_up);

 private:
  static constexpr int64_t kBurstNs = 100 * 1000000;
  static constexpr int64_t kMaxDebtNs = 2000 * 1000000ll;
  int64_t cost(uint64_t units) const;

  const uint64_t per_second_;
  std::atomic<int64_t> paid_until_ns_{0};  // monotonic: what was counted is paid for by then
};

}  // namespace monarch
