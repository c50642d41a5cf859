// SPDX-License-Identifier: Apache-2.0
// Where threads of a test wait until the test lets them go on.
#pragma once

#include <condition_variable>
#include <mutex>

#include "scratch.h"

namespace monarch {

// Open at first. All members may be called from any thread.
class Gate {
 public:
  // Waits while it is shut.
  void pass() {
    std::unique_lock hold(lock_);
    ++waiting_;
    opened_.wait(hold, [this] { return open_; });
    --waiting_;
  }
  void shut() {
    const std::lock_guard hold(lock_);
    open_ = false;
  }
  void open() {
    const std::lock_guard hold(lock_);
    open_ = true;
    opened_.notify_all();
  }
  // Until so many wait; false if they never do.
  bool await_waiting(int count) {
    return eventually([&] { return waiting() >= count; });
  }
  int waiting() {
    const std::lock_guard hold(lock_);
    return waiting_;
  }

 private:
  std::mutex lock_;
  std::condition_variable opened_;
  bool open_ = true;
  int waiting_ = 0;
};

}  // namespace monarch
