// SPDX-License-Identifier: Apache-2.0
// The order in which the job will use files, as its processes have told it: what comes next of all of them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {

// A part of what one process (rank) opens in one epoch, from its access number `first` on.
struct OrderPiece {
  uint32_t epoch = 0, rank = 0;
  uint64_t first = 0;
  std::vector<Ref> refs;  // anything may be in it; 0: none, which is passed over
  size_t taken = 0;
};

// One thread at a time.
class Order {
 public:
  static constexpr size_t kMostRefs = size_t{1} << 26;  // 256 MiB
  static constexpr size_t kPieceRefs = 32;              // for which a piece itself takes the memory

  explicit Order(size_t most_refs = kMostRefs) : most_refs_(most_refs) {}
  bool has_room(const OrderPiece& piece) const;
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

// In how many epochs of the order each file is used, and which files wait for their copy. A tier takes what
// is used in more epochs first. All members may be called from any thread.
class Uses {
 public:
  // A file is used in that epoch, one of the 31 that are told apart.
  void add(Ref ref, uint32_t epoch) EXCLUDES(lock_);
  // A file's copy is begun, or there will be none.
  void begun(Ref ref) EXCLUDES(lock_);
  uint32_t of(Ref ref) const EXCLUDES(lock_);
  // How many files wait for their copy that are used in more epochs than so many.
  uint64_t waiting(uint32_t epochs) const EXCLUDES(lock_);

 private:
  // So many of an Entry's units are its own alone, so that none shares its place.
  static constexpr size_t kUnits = sizeof(Entry) / 8;
  static constexpr uint32_t kEpochs = 31, kBegun = uint32_t{1} << kEpochs;
  uint32_t word_of(Ref ref) const REQUIRES(lock_);

  mutable Mutex lock_;
  std::vector<uint32_t> words_ GUARDED_BY(lock_);                  // a bit for each epoch, and kBegun
  std::array<uint64_t, kEpochs + 1> waiting_ GUARDED_BY(lock_){};  // by the number of epochs
};

}  // namespace monarch
