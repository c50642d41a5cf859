// SPDX-License-Identifier: Apache-2.0
// A clock that a test moves.
#pragma once

#include <poll.h>
#include <time.h>

#include <algorithm>
#include <chrono>
#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/os.h"
#include "scratch.h"

namespace monarch {

// Stands still until advance(). Waits end when the time that they wait for has come, or their condition is
// notified.
class ManualClock final : public Clock {
 public:
  int64_t now_ns() override {
    MutexLock hold(lock_);
    return now_ns_;
  }
  void wait_until(Condition* condition, MutexLock* hold, int64_t until_ns) override {
    Waiter self{condition, hold->mutex(), until_ns};
    {
      MutexLock own(lock_);
      if (now_ns_ >= until_ns) return;
      waiters_.push_back(&self);
    }
    condition->wait(hold);
    forget(&self, hold);
  }
  void sleep_until(int64_t until_ns) override {
    Waiter self{nullptr, nullptr, until_ns};
    MutexLock hold(lock_);
    ++sleeping_;
    waiters_.push_back(&self);
    if (sleeps_end_) slept_.wait_for(&hold, std::chrono::milliseconds(1));  // the others have the processor
    while (now_ns_ < until_ns && !sleeps_end_) slept_.wait(&hold);
    // cppcheck-suppress danglingLifetime
    std::erase(waiters_, &self);
    --sleeping_;
  }
  // What waits by itself sees within a moment that time has moved.
  bool poll_until(int fd, short events, int64_t until_ns) override {
    Waiter self{nullptr, nullptr, until_ns};
    {
      MutexLock hold(lock_);
      waiters_.push_back(&self);
    }
    const bool has = Clock::poll_until(fd, events, until_ns);
    MutexLock hold(lock_);
    std::erase(waiters_, &self);
    return has;
  }
  int64_t longest_wait_ns() override { return 1'000'000; }

  // Sleeps end at once from now on, though no time passes: so who asks again and again asks on, and nobody's
  // patience ends.
  void end_sleeps() {
    MutexLock hold(lock_);
    sleeps_end_ = true;
    slept_.notify_all();
  }
  // Until their time has come, as at first.
  void hold_sleeps() {
    MutexLock hold(lock_);
    sleeps_end_ = false;
  }
  // How many sleep.
  size_t sleeping() {
    MutexLock hold(lock_);
    return sleeping_;
  }
  // Until so many do; false if they never do.
  bool await_sleeping(size_t count) {
    return eventually([&] { return sleeping() >= count; });
  }
  // Moves time, and wakes all whose time has come. They run on when this has returned.
  void advance(int64_t ns) {
    std::vector<Waiter*> due;
    {
      MutexLock hold(lock_);
      now_ns_ += ns;
      for (Waiter* waiter : waiters_) {
        if (waiter->until_ns > now_ns_ || !waiter->condition) continue;
        ++waiter->used;
        due.push_back(waiter);
      }
      slept_.notify_all();
    }
    for (Waiter* waiter : due) {
      // Its thread waits then: it has held this mutex since it became a waiter.
      { MutexLock hold(*waiter->mutex); }
      waiter->condition->notify_all();
      MutexLock hold(lock_);
      --waiter->used;
      unused_.notify_all();
    }
  }
  void advance_ms(int64_t ms) { advance(ms * 1'000'000); }
  // Moves time to the next moment that somebody waits for; false if nobody waits.
  bool advance_to_next() {
    const int64_t next = next_ns();
    if (next < 0) return false;
    advance(std::max<int64_t>(0, next - now_ns()));
    return true;
  }

  // How many wait for a time that has not come.
  size_t waiting() {
    MutexLock hold(lock_);
    return static_cast<size_t>(std::count_if(waiters_.begin(), waiters_.end(),
                                             [this](const Waiter* w)
                                                 REQUIRES(lock_) { return w->until_ns > now_ns_; }));
  }
  // Waits until so many do; false if they never do.
  bool await_waiting(size_t count) {
    return eventually([&] { return waiting() >= count; });
  }
  // The next time that somebody waits for; -1: nobody does.
  int64_t next_ns() {
    MutexLock hold(lock_);
    int64_t next = -1;
    for (const Waiter* waiter : waiters_)
      if (waiter->until_ns > now_ns_ && (next < 0 || waiter->until_ns < next)) next = waiter->until_ns;
    return next;
  }

