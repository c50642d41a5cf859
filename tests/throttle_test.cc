// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/clock.h"
#include "runtime/base/throttle.h"

#include <optional>

#include "tests/quiet.h"

namespace monarch {
namespace {

const std::function<bool()> kNever = [] { return false; };

class ThrottleTest : public ::testing::Test {
 protected:
  // How long `threads` threads that each take one unit `times` times are held up in all, in milliseconds.
  int64_t ms_for(uint32_t threads, int times) {
    const int64_t begin = clock_.now_ns();
    std::atomic<int> made{0};
    Threads waiting(threads, [&](uint32_t) {
      for (int i = 0; i < times; ++i) made += rate_->wait(1, kNever);
    });
    EXPECT_TRUE(eventually(&clock_, [&] { return made == static_cast<int>(threads) * times; }));
    return (clock_.now_ns() - begin) / 1'000'000;
  }
  ManualClock clock_;
  std::optional<Throttle> rate_;
};

TEST_F(ThrottleTest, WithoutRateNothingWaits) {
  Throttle none(0, clock_);
  EXPECT_FALSE(none.limits());
  none.take(UINT64_MAX);
  EXPECT_TRUE(none.wait(UINT64_MAX, [] { return true; }));
}

// A rate is a promise to others: it is never passed, however many threads share it.
TEST_F(ThrottleTest, ThreadsTogetherKeepToTheRateButForTheBurst) {
  rate_.emplace(1000, clock_);
  const int64_t ms = ms_for(4, 100);
  EXPECT_GE(ms, 400 - 100 - 1);
  EXPECT_LE(ms, 400) << "and it is reached";
}

TEST_F(ThrottleTest, ExcessOfTakeHoldsUpWait) {
  rate_.emplace(1000, clock_);
  rate_->take(500);
  EXPECT_EQ(clock_.waiting(), 0u);
  EXPECT_EQ(ms_for(1, 1), 400);
}

TEST_F(ThrottleTest, DebtIsForgivenAfterTwoSeconds) {
  rate_.emplace(10, clock_);
  rate_->take(1000000);
  EXPECT_EQ(ms_for(1, 1), 1900);
}

TEST_F(ThrottleTest, WaiterGivesUpAtItsNextSlice) {
  rate_.emplace(1, clock_);
  EXPECT_TRUE(rate_->wait(3600, kNever));
  std::atomic<bool> stop{false};
  std::atomic<int> gave_up{0};
  Threads waiters(2, [&](uint32_t) { gave_up += !rate_->wait(1, [&] { return stop.load(); }); });
  ASSERT_TRUE(clock_.await_waiting(2));
  stop = true;
  clock_.advance_ms(20);
  waiters.join();
  EXPECT_EQ(gave_up, 2);
}

TEST(SystemClockTest, WaitAndSleepLastUntilTheTime) {
  Clock& clock = system_clock();
  int64_t until = clock.now_ns() + 1'000'000;
  clock.sleep_until(until);
  EXPECT_GE(clock.now_ns(), until);
  Mutex lock;
  Condition condition;
  MutexLock hold(lock);
  until = clock.now_ns() + 1'000'000;
  while (clock.now_ns() < until) clock.wait_until(&condition, &hold, until);
}

}  // namespace
}  // namespace monarch
