// SPDX-License-Identifier: Apache-2.0
// A table of hints by descriptor: under which heading reads of it are counted, and whether it may be a large
// file's, which read_at() then proves.
// Correctness never rests on it. A descriptor that came or went unseen (fcntl, SCM_RIGHTS, close_range) is
// counted under a wrong heading or not at all.
#pragma once

#include <atomic>

#include "preload/client/client.h"

namespace monarch::preload {

inline constexpr unsigned kDescriptors = 65536;
inline constexpr unsigned char kNone = 0, kPfs = 255, kLarge = 254;  // else 1 + the tier's number
extern std::atomic<unsigned char> descriptor_classes[kDescriptors];

inline unsigned char class_of(int fd) {
  const auto n = static_cast<unsigned>(fd);
  return n < kDescriptors ? descriptor_classes[n].load(std::memory_order_relaxed) : kNone;
}
inline bool is_tier(unsigned char c) { return c != kNone && c <= kMaxTiers; }
// The Entry, where the class is kLarge.
Ref large_file(int fd);

// Of a large file's descriptor: whether it is this process's alone, without a duplicate, as far as hooks see,
// and no call uses its position now.
bool is_alone(int fd);
// It is shared, or cannot be moved.
void never_moves(int fd);
// Its position is used inside libc, by a stream.
void used_by_stream(int fd);
bool is_used_by_stream(int fd);
// Whether a map of it is the first, which waits for the whole file.
bool is_first_map(int fd);
// The process is about to give its descriptors to a child.
void shares_descriptors();

// A call that uses the position of a descriptor which may move, to a copy or from it, while this lives.
class UsesPosition {
 public:
  explicit UsesPosition(int fd) : fd_(class_of(fd) != kNone && class_of(fd) != kPfs ? fd : -1) {
    if (__builtin_expect(fd_ >= 0, 0)) begin();
  }
  UsesPosition(const UsesPosition&) = delete;
  UsesPosition& operator=(const UsesPosition&) = delete;
  ~UsesPosition() {
    if (__builtin_expect(fd_ >= 0, 0)) end();
  }

 private:
  void begin();
  void end();
  const int fd_;  // -1: it stays
};
// Keeps such calls waiting, for a second at most; false: there is one. end_move() follows.
bool begin_move(int fd);
// The same, after such calls have ended, or a second has passed.
void wait_to_move(int fd);
void end_move(int fd);

// How many marks the board had (BoardHeader::marks) when it was known that a copy's file is not changed;
// kNeverLooked: it is to be proved that it is a copy.
extern std::atomic<uint32_t> descriptor_marks[kDescriptors];
inline constexpr uint32_t kNeverLooked = 0xffffffff;

// What open returned. `marks`: as the board had them before it was decided that the copy serves.
void opened_on_tier(int fd, uint32_t tier, uint32_t marks);
void opened_on_pfs(int fd, Ref large);
inline void opened_elsewhere(int fd) {
  if (class_of(fd) != kNone) descriptor_classes[fd].store(kNone, std::memory_order_relaxed);
}
// What close is about to close.
void closes_known(int fd);
inline void closes(int fd) {
  if (__builtin_expect(class_of(fd) != kNone, 0)) closes_known(fd);
}
// What dup returned.
void duplicated(int from, int to);

// Counts a read by a descriptor of that class.
void add_read(unsigned char c, uint64_t bytes);

}  // namespace monarch::preload