 private:
  struct Waiter {
    Condition* condition;  // nullptr: it looks by itself, or sleeps
    Mutex* mutex;
    int64_t until_ns;
    int used = 0;  // by advance()
  };

  // Without the waiter's mutex, which advance() takes, and which the compiler does not follow here.
  MONARCH_LOCKS(no_thread_safety_analysis) void forget(Waiter* waiter, MutexLock* hold) {
    hold->unlock();
    {
      MutexLock own(lock_);
      while (waiter->used > 0) unused_.wait(&own);
      std::erase(waiters_, waiter);
    }
    hold->lock();
  }

  Mutex lock_;
  Condition unused_, slept_;
  int64_t now_ns_ GUARDED_BY(lock_) = 1'000'000'000'000;
  std::vector<Waiter*> waiters_ GUARDED_BY(lock_);
  bool sleeps_end_ GUARDED_BY(lock_) = false;
  size_t sleeping_ GUARDED_BY(lock_) = 0;
};

// A clock for what processes wait for of each other, which is theirs, too: however slow the machine is, no
// wait for a descriptor is over before `event` holds; then all such waits are over at once. Otherwise time
// goes on by pauses alone, and by a tenth of those between two looks at something. What hangs though a test
// has named no event is given up after a minute.
class PatientClock final : public Clock {
 public:
  explicit PatientClock(std::function<bool()> event = {}) : event_(std::move(event)) {}
  // Does it in the `number`th pause from now on, counted from 1.
  void at_pause(int number, std::function<void()> what) {
    pauses_ = 0;
    at_ = number;
    in_it_ = std::move(what);
  }
  // From now on, and in processes that are forked from now on.
  void pass_once(std::function<bool()> event) { event_ = std::move(event); }

  int64_t now_ns() override {
    timespec real;
    ::clock_gettime(CLOCK_MONOTONIC, &real);
    const int64_t later =
        os::clock_ns(CLOCK_MONOTONIC) - (int64_t{real.tv_sec} * 1'000'000'000 + real.tv_nsec);
    return begin_ns_ + passed_ns_ + later / 1'000'000'000 * 1'000'000'000;  // by LaterBy (faulty_os.h)
  }
  void sleep_until(int64_t until_ns) override {
    const int64_t left = until_ns - now_ns();
    if (left <= 0) return;
    system_clock().sleep_ns(left);
    constexpr int64_t kLongestLookNs = 10'000'000;
    passed_ns_ += left <= kLongestLookNs && !has_come() ? (left + 9) / 10 : left;
    if (++pauses_ == at_ && in_it_) in_it_();
  }
  void wait_until(Condition* condition, MutexLock* hold, int64_t until_ns) override {
    system_clock().wait_until(condition, hold, system_clock().now_ns() + until_ns - now_ns());
  }
  bool poll_until(int fd, short events, int64_t until_ns) override {
    constexpr int kGivenUpMs = 60'000;
    const int64_t left = until_ns - now_ns();
    for (int waited_ms = 0;; ++waited_ms) {
      const bool over = left <= 0 || waited_ms >= kGivenUpMs || has_come();
      pollfd p = {fd, events, 0};
      if (::poll(&p, 1, over ? 0 : 1) > 0) return true;
      if (!over) continue;
      passed_ns_ += std::max<int64_t>(left, 0);
      return false;
    }
  }

 private:
  bool has_come() const { return event_ && event_(); }

  std::function<bool()> event_;
  std::atomic<int> pauses_{0}, at_{0};
  std::function<void()> in_it_;
  const int64_t begin_ns_ = os::clock_ns(CLOCK_MONOTONIC);
  std::atomic<int64_t> passed_ns_{0};
};

}  // namespace monarch
