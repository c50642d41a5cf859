// SPDX-License-Identifier: Apache-2.0
// A descriptor that was opened on a copy before the job changed the file goes back to the PFS: from then on
// it is one of the PFS's file, at the same position, with the same flags and this process's locks. It does so
// when it is used next, by a call that hooks see; what was mapped from it stays the copy.
//
// Duplicates in this process move with it, and all move before it forks. Those of other processes move when
// they use them, and then have a position of their own.
#pragma once

#include "preload/decide/descriptors.h"
#include "preload/resolve/originals.h"

namespace monarch::preload {

// Before a call that reads, maps or locks what is open as `fd`. One load and a comparison unless the job
// changed something since this was asked last of `fd`. errno stays as it is.
void look_for_change(int fd);
inline void follow_changes(int fd) {
  const unsigned char c = class_of(fd);
  if (__builtin_expect(c == kNone || c > kMaxTiers, 1)) return;
  const uint32_t marks = the_client.board->header.marks.load(std::memory_order_acquire);
  if (__builtin_expect(descriptor_marks[fd].load(std::memory_order_relaxed) != marks, 0)) look_for_change(fd);
}
// Of all descriptors.
void follow_all_changes();
// Of a descriptor that is open on this copy. Whether it is the PFS's now.
bool follow_change(int fd, const Original& original);

}  // namespace monarch::preload
