// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/clock.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "manual_clock.h"

namespace monarch {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

// Waits for a notification or a time, and notes which came.
class Waiting {
 public:
  Waiting(Clock* clock, int64_t until_ns) : thread_([this, clock, until_ns] { wait(clock, until_ns); }) {}
  ~Waiting() {
    notify();
    thread_.join();
  }
  void notify() {
    MutexLock hold(lock_);
    notified_ = true;
    condition_.notify_all();
  }
  bool ended() const { return ended_; }

 private:
  void wait(Clock* clock, int64_t until_ns) {
    MutexLock hold(lock_);
    while (!notified_ && clock->now_ns() < until_ns) clock->wait_until(&condition_, &hold, until_ns);
    ended_ = true;
  }
  Mutex lock_;
  Condition condition_;
  bool notified_ GUARDED_BY(lock_) = false;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

TEST(ManualClockTest, WaitEndsWhenItsTimeHasCome) {
  ManualClock clock;
  const int64_t begin = clock.now_ns();
  Waiting first(&clock, begin + kSecond), second(&clock, begin + 2 * kSecond);
  ASSERT_TRUE(clock.await_waiting(2));
  EXPECT_EQ(clock.next_ns(), begin + kSecond);
  clock.advance(kSecond - 1);
  EXPECT_EQ(clock.waiting(), 2u);
  EXPECT_TRUE(clock.advance_to_next());
  EXPECT_TRUE(eventually([&] { return first.ended(); }));
  EXPECT_FALSE(second.ended());
  EXPECT_EQ(clock.waiting(), 1u);
  clock.advance(kSecond);
  EXPECT_TRUE(eventually([&] { return second.ended(); }));
  EXPECT_FALSE(clock.advance_to_next());
}

TEST(ManualClockTest, NotificationEndsWaitBeforeItsTime) {
  ManualClock clock;
  Waiting waiting(&clock, clock.now_ns() + kSecond);
  ASSERT_TRUE(clock.await_waiting(1));
  waiting.notify();
  EXPECT_TRUE(eventually([&] { return waiting.ended() && clock.waiting() == 0; }));
}

TEST(ManualClockTest, SleepEndsWhenItsTimeHasCome) {
  ManualClock clock;
  std::atomic<bool> awake{false};
  std::thread sleeper([&] {
    clock.sleep_ns(kSecond);
    awake = true;
  });
  ASSERT_TRUE(clock.await_waiting(1));
  EXPECT_FALSE(awake);
  clock.advance(kSecond);
  sleeper.join();
  EXPECT_TRUE(awake);
}

TEST(ManualClockTest, SleepsMayEndThoughNoTimePasses) {
  ManualClock clock;
  std::thread sleeper([&] { clock.sleep_ns(kSecond); });
  EXPECT_TRUE(eventually([&] { return clock.sleeping() == 1; }));
  clock.end_sleeps();
  sleeper.join();
  clock.sleep_ns(kSecond);
  EXPECT_EQ(clock.sleeping(), 0u);
  clock.hold_sleeps();
  std::thread again([&] { clock.sleep_ns(kSecond); });
  ASSERT_TRUE(clock.await_waiting(1));
  clock.advance(kSecond);
  again.join();
}

TEST(ManualClockTest, PollEndsWhenItsTimeHasComeOrThereIsSomething) {
  ManualClock clock;
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  std::atomic<int> has{-1};
  const auto poll = [&] { has = clock.poll_until(ends[0], POLLIN, clock.now_ns() + kSecond); };
  std::thread late(poll);
  ASSERT_TRUE(clock.await_waiting(1));
  EXPECT_EQ(has, -1);
  clock.advance(kSecond);
  late.join();
  EXPECT_EQ(has, 0);
  std::thread soon(poll);
  ASSERT_TRUE(clock.await_waiting(1));
  ASSERT_EQ(::write(ends[1], "x", 1), 1);
  soon.join();
  EXPECT_EQ(has, 1);
  EXPECT_EQ(clock.waiting(), 0u);
  for (const int end : ends) ::close(end);
}

TEST(SystemClockTest, WaitAndSleepLastUntilTheTime) {
  Clock& clock = system_clock();
  const int64_t until = clock.now_ns() + 1'000'000;
  clock.sleep_until(until);
  EXPECT_GE(clock.now_ns(), until);
  Waiting waiting(&clock, clock.now_ns() + 1'000'000);
  EXPECT_TRUE(eventually([&] { return waiting.ended(); }));
}

}  // namespace
}  // namespace monarch
