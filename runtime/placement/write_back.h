// SPDX-License-Identifier: Apache-2.0
// Watches that what was written to a tier through the page cache reaches the device. A write can fail after
// write(2) and linkat(2) have succeeded (a thin, failing or detached device), and only a descriptor that was
// open before the failure is told: so each copy's descriptor is kept until its pages are on the device.
#pragma once

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {

// The write-back of one tier. All members may be called from any thread.
class WriteBack {
 public:
  // `failed` is called from a thread of this object when a copy's pages did not reach the device.
  using Failed = std::function<void(Ref entry, uint64_t bytes, const Error& error)>;
  explicit WriteBack(Failed failed) : failed_(std::move(failed)) {}
  ~WriteBack() { stop(); }
  WriteBack(const WriteBack&) = delete;
  WriteBack& operator=(const WriteBack&) = delete;

  // Takes the descriptor of a copy of `bytes` that has just been published. Waits while as much is kept as
  // the bounds on dirty pages and descriptors allow.
  void add(Ref entry, Fd copy, uint64_t bytes);
  // Forgets what is kept and waits for the thread; a thread inside a hanging call is waited for.
  void stop();

 private:
  struct Copy {
    Ref entry;
    Fd fd;
    uint64_t bytes;
  };
  static constexpr uint64_t kMaxDirtyBytes = 64 << 20;
  static constexpr size_t kMaxKept = 256;
  void run();
  void finish(std::vector<Copy>* batch);

  const Failed failed_;
  Mutex lock_;
  Condition changed_;
  std::deque<Copy> waiting_ GUARDED_BY(lock_);
  uint64_t bytes_ GUARDED_BY(lock_) = 0;  // of waiting_ and of the batch in work
  size_t kept_ GUARDED_BY(lock_) = 0;     // their number
  bool stopping_ GUARDED_BY(lock_) = false;
  std::thread thread_ GUARDED_BY(lock_);  // started by the first add()
};

}  // namespace monarch
