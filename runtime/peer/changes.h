// SPDX-License-Identifier: Apache-2.0
// Which files the job has changed: what this node's tasks mark on its board the others are told, and what the
// others tell is marked here.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/layout/board_layout.h"
#include "runtime/layout/catalog_reader.h"
#include "runtime/peer/messages.h"

namespace monarch {

// All members may be called from any thread.
class Changes {
 public:
  explicit Changes(Board* board);

  // What tasks of this node have marked since the last call, Mark::kMost at most; nothing: no more. Without
  // marks it tells of kinds that known ones have got.
  std::optional<Mark> next() EXCLUDES(lock_);
  // All that is known, as several marks, for a node that may have missed some: some 1 MiB at most.
  std::vector<Mark> all() EXCLUDES(lock_);
  // Whether anything is.
  bool any() EXCLUDES(lock_);
  // Another node's marks.
  void take(const Mark& mark) EXCLUDES(lock_);

 private:
  static constexpr size_t kWords = kInvalidBits / 64;
  static constexpr uint64_t kMany = 16 * Mark::kMost;  // marks, that are told as words
  void know(size_t word, uint64_t bits) REQUIRES(lock_);
  void take_word(size_t word, uint64_t bits, Changed kind) REQUIRES(lock_);

  Board* const board_;
  Mutex lock_;
  uint64_t looked_at_ GUARDED_BY(lock_) = 0;      // how many marks there were then
  std::vector<uint64_t> told_ GUARDED_BY(lock_);  // the bits that all nodes know of
  uint64_t known_ GUARDED_BY(lock_) = 0;          // how many those are
  uint32_t told_kinds_ GUARDED_BY(lock_) = 0;     // likewise
  bool closed_ GUARDED_BY(lock_) = false;
};

// Whether a mark on the board says that the job has changed the file that has this inode on the PFS.
bool is_marked(const Board& board, const RelPath& path, uint64_t inode);

}  // namespace monarch
