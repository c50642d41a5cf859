// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/write_back.h"

#include <iterator>
#include <utility>

#include "runtime/base/os.h"

namespace monarch {

void WriteBack::add(Ref entry, Fd copy, uint64_t bytes) {
  MutexLock hold(lock_);
  // A copy larger than the bound goes alone.
  while (!stopping_ && kept_ != 0 && (kept_ >= kMaxKept || bytes_ + bytes > kMaxDirtyBytes))
    changed_.wait(&hold);
  if (stopping_) return;
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  waiting_.push_back({entry, std::move(copy), bytes});
  bytes_ += bytes;
  ++kept_;
  changed_.notify_all();
}

void WriteBack::stop() {
  std::thread thread;
  {
    const MutexLock hold(lock_);
    stopping_ = true;
    thread.swap(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

void WriteBack::run() {
  MutexLock hold(lock_);
  for (;;) {
    while (!stopping_ && waiting_.empty()) changed_.wait(&hold);
    if (stopping_) return;
    std::vector<Copy> batch(std::make_move_iterator(waiting_.begin()),
                            std::make_move_iterator(waiting_.end()));
    waiting_.clear();
    hold.unlock();
    finish(&batch);
    uint64_t bytes = 0;
    for (const Copy& copy : batch) bytes += copy.bytes;
    const size_t count = batch.size();
    batch.clear();  // closes
    hold.lock();
    bytes_ -= bytes;
    kept_ -= count;
    changed_.notify_all();
  }
}

// All of a batch is started before the first is waited for: the device sees a queue, not one file at a time.
void WriteBack::finish(std::vector<Copy>* batch) {
  for (Copy& copy : *batch) os::sync_range(copy.fd.get(), 0, 0, Sync::kStart);
  for (Copy& copy : *batch)
    if (os::sync_range(copy.fd.get(), 0, 0, Sync::kFinish) != 0 && is_write_back_error(errno))
      failed_(copy.entry, copy.bytes, errno_error("write-back"));
}

}  // namespace monarch
