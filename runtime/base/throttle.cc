// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/throttle.h"

#include <algorithm>

#include "runtime/base/patience.h"

namespace monarch {
namespace {

constexpr int64_t kNsPerSecond = 1000000000;

}  // namespace

int64_t Throttle::cost(uint64_t units) const {
  const double ns = static_cast<double>(units) / static_cast<double>(per_second_) * kNsPerSecond;
  return static_cast<int64_t>(std::min(ns, 3600e9));
}

void Throttle::take(uint64_t units) {
  if (!limits()) return;
  const int64_t now = clock_.now_ns();
  int64_t until = paid_until_ns_.load(std::memory_order_relaxed), next;
  do {
    // A wait that is due anyway is not shortened by it.
    next = std::max(std::min(std::max(until, now) + cost(units), now + patience::kRateDebtNs), until);
  } while (!paid_until_ns_.compare_exchange_weak(until, next, std::memory_order_relaxed));
}

bool Throttle::wait(uint64_t units, const std::function<bool()>& give_up) {
  if (!limits()) return true;
  for (;;) {
    if (give_up()) return false;
    const int64_t now = clock_.now_ns();
    int64_t until = paid_until_ns_.load(std::memory_order_relaxed);
    if (until <= now + patience::kRateBurstNs) {
      const int64_t next = std::max(until, now) + cost(units);
      if (paid_until_ns_.compare_exchange_strong(until, next, std::memory_order_relaxed)) return true;
      continue;
    }
    clock_.sleep_ns(std::min(until - now - patience::kRateBurstNs, patience::kRateSliceNs));
  }
}

}  // namespace monarch
