// SPDX-License-Identifier: Apache-2.0
// A table of hints by descriptor: under which heading reads of it are counted, and whether it may be a large
// file's, which read_at() then proves.
// Correctness never rests on it. A descriptor that came or went unseen (fcntl, SCM_RIGHTS, close_range) is
// counted under a wrong heading or not at all.
// A child of vfork(2) has its parent's hints, and descriptors of its own. So what it does to a number may
// take no hint of a copy away, which is proved anew instead.
#pragma once

#include <atomic>

#include "preload/client/client.h"

namespace monarch::preload {

inline constexpr unsigned kDescriptors = 65536;
inline constexpr unsigned char kNone = 0, kPfs = 255, kLarge = 254;  // else of a copy: 1 + the tier's number
// A stream's, whose bytes were counted when it was opened: 1 + kOfStream + the tier's number.
inline constexpr unsigned char kOfStream = kMaxTiers;
extern std::atomic<unsigned char> descriptor_classes[kDescriptors];

inline unsigned char class_of(int fd) {
  const auto n = static_cast<unsigned>(fd);
  return n < kDescriptors ? descriptor_classes[n].load(std::memory_order_relaxed) : kNone;
}
inline bool is_tier(unsigned char c) { return c != kNone && c <= kOfStream + kMaxTiers; }
// The Entry, where the class is kLarge.
Ref large_file(int fd);

// Of a large file's descriptor: whether it is this process's alone, without a duplicate, as far as hooks see,
// and no call uses its position now.
bool is_alone(int fd);
// It is shared, or cannot be moved.
void never_moves(int fd);
// Its position is used, and its number closed, inside libc, by a stream; or may be.
void used_by_stream(int fd);
bool is_used_by_stream(int fd);
// Hooks see all calls on it: it was just opened by one.
void seen_by_hooks(int fd);
// Of a copy's descriptor: whether they do.
bool is_in_sight(int fd);
// Whether a map of it is the first, which waits for the whole file.
bool is_first_map(int fd);
// Large files' descriptors that are open now move no more: the process is about to give them to a child, or
// to lock a range, and the close in a move ends its locks of the file. Waits for one that moves, for a second
// at most.
void stop_moves();

// Of this thread: the process that called vfork(2) by it, perhaps long ago; 0: none. Its child has its
// thread's memory, too.
extern constinit thread_local int vforker;
bool is_other_than_vforker();
inline bool is_vfork_child() { return __builtin_expect(vforker != 0, 0) && is_other_than_vforker(); }
void will_vfork();
// In a child of fork(2): these hints are its own.
void has_forked();

// A call that uses the position of a descriptor which may move, to a copy or from it, or that gives its
// number away or duplicates it, while this lives.
class UsesDescriptor {
 public:
  explicit UsesDescriptor(int fd) : fd_(class_of(fd) != kNone && class_of(fd) != kPfs ? fd : -1) {
    if (__builtin_expect(fd_ >= 0, 0)) begin();
  }
  UsesDescriptor(const UsesDescriptor&) = delete;
  UsesDescriptor& operator=(const UsesDescriptor&) = delete;
  ~UsesDescriptor() {
    if (__builtin_expect(fd_ >= 0, 0)) end();
  }

 private:
  void begin();
  void end();
  const int fd_;  // -1: it stays
};
// A process of one thread stays so: only that thread could start another.
enum class Threads { kOne, kSeveral };
Threads threads();
// A return of descriptors to the PFS, or a move to a copy, by one thread at a time: all such calls, on
// whatever descriptor, wait while this lives, and signals. So it makes no call that may take long. In a
// process of one thread it keeps away signals alone, and writes nothing.
class Returns {
 public:
  explicit Returns(Threads threads);
  Returns(const Returns&) = delete;
  Returns& operator=(const Returns&) = delete;
  ~Returns();

 private:
  const Threads threads_;
  uint64_t signals_ = 0;
};
// While it lives: waits until the calls on `fd` that had begun have ended; false: one has not within a
// second.
bool has_come_to_rest(int fd);
// Such a call does not end: its thread left it, by longjmp(3) or a cancellation.
void forget_calls(int fd);
// Before the PFS is asked for the file: lets one thread do so, for a second; then another does it as well.
void wait_to_return(int fd);
void end_return(int fd);

// How many marks the board had (BoardHeader::marks) when it was known that a copy's file is not changed;
// kNeverLooked: it is to be proved that it is a copy.
extern std::atomic<uint32_t> descriptor_marks[kDescriptors];
inline constexpr uint32_t kNeverLooked = 0xffffffff;
inline bool may_have_changed(int fd, uint32_t marks) {
  return is_tier(class_of(fd)) && descriptor_marks[fd].load(std::memory_order_relaxed) != marks;
}

// That nothing is to be done for a copy's descriptor as long as there are no more marks; unless it was opened
// anew since its own, `seen`, was read.
void set_marks(int fd, uint32_t seen, uint32_t marks);

// What open returned. `marks`: as the board had them before it was decided that the copy serves.
void opened_on_tier(int fd, uint32_t tier, uint32_t marks);
// What fopen returned, likewise.
void opened_as_stream(int fd, uint32_t tier, uint32_t marks);
// What came unseen, and may be used so.
void found_on_tier(int fd, uint32_t tier);
void opened_on_pfs(int fd, Ref large);
void forget_class(int fd);
inline void opened_elsewhere(int fd) {
  if (class_of(fd) != kNone) forget_class(fd);
}
// What close is about to close, of a class.
void closes_known(int fd);
// What dup returned.
void duplicated(int from, int to);

// Counts a read by a descriptor of that class.
void add_read(unsigned char c, uint64_t bytes);

}  // namespace monarch::preload
