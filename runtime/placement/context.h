// SPDX-License-Identifier: Apache-2.0
// What the parts of the placement handler work on, and what several of them do with it.
#pragma once

#include <atomic>

#include "runtime/base/clock.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/change_watch.h"
#include "runtime/metadata/dataset.h"
#include "runtime/placement/order.h"
#include "runtime/placement/source.h"
#include "runtime/placement/sparse_copies.h"

namespace monarch {

// Whatever it points to outlives it. Any thread.
struct PlacementContext {
  Catalog* const catalog;
  Hierarchy* const hierarchy;
  const Dataset* const dataset;
  Board* const board;
  const AgentConfig config;
  Source* const source;
  ChangeWatch* const watch;  // may be nullptr
  Clock& clock = system_clock();
  std::atomic<bool> stopping{false};  // set once
  std::atomic<int> threads{0};        // that copy
  std::atomic<bool> resting{false};   // what nobody waits for is left alone
  std::atomic<uint64_t> asked_bytes{
      0};  // of AgentCounter::staged_bytes, what PrefetchCredit has not paid for
  SparseCopies sparse = {};
  Uses uses = {};

  const DatasetRoot& root_of(Ref ref) const { return dataset->roots[catalog->root_of(ref)]; }
  Tier& tier(int number) const { return hierarchy->tiers()[static_cast<size_t>(number)]; }

  void count_staged(uint64_t bytes, bool paid) {
    add(board, AgentCounter::staged_bytes, bytes);
    if (!paid) asked_bytes.fetch_add(bytes, std::memory_order_relaxed);
  }
  // Stores the verdict on an entry and wakes who waits for it. The file of one that was to replace another
  // (Catalog::add_again()) has that one still, with the verdict there.
  void settle(Ref ref, uint64_t word) const {
    const Ref before = replaced_by(word_of(ref));
    catalog->entry(ref).state.store(before ? again_word(before) : word, std::memory_order_release);
    wake(ref);
  }
  // Counts what becomes of a file, which one that was to replace another is not. Before it is settled.
  void count(Ref ref, AgentCounter verdict) const {
    if (replaced_by(word_of(ref)) == 0) add(board, verdict);
  }
  uint64_t word_of(Ref ref) const { return catalog->entry(ref).state.load(std::memory_order_acquire); }
  void wake(Ref ref) const { wake_parked(board, catalog->entry(ref).hash); }
};

}  // namespace monarch
