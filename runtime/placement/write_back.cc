// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/write_back.h"

#include <utility>

#include "runtime/base/os.h"

namespace monarch {
namespace {

// Waits until what was written to the file is on its device.
Status sync_whole(int fd) {
  if (os::sync_range(fd, 0, 0, Sync::kFinish) == 0 || !is_write_back_error(errno)) return {};
  return errno_error("write-back");
}

}  // namespace

void WriteBack::add(std::unique_ptr<Staging> file) {
  {
    MutexLock hold(lock_);
    if (stopping_) return;
    bytes_ += file->bytes();
    ++kept_;
    waiting_.push_back(std::move(file));
    changed_.notify_all();
    if (thread_.joinable() || os::start_thread(&thread_, [this] { run(); }) == 0) {
      // One larger than the bound is waited for until it is alone.
      while (!stopping_ && kept_ > 1 && (kept_ > kMaxKept || bytes_ > kMaxDirtyBytes)) changed_.wait(&hold);
      return;
    }
  }
  finish();
}

void WriteBack::hurry(Ref entry) {
  const MutexLock hold(lock_);
  for (const auto* files : {&waiting_, &in_work_})
    for (const std::unique_ptr<Staging>& file : *files)
      if (file->ref == entry && file->step == Staging::Step::kNamed) events_.publish(file.get());
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
  for (;;) {
    {
      MutexLock hold(lock_);
      while (!stopping_ && waiting_.empty()) changed_.wait(&hold);
      if (stopping_) return;
    }
    finish();
  }
}

// All of a batch is started before the first is waited for: the device sees a queue, not one file at a time.
void WriteBack::finish() {
  std::list<std::unique_ptr<Staging>>::const_iterator first, end;  // the list is this thread's meanwhile
  {
    MutexLock hold(lock_);
    while (finishing_ && !stopping_) changed_.wait(&hold);
    if (stopping_) return;
    finishing_ = true;
    in_work_.swap(waiting_);
    first = in_work_.cbegin();
    end = in_work_.cend();
  }
  for (auto at = first; at != end; ++at) os::sync_range((*at)->copy.get(), 0, 0, Sync::kStart);
  while (first != end) {
    const int fd = (*first++)->copy.get();
    end_first(sync_whole(fd));
  }
  const MutexLock hold(lock_);
  finishing_ = false;
  changed_.notify_all();
}

void WriteBack::end_first(const Status& written) {
  std::unique_ptr<Staging> file;
  {
    const MutexLock hold(lock_);
    file = std::move(in_work_.front());
    in_work_.pop_front();
  }
  const uint64_t bytes = file->bytes();
  events_.ended(std::move(file), written);
  const MutexLock hold(lock_);
  bytes_ -= bytes;
  --kept_;
  changed_.notify_all();
}

}  // namespace monarch
