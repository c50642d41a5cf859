// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/order.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace monarch {
namespace {

bool is_later(const OrderPiece& a, const OrderPiece& b) {
  const auto place = [](const OrderPiece& p) { return std::tuple(p.epoch, p.first + p.taken, p.rank); };
  return place(a) > place(b);
}

size_t cost_of(const OrderPiece& piece) { return piece.refs.size() + Order::kPieceRefs; }

}  // namespace

bool Order::add(OrderPiece piece) {
  if (piece.refs.empty()) return true;
  if (cost_of(piece) > most_refs_ - refs_) return false;
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
  if (piece.taken < piece.refs.size()) {
    std::push_heap(pieces_.begin(), pieces_.end(), is_later);
  } else {
    refs_ -= cost_of(piece);
    pieces_.pop_back();
  }
  return ref;
}

}  // namespace monarch
