// SPDX-License-Identifier: Apache-2.0
// Watches that what was written to a tier through the page cache reaches the device. A write can fail after
// write(2) and linkat(2) have succeeded (a thin, failing or detached device), and only a descriptor that was
// open before the failure is told: so each copy's descriptor is kept until its pages are on the device. A
// copy that nobody waits for is published only then.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/placement/staging.h"

namespace monarch {

// The write-back of one tier. All members may be called from any thread.
class WriteBack {
 public:
  struct Events {
    // A kNamed copy is to be published now: sets its step. Called with a lock held: must not call back.
    std::function<void(Staging*)> publish;
    // The copy's pages reached their device, or did not.
    std::function<void(std::unique_ptr<Staging>, const Status&)> ended;
  };
  explicit WriteBack(Events events) : events_(std::move(events)) {}
  ~WriteBack() { stop(); }
  WriteBack(const WriteBack&) = delete;
  WriteBack& operator=(const WriteBack&) = delete;

  // Takes a file whose copy is complete and has its name. Returns when no more is kept than the bounds on
  // dirty pages and descriptors allow. Where no thread can be made, the write-back is waited for.
  void add(std::unique_ptr<Staging> file) EXCLUDES(lock_);
  // Somebody waits for the copy: if it is here and not published, it is published now.
  void hurry(Ref entry) EXCLUDES(lock_);
  // Forgets what is kept and waits for the thread; a thread inside a hanging call is waited for.
  void stop() EXCLUDES(lock_);

 private:
  static constexpr uint64_t kMaxDirtyBytes = 64 << 20;
  static constexpr size_t kMaxKept = 256;
  void run() EXCLUDES(lock_);
  // Has the write-back of all that waits done, in the calling thread.
  void finish() EXCLUDES(lock_);
  void end_first(const Status& written) EXCLUDES(lock_);

  const Events events_;
  Mutex lock_;
  Condition changed_;
  std::list<std::unique_ptr<Staging>> waiting_ GUARDED_BY(lock_);
  std::list<std::unique_ptr<Staging>> in_work_
      GUARDED_BY(lock_);                      // elements stay while the thread waits for them
  uint64_t bytes_ GUARDED_BY(lock_) = 0;      // of both
  size_t kept_ GUARDED_BY(lock_) = 0;         // their number
  bool finishing_ GUARDED_BY(lock_) = false;  // a thread waits for in_work_
  bool stopping_ GUARDED_BY(lock_) = false;
  std::thread thread_ GUARDED_BY(lock_);  // started by the first add()
};

}  // namespace monarch
