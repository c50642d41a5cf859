// SPDX-License-Identifier: Apache-2.0
#include "preload/decide/descriptors.h"

namespace monarch::preload {

std::atomic<unsigned char> descriptor_classes[kDescriptors];
std::atomic<uint32_t> descriptor_marks[kDescriptors];

namespace {

std::atomic<Ref> large_files[kDescriptors];
std::atomic<int> large_owners[kDescriptors];  // the process that opened it

void set_class(int fd, unsigned char c) {
  if (static_cast<unsigned>(fd) < kDescriptors && class_of(fd) != c)
    descriptor_classes[fd].store(c, std::memory_order_relaxed);
}

}  // namespace

Ref large_file(int fd) { return large_files[fd].load(std::memory_order_relaxed); }

void opened_on_tier(int fd, uint32_t tier, uint32_t marks) {
  if (static_cast<unsigned>(fd) >= kDescriptors) return;
  if (descriptor_marks[fd].load(std::memory_order_relaxed) != marks)
    descriptor_marks[fd].store(marks, std::memory_order_relaxed);
  set_class(fd, static_cast<unsigned char>(1 + tier));
}

void opened_on_pfs(int fd, Ref large) {
  if (large && static_cast<unsigned>(fd) < kDescriptors)
    large_files[fd].store(large, std::memory_order_relaxed),
        large_owners[fd].store(static_cast<int>(syscall(SYS_getpid)), std::memory_order_relaxed);
  set_class(fd, large ? kLarge : kPfs);
}

void opened_elsewhere(int fd) { set_class(fd, kNone); }

Ref closes(int fd) {
  const unsigned char c = class_of(fd);
  // A child of vfork(2) closes its own descriptor in our memory: ours is open still. What that leaves behind
  // in a child of fork(2) read_chunks() finds out.
  if (c == kLarge &&
      large_owners[fd].load(std::memory_order_relaxed) != static_cast<int>(syscall(SYS_getpid)))
    return 0;
  if (c != kNone) set_class(fd, kNone);
  return c == kLarge ? large_file(fd) : 0;
}

void duplicated(int from, int to) {
  const unsigned char c = class_of(from);
  if (c == kLarge) {
    opened_on_pfs(to, large_file(from));
  } else if (c != kNone && c <= kMaxTiers) {
    opened_on_tier(to, c - 1u, descriptor_marks[from].load(std::memory_order_relaxed));
  } else {
    set_class(to, c);
  }
}

__attribute__((noinline)) void add_read(unsigned char c, uint64_t bytes) {
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

void count_stream(int tier, uint64_t bytes) {
  if (bytes > 0) add_read(tier < 0 ? kPfs : static_cast<unsigned char>(1 + tier), bytes);
}

}  // namespace monarch::preload
