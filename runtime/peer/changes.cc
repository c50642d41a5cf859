// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/changes.h"

#include <algorithm>
#include <bit>

namespace monarch {
namespace {

uint8_t kinds_of(const Board& board) {
  return static_cast<uint8_t>(board.header.changed.load(std::memory_order_acquire) & Mark::kKinds);
}

}  // namespace

Changes::Changes(Board* board) : board_(board), told_(kWords) {}

// How many marks there are is read first: what is marked while this looks is found the next time. They are
// counted once they can be seen; the number of the last one, and its kind, are there before it can.
std::optional<Mark> Changes::next() {
  const MutexLock hold(lock_);
  const BoardHeader& header = board_->header;
  const uint64_t now = header.marks.load(std::memory_order_acquire);
  Mark mark;
  mark.closed = !closed_ && header.closed.load(std::memory_order_acquire) == kRootChanged;
  closed_ |= mark.closed != 0;
  for (size_t i = 0; now != looked_at_ && i < kWords && mark.marks.size() < Mark::kMost; ++i) {
    const uint64_t word = board_->invalid[i].load(std::memory_order_acquire);
    for (uint64_t fresh = word & ~told_[i]; fresh != 0 && mark.marks.size() < Mark::kMost;) {
      const uint64_t bit = fresh & -fresh;
      know(i, bit);
      fresh ^= bit;
      mark.marks.push_back(static_cast<uint32_t>(i * 64) + static_cast<uint32_t>(std::countr_zero(bit)));
    }
  }
  if (mark.marks.size() < Mark::kMost) looked_at_ = now;
  mark.kinds = kinds_of(*board_);
  if (mark.marks.empty() && mark.closed == 0 && (mark.kinds & ~told_kinds_) == 0) return {};
  told_kinds_ |= mark.kinds;
  return mark;
}

std::vector<Mark> Changes::all() {
  const MutexLock hold(lock_);
  std::vector<Mark> marks;
  Mark mark;
  mark.kinds = kinds_of(*board_);
  mark.closed = closed_;
  if (known_ > kMany) {
    for (size_t i = 0; i < kWords; i += Mark::kMost) {
      const auto from = told_.begin() + static_cast<std::ptrdiff_t>(i);
      mark.first_word = static_cast<uint32_t>(i);
      mark.words.assign(from, from + static_cast<std::ptrdiff_t>(std::min(Mark::kMost, kWords - i)));
      marks.push_back(mark);
    }
    return marks;
  }
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

void Changes::know(size_t word, uint64_t bits) {
  known_ += static_cast<uint64_t>(std::popcount(bits & ~told_[word]));
  told_[word] |= bits;
}

bool Changes::any() {
  const MutexLock hold(lock_);
  return known_ != 0 || closed_;
}

// Known before it is set, so that it is not told again.
void Changes::take_word(size_t word, uint64_t bits, Changed kind) {
  if (word >= kWords) return;
  know(word, bits);
  for (; bits != 0; bits &= bits - 1) {
    const uint32_t bit = static_cast<uint32_t>(word * 64) + static_cast<uint32_t>(std::countr_zero(bits));
    if (!is_invalid(*board_, bit)) set_invalid(board_, bit, kind);
  }
}

void Changes::take(const Mark& mark) {
  {
    const MutexLock hold(lock_);
    told_kinds_ |= mark.kinds;
    closed_ |= mark.closed != 0;
    for (const uint32_t bit : mark.marks) take_word(bit / 64, uint64_t{1} << (bit % 64), Changed{mark.kinds});
    for (size_t i = 0; i < mark.words.size(); ++i)
      take_word(mark.first_word + i, mark.words[i], Changed{mark.kinds});
  }
  // What was marked before, or is open since, is looked at anew with the kinds that are new here.
  const uint32_t before = board_->header.changed.fetch_or(mark.kinds, std::memory_order_acq_rel);
  if ((mark.kinds & ~before) != 0) board_->header.marks.fetch_add(1, std::memory_order_release);
  if (mark.closed != 0) board_->header.closed.store(kRootChanged, std::memory_order_release);
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
