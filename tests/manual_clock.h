// SPDX-License-Identifier: Apache-2.0
// A clock that a test moves.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/base/clock.h"
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
    Mutex mutex;
    Condition condition;
    MutexLock hold(mutex);
    while (now_ns() < until_ns) wait_until(&condition, &hold, until_ns);
  }

  // Moves time, and wakes all whose time has come. They run on when this has returned.
  void advance(int64_t ns) {
    std::vector<Waiter*> due;
    {
      MutexLock hold(lock_);
      now_ns_ += ns;
      for (Waiter* waiter : waiters_) {
        if (waiter->until_ns > now_ns_) continue;
        ++waiter->used;
        due.push_back(waiter);
      }
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
    Condition* condition;
    Mutex* mutex;
    int64_t until_ns;
    int used = 0;  // by advance()
  };

  // Without the waiter's mutex, which advance() takes.
  void forget(Waiter* waiter, MutexLock* hold) {
    hold->unlock();
    {
      MutexLock own(lock_);
      while (waiter->used > 0) unused_.wait(&own);
      std::erase(waiters_, waiter);
    }
    hold->lock();
  }

  Mutex lock_;
  Condition unused_;
  int64_t now_ns_ GUARDED_BY(lock_) = 1'000'000'000'000;
  std::vector<Waiter*> waiters_ GUARDED_BY(lock_);
};

}  // namespace monarch
