// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/throttle.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "tests/scratch.h"

namespace monarch {
namespace {

const std::function<bool()> kNever = [] { return false; };

double seconds_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

TEST(Throttle, WithoutARateNothingWaits) {
  Throttle none(0);
  EXPECT_FALSE(none.limits());
  none.take(UINT64_MAX);
  EXPECT_TRUE(none.wait(UINT64_MAX, [] { return true; }));
}

// A rate is a promise to others: it is never passed, however many threads share it. (That it is reached is
// for the benchmarks: a busy machine may be slower.)
TEST(Throttle, ThreadsTogetherKeepToTheRate) {
  Throttle rate(1000);
  std::atomic<int> made{0};
  const double seconds = seconds_of([&] {
    Threads threads(4, [&](uint32_t) {
      for (int i = 0; i < 100; ++i) made += rate.wait(1, kNever);
    });
  });
  EXPECT_EQ(made, 400);
  EXPECT_GE(seconds, 0.4 - 0.1 - 0.01) << "400 at 1000 per second, but for a burst of 100 ms";
}

TEST(Throttle, WhatIsTakenIsMadeUpFor) {
  Throttle rate(1000);
  const double took = seconds_of([&] { rate.take(500); });
  EXPECT_LT(took, 2) << "take() does not wait";
  EXPECT_GE(seconds_of([&] { EXPECT_TRUE(rate.wait(1, kNever)); }), 0.35);
}

TEST(Throttle, ADebtIsForgivenAfterTwoSeconds) {
  Throttle rate(10);
  rate.take(1000000);
  EXPECT_LT(seconds_of([&] { EXPECT_TRUE(rate.wait(1, kNever)); }), 20);
}

TEST(Throttle, AWaiterGivesUpWhenToldTo) {
  Throttle rate(1);
  EXPECT_TRUE(rate.wait(3600, kNever));
  std::atomic<bool> stop{false};
  std::atomic<int> gave_up{0};
  Threads waiters(2, [&](uint32_t) { gave_up += !rate.wait(1, [&] { return stop.load(); }); });
  stop = true;
  waiters.join();
  EXPECT_EQ(gave_up, 2);
}

}  // namespace
}  // namespace monarch
