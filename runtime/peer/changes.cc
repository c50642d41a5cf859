// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/changes.h"

#include <bit>

namespace monarch {

Changes::Changes(Board* board) : board_(board), told_(kWords) {}

// How many marks there are is read first: what is marked while this looks is found the next time. They are
// counted once they can be seen; the number of the last one is there before it can.
std::optional<Mark> Changes::next() {
  const MutexLock hold(lock_);
  const BoardHeader& header = board_->header;
  const uint64_t now = header.marks.load(std::memory_order_acquire);
  Mark mark;
  if (now != looked_at_) mark.marks.reserve(Mark::kMost);
  mark.closed = !closed_ && header.closed.load(std::memory_order_acquire) != 0;
  closed_ |= mark.closed != 0;
  for (size_t i = 0; now != looked_at_ && i < kWords && mark.marks.size() < Mark::kMost; ++i) {
    const uint64_t word = board_->invalid[i].load(std::memory_order_acquire);
    for (uint64_t fresh = word & ~told_[i]; fresh != 0 && mark.marks.size() < Mark::kMost;) {
      const uint64_t bit = fresh & -fresh;
      told_[i] |= bit;
      fresh ^= bit;
      mark.marks.push_back(static_cast<uint32_t>(i * 64) + static_cast<uint32_t>(std::countr_zero(bit)));
    }
  }
  if (mark.marks.size() < Mark::kMost) looked_at_ = now;
  if (mark.marks.empty() && mark.closed == 0) return {};
  mark.kinds = static_cast<uint8_t>(header.changed.load(std::memory_order_acquire) & 7);
  return mark;
}

void Changes::untell(const Mark& mark) noexcept {
  const MutexLock hold(lock_);
  for (const uint32_t bit : mark.marks) told_[bit / 64] &= ~(uint64_t{1} << (bit % 64));
  if (mark.closed != 0) closed_ = false;
  looked_at_ = kNever;
}

std::vector<Mark> Changes::all() {
  const MutexLock hold(lock_);
  std::vector<Mark> marks;
  Mark mark;
  mark.kinds = static_cast<uint8_t>(board_->header.changed.load(std::memory_order_acquire) & 7);
  mark.closed = closed_;
  for (size_t i = 0; i < kWords; ++i) {
    for (uint64_t left = told_[i]; left != 0; left &= left - 1)
      mark.marks.push_back(static_cast<uint32_t>(i * 64) + static_cast<uint32_t>(std::countr_zero(left)));
    if (mark.marks.size() + 64 > Mark::kMost) {
      marks.push_back(mark);
      mark.marks.clear();
    }
  }
  if (!mark.marks.empty() || (closed_ && marks.empty())) marks.push_back(mark);
  return marks;
}

// Known before it is set, so that it is not told again.
void Changes::take(const Mark& mark) {
  {
    const MutexLock hold(lock_);
    for (const uint32_t bit : mark.marks)
      if (bit < kInvalidBits) told_[bit / 64] |= uint64_t{1} << (bit % 64);
    closed_ |= mark.closed != 0;
  }
  for (const uint32_t bit : mark.marks)
    if (bit < kInvalidBits && !is_invalid(*board_, bit)) set_invalid(board_, bit, Changed{mark.kinds});
  if (mark.closed != 0) board_->header.closed.store(1, std::memory_order_release);
}

bool is_marked(const Board& board, const RelPath& path, uint64_t inode) {
  const uint32_t kinds = board.header.changed.load(std::memory_order_acquire);
  if (kinds == 0) return false;
  if (is_invalid(board, path.hash)) return true;
  if ((kinds & kChangedInodes) && is_invalid(board, mark_of_inode(inode))) return true;
  if (!(kinds & kChangedDirectories)) return false;
  for (uint32_t end = path.dir_len; end > 0; --end)
    if ((end == path.dir_len || path.path[end] == '/') &&
        is_invalid(board, path_hash(path.root, path.path, end)))
      return true;
  return false;
}

}  // namespace monarch
