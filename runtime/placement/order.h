// SPDX-License-Identifier: Apache-2.0
// The order in which the job will use files, as its processes have told it: what comes next of all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/layout/catalog_layout.h"

namespace monarch {

// A part of what one process (rank) opens in one epoch, from its access number `first` on.
struct OrderPiece {
  uint32_t epoch = 0, rank = 0;
  uint64_t first = 0;
  std::vector<Ref> refs;  // anything may be in it
  size_t taken = 0;
};

// One thread at a time.
class Order {
 public:
  static constexpr size_t kMostRefs = size_t{1} << 26;  // 256 MiB
  static constexpr size_t kPieceRefs = 32;              // for which a piece itself takes the memory

  explicit Order(size_t most_refs = kMostRefs) : most_refs_(most_refs) {}
  // False: there is no room for it.
  bool add(OrderPiece piece);
  // Takes the reference that is used first: of the lowest epoch, there of the lowest access number, there of
  // the lowest rank. Nothing: no more is known.
  std::optional<Ref> next();
  bool empty() const { return pieces_.empty(); }

 private:
  const size_t most_refs_;
  std::vector<OrderPiece> pieces_;  // a heap, whose first has the next reference
  size_t refs_ = 0;                 // for which they take the memory, taken ones included
};

}  // namespace monarch
