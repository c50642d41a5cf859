// SPDX-License-Identifier: Apache-2.0
// Whether nodes are known to answer slowly, as where what they say waits behind files in a full link, or is
// lost there and sent again. Then they have more time; a node that hangs does not give itself more by that.
#pragma once

#include <atomic>
#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/patience.h"

namespace monarch {

// All members may be called from any thread.
class Slowness {
 public:
  static constexpr int kTimes = 5;

  explicit Slowness(Clock& clock = system_clock()) : clock_(clock) {}

  // How long something may take now that takes `ms` at most as a rule.
  int limit_ms(int ms) const { return clock_.now_ns() < until_ns_ ? kTimes * ms : ms; }
  // Something that takes `ms` at most as a rule took so long.
  void took(int64_t ns, int ms) {
    if (ns > int64_t{ms} * kNsPerMs / 2) answered_late();
  }
  // An answer has come that nobody waited for any more.
  void answered_late() { until_ns_ = clock_.now_ns() + patience::kPeerEveryMs * kNsPerMs; }

 private:
  static constexpr int64_t kNsPerMs = 1'000'000;
  Clock& clock_;
  std::atomic<int64_t> until_ns_{0};
};

}  // namespace monarch
