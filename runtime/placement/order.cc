// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/order.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <tuple>
#include <utility>

namespace monarch {
namespace {

bool is_later(const OrderPiece& a, const OrderPiece& b) {
  const auto place = [](const OrderPiece& p) { return std::tuple(p.epoch, p.first + p.taken, p.rank); };
  return place(a) > place(b);
}

uint32_t epochs_in(uint32_t word) { return static_cast<uint32_t>(std::popcount(word << 1)); }

// To the next reference. False: there is none.
bool pass_over_none(OrderPiece* piece) {
  while (piece->taken < piece->refs.size() && piece->refs[piece->taken] == 0) ++piece->taken;
  return piece->taken < piece->refs.size();
}

size_t cost_of(const OrderPiece& piece) { return piece.refs.size() + Order::kPieceRefs; }

}  // namespace

bool Order::has_room(const OrderPiece& piece) const {
  return piece.refs.empty() || cost_of(piece) <= most_refs_ - refs_;
}

bool Order::add(OrderPiece piece) {
  if (!pass_over_none(&piece)) return true;
  if (!has_room(piece)) return false;
  refs_ += cost_of(piece);
  pieces_.push_back(std::move(piece));
  std::push_heap(pieces_.begin(), pieces_.end(), is_later);
  return true;
}

std::optional<Ref> Order::next() {
  if (pieces_.empty()) return {};
  std::pop_heap(pieces_.begin(), pieces_.end(), is_later);
  OrderPiece& piece = pieces_.back();
  const Ref ref = piece.refs[piece.taken++];
  if (pass_over_none(&piece)) {
    std::push_heap(pieces_.begin(), pieces_.end(), is_later);
  } else {
    refs_ -= cost_of(piece);
    pieces_.pop_back();
  }
  return ref;
}

void Uses::add(Ref ref, uint32_t epoch) {
  const MutexLock hold(lock_);
  const size_t at = ref / kUnits;
  if (at >= words_.size()) words_.resize(at + 1);
  uint32_t& word = words_[at];
  const bool waits = (word & kBegun) == 0;
  if (waits && word != 0) --waiting_[epochs_in(word)];
  word |= uint32_t{1} << epoch % kEpochs;
  if (waits) ++waiting_[epochs_in(word)];
}

void Uses::begun(Ref ref) {
  const MutexLock hold(lock_);
  const uint32_t word = word_of(ref);
  if (word == 0 || (word & kBegun) != 0) return;
  --waiting_[epochs_in(word)];
  words_[ref / kUnits] |= kBegun;
}

uint32_t Uses::word_of(Ref ref) const {
  const size_t at = ref / kUnits;
  return at < words_.size() ? words_[at] : 0;
}

uint32_t Uses::of(Ref ref) const {
  const MutexLock hold(lock_);
  return epochs_in(word_of(ref));
}

uint64_t Uses::waiting(uint32_t epochs) const {
  const MutexLock hold(lock_);
  return std::accumulate(waiting_.begin() + epochs + 1, waiting_.end(), uint64_t{0});
}

}  // namespace monarch
