// SPDX-License-Identifier: Apache-2.0
#include "preload/decide/descriptors.h"

#include <time.h>

#include "preload/next/kernel.h"

namespace monarch::preload {

std::atomic<unsigned char> descriptor_classes[kDescriptors];
std::atomic<uint32_t> descriptor_marks[kDescriptors];

namespace {

struct LargeFile {
  std::atomic<Ref> ref;
  std::atomic<int> owner;       // the process that opened it
  std::atomic<uint32_t> turn;   // of sharing, when it was opened
  std::atomic<uint32_t> users;  // of any class: calls that use its position now; kMoving
  std::atomic<bool> stream;
  std::atomic<bool> mapped;  // it was
};
LargeFile large_files[kDescriptors];
constexpr uint32_t kMoving = 1u << 31;

// How often the process has given its descriptors away; kShared, as a descriptor's: it is shared here.
std::atomic<uint32_t> sharing{1};
constexpr uint32_t kShared = 0;

void set_class(int fd, unsigned char c) {
  if (static_cast<unsigned>(fd) < kDescriptors && class_of(fd) != c)
    descriptor_classes[fd].store(c, std::memory_order_relaxed);
}

}  // namespace

Ref large_file(int fd) { return large_files[fd].ref.load(std::memory_order_relaxed); }

bool is_alone(int fd) {
  const LargeFile& file = large_files[fd];
  return file.turn.load(std::memory_order_relaxed) == sharing.load(std::memory_order_relaxed) &&
         file.users.load(std::memory_order_relaxed) == 0 &&
         file.owner.load(std::memory_order_relaxed) == static_cast<int>(syscall(SYS_getpid));
}
void never_moves(int fd) {
  if (static_cast<unsigned>(fd) < kDescriptors)
    large_files[fd].turn.store(kShared, std::memory_order_relaxed);
}
void used_by_stream(int fd) { large_files[fd].stream.store(true, std::memory_order_relaxed); }
bool is_used_by_stream(int fd) { return large_files[fd].stream.load(std::memory_order_relaxed); }
bool is_first_map(int fd) { return !large_files[fd].mapped.exchange(true, std::memory_order_relaxed); }
void shares_descriptors() { sharing.fetch_add(2, std::memory_order_relaxed); }

constexpr timespec kSlice{0, 1000000};
constexpr int kSlices = 1000;

// A mover that a fork stopped is not waited for twice.
APART void UsesPosition::begin() {
  std::atomic<uint32_t>& users = large_files[fd_].users;
  uint32_t seen = users.load(std::memory_order_relaxed);
  for (int i = 0;; ++i) {
    if (__builtin_expect((seen & kMoving) != 0, 0) && i < kSlices) {
      const KeepErrno errno_stays;
      syscall(SYS_nanosleep, &kSlice, nullptr);
      seen = users.load(std::memory_order_relaxed);
    } else if (users.compare_exchange_weak(seen, (seen & ~kMoving) + 1, std::memory_order_acquire)) {
      return;
    }
  }
}

APART void UsesPosition::end() {
  std::atomic<uint32_t>& users = large_files[fd_].users;
  uint32_t seen = users.load(std::memory_order_relaxed);
  while ((seen & ~kMoving) != 0 && !users.compare_exchange_weak(seen, seen - 1, std::memory_order_release)) {
  }
}

bool begin_move(int fd) {
  uint32_t none = 0;
  return large_files[fd].users.compare_exchange_strong(none, kMoving, std::memory_order_acquire);
}

void wait_to_move(int fd) {
  for (int i = 0; i < kSlices; ++i) {
    if (begin_move(fd)) return;
    syscall(SYS_nanosleep, &kSlice, nullptr);
  }
  large_files[fd].users.store(kMoving, std::memory_order_relaxed);
}

void end_move(int fd) {
  uint32_t moving = kMoving;
  large_files[fd].users.compare_exchange_strong(moving, 0, std::memory_order_release);
}

void opened_on_tier(int fd, uint32_t tier, uint32_t marks) {
  if (static_cast<unsigned>(fd) >= kDescriptors) return;
  if (descriptor_marks[fd].load(std::memory_order_relaxed) != marks)
    descriptor_marks[fd].store(marks, std::memory_order_relaxed);
  set_class(fd, static_cast<unsigned char>(1 + tier));
}

void opened_on_pfs(int fd, Ref large) {
  if (static_cast<unsigned>(fd) >= kDescriptors) return;
  if (large) {
    LargeFile& file = large_files[fd];
    file.ref.store(large, std::memory_order_relaxed);
    file.owner.store(static_cast<int>(syscall(SYS_getpid)), std::memory_order_relaxed);
    file.turn.store(sharing.load(std::memory_order_relaxed), std::memory_order_relaxed);
    file.stream.store(false, std::memory_order_relaxed);
    file.mapped.store(false, std::memory_order_relaxed);
  }
  set_class(fd, large ? kLarge : kPfs);
}

// A child of vfork(2) says in our memory what it does to descriptors of its own: ours is open still. So a
// copy's hint stays, and is proved when the number is used next; what that leaves of a large file's in a
// child of fork(2) read_at() finds out.
void closes_known(int fd) {
  const unsigned char c = class_of(fd);
  if (is_tier(c)) {
    descriptor_marks[fd].store(kNeverLooked, std::memory_order_relaxed);
  } else if (c != kLarge ||
             large_files[fd].owner.load(std::memory_order_relaxed) == static_cast<int>(syscall(SYS_getpid))) {
    set_class(fd, kNone);
  }
}

void duplicated(int from, int to) {
  const unsigned char c = class_of(from);
  const bool was_copy = is_tier(class_of(to));
  if (c == kLarge) {
    opened_on_pfs(to, large_file(from));
    never_moves(from);
    never_moves(to);
  } else if (is_tier(c)) {
    const uint32_t marks = descriptor_marks[from].load(std::memory_order_relaxed);
    opened_on_tier(to, c - 1u, was_copy ? kNeverLooked : marks);
  } else if (was_copy && c == kNone) {
    descriptor_marks[to].store(kNeverLooked, std::memory_order_relaxed);
  } else {
    set_class(to, c);
  }
}

APART void add_read(unsigned char c, uint64_t bytes) {
  Client* k = client();
  if (!k) return;
  CounterShard& shard = my_shard(k->board);
  if (c == kPfs) {
    shard.task[static_cast<int>(TaskCounter::read_bytes_pfs)].fetch_add(bytes, std::memory_order_relaxed);
    shard.task[static_cast<int>(TaskCounter::read_calls_pfs)].fetch_add(1, std::memory_order_relaxed);
  } else if (c <= kMaxTiers) {
    shard.read_bytes_tier[c - 1].fetch_add(bytes, std::memory_order_relaxed);
    shard.read_calls_tier[c - 1].fetch_add(1, std::memory_order_relaxed);
  }
}

}  // namespace monarch::preload
