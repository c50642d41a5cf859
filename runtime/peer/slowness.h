// SPDX-License-Identifier: Apache-2.0
// Whether nodes are known to answer slowly, as where what they say waits behind files in a full link, or is
// lost there and sent again. Then they have more time; a node that hangs does not give itself more by that.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/os.h"

namespace monarch {

// All members may be called from any thread.
class Slowness {
 public:
  static constexpr int kTimes = 5;

  // How long something may take now that takes `ms` at most as a rule.
  int limit_ms(int ms) const { return now_ns() < until_ns_ ? kTimes * ms : ms; }
  // Something that takes `ms` at most as a rule took so long.
  void took(int64_t ns, int ms) {
    if (ns > int64_t{ms} * kNsPerMs / 2) answered_late();
  }
  // An answer has come that nobody waited for any more.
  void answered_late() { until_ns_ = now_ns() + kLastsNs; }

 private:
  static constexpr int64_t kNsPerMs = 1'000'000, kLastsNs = 10'000 * kNsPerMs;
  static int64_t now_ns() { return os::clock_ns(CLOCK_MONOTONIC); }
  std::atomic<int64_t> until_ns_{0};
};

}  // namespace monarch
