// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/slowness.h"

#include <gtest/gtest.h>

#include "tests/manual_clock.h"

namespace monarch {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(Slowness, WhoAnswersHasMoreTimeForAWhile) {
  ManualClock clock;
  Slowness slowness(clock);
  slowness.took(50 * kMs, 100);
  EXPECT_EQ(slowness.limit_ms(100), 100);
  slowness.took(51 * kMs, 100);
  EXPECT_EQ(slowness.limit_ms(100), 100 * Slowness::kTimes);
  clock.advance_ms(patience::kPeerEveryMs);
  EXPECT_EQ(slowness.limit_ms(100), 100);
  Slowness other(clock);
  other.answered_late();
  EXPECT_EQ(other.limit_ms(7), 7 * Slowness::kTimes);
}

}  // namespace
}  // namespace monarch
