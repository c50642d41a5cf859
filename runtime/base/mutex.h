// SPDX-License-Identifier: Apache-2.0
// Locks that clang's thread-safety analysis knows, and the words by which data names its lock. The check
// fails where guarded data is touched, or a function that needs a lock is called, without it
// (build-aux/tidy-cxx). Other compilers see plain std::mutex and std::condition_variable.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#ifdef __clang__
#define MONARCH_LOCKS(x) __attribute__((x))
#else
#define MONARCH_LOCKS(x)
#endif

#define CAPABILITY(name) MONARCH_LOCKS(capability(name))
#define SCOPED_CAPABILITY MONARCH_LOCKS(scoped_lockable)
// Data: to be touched with this lock held only.
#define GUARDED_BY(lock) MONARCH_LOCKS(guarded_by(lock))
// Functions: to be called with these locks held, or not held.
#define REQUIRES(...) MONARCH_LOCKS(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) MONARCH_LOCKS(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) MONARCH_LOCKS(acquire_capability(__VA_ARGS__))
#define RELEASE(...) MONARCH_LOCKS(release_capability(__VA_ARGS__))

namespace monarch {

class CAPABILITY("mutex") Mutex {
 public:
  void lock() ACQUIRE() { mutex_.lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }

 private:
  friend class MutexLock;
  std::mutex mutex_;
};

// Holds a mutex while it lives, but for what is between unlock() and lock().
class SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ACQUIRE(mutex) : mutex_(&mutex), held_(mutex.mutex_) {}
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;
  ~MutexLock() RELEASE() {}
  void unlock() RELEASE() { held_.unlock(); }
  void lock() ACQUIRE() { held_.lock(); }
  Mutex* mutex() const { return mutex_; }

 private:
  friend class Condition;
  Mutex* mutex_;
  std::unique_lock<std::mutex> held_;
};

// Waits give the lock back meanwhile. Each may end early: wait in a loop that looks at what it waits for.
class Condition {
 public:
  void wait(MutexLock* hold) { condition_.wait(hold->held_); }
  void wait_for(MutexLock* hold, std::chrono::nanoseconds time) { condition_.wait_for(hold->held_, time); }
  void notify_one() { condition_.notify_one(); }
  void notify_all() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

}  // namespace monarch
