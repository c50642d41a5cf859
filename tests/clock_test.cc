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
