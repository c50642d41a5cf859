// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/slowness.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

constexpr int64_t kMs = 1'000'000;

TEST(Slowness, WhoAnswersHasMoreTimeForAWhile) {
  Slowness slowness;
  slowness.took(50 * kMs, 100);
  EXPECT_EQ(slowness.limit_ms(100), 100);
  slowness.took(51 * kMs, 100);
  EXPECT_EQ(slowness.limit_ms(100), 100 * Slowness::kTimes);
  Slowness other;
  other.answered_late();
  EXPECT_EQ(other.limit_ms(7), 7 * Slowness::kTimes);
}

}  // namespace
}  // namespace monarch
