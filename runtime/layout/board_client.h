// SPDX-License-Identifier: Apache-2.0
// What tasks do on the board: count, ask the agent for a file, tell it what they saw, sleep on a word.
// Without allocation or locks; any thread; async-signal-safe.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <time.h>

#include "runtime/layout/board_layout.h"
#include "runtime/layout/catalog_reader.h"

namespace monarch {

inline CounterShard& my_shard(Board* board) {
  return board->shards[static_cast<uint32_t>(sched_getcpu()) % kShards];
}
inline void count(Board* board, TaskCounter counter, uint64_t n = 1) {
  my_shard(board).task[static_cast<uint32_t>(counter)].fetch_add(n, std::memory_order_relaxed);
}

// Whether the open that begins is to be timed although it may be of a copy. It is if the opens of copies that
// this processor has counted so far are a multiple of kOneTimedOf. `tiers`: how many there are.
inline bool is_open_timed(const CounterShard& shard, uint32_t tiers) {
  uint64_t opens = 0;
  for (uint32_t i = 0; i < tiers; ++i) opens += shard.opens_tier[i].load(std::memory_order_relaxed);
  return opens % kOneTimedOf == 0;
}
inline void count_open(Board* board, OpenKind kind, uint64_t ns) {
  my_shard(board).open_times[static_cast<uint32_t>(kind)][bucket_of(ns)].fetch_add(1,
                                                                                   std::memory_order_relaxed);
}

inline void futex_wait(const std::atomic<uint32_t>* word, uint32_t seen, int64_t nanoseconds) {
  const timespec timeout{static_cast<time_t>(nanoseconds / 1000000000),
                         static_cast<long>(nanoseconds % 1000000000)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &timeout, nullptr, 0);
}
inline void futex_wake(std::atomic<uint32_t>* word, int waiters) {
  syscall(SYS_futex, word, FUTEX_WAKE, waiters, nullptr, nullptr, 0);
}

inline int64_t monotonic_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return ns_of(now);
}

// The same, of the last tick of the kernel's clock, some milliseconds ago at most: read sooner.
inline int64_t coarse_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
  return ns_of(now);
}

// The job has changed something, and the agent may want to hear of it.
inline void tell_change(Board* board) {
  if (board->header.wakes_on_change.load(std::memory_order_acquire) == 0) return;
  board->header.doorbell.fetch_add(1, std::memory_order_seq_cst);
  if (board->header.agent_sleeps.load(std::memory_order_seq_cst)) futex_wake(&board->header.doorbell, 1);
}

// A published request: which slot, and the word it was published with.
struct Posted {
  RequestSlot* slot;  // nullptr: the ring is full
  uint64_t word;
};

// Puts a request for `path`, or a chunk of it, on the ring and rings the doorbell.
inline Posted post_request(Board* board, const RelPath& path, uint32_t chunk = kWholeFile) {
  const uint32_t first = board->header.next_slot.fetch_add(1, std::memory_order_relaxed);
  for (uint32_t i = 0; i < kSlots; ++i) {
    RequestSlot* slot = &board->slots[(first + i) % kSlots];
    uint64_t word = slot->word.load(std::memory_order_acquire);
    if (slot_state(word) != SlotState::kFree) continue;
    const uint32_t turn = slot_turn(word) + 1;
    uint64_t claimed = slot_word(turn, SlotState::kClaimed);
    if (!slot->word.compare_exchange_strong(word, claimed, std::memory_order_acq_rel)) continue;
    slot->hash = path.hash;
    slot->root = path.root;
    slot->len = path.len;
    slot->chunk = chunk;
    memcpy(slot->path, path.path, path.len);
    const uint64_t ready = slot_word(turn, SlotState::kReady);
    if (!slot->word.compare_exchange_strong(claimed, ready, std::memory_order_acq_rel)) continue;
    board->header.doorbell.fetch_add(1, std::memory_order_seq_cst);
    if (board->header.agent_sleeps.load(std::memory_order_seq_cst)) futex_wake(&board->header.doorbell, 1);
    return Posted{slot, ready};
  }
  return Posted{nullptr, 0};
}

// A slot to write down what was seen of a file, or nullptr; post_seen() publishes it.
inline SeenSlot* claim_seen(Board* board) {
  SeenSlot* slot = &board->seen[board->header.next_seen.fetch_add(1, std::memory_order_relaxed) % kSeenSlots];
  auto free = static_cast<uint32_t>(SlotState::kFree);
  return slot->state.load(std::memory_order_relaxed) == free &&
                 slot->state.compare_exchange_strong(free, static_cast<uint32_t>(SlotState::kClaimed),
                                                     std::memory_order_acquire)
             ? slot
             : nullptr;
}
inline void post_seen(Board* board, SeenSlot* slot) {
  slot->state.store(static_cast<uint32_t>(SlotState::kReady), std::memory_order_release);
  board->header.seen.fetch_add(1, std::memory_order_seq_cst);
  if (board->header.agent_sleeps.load(std::memory_order_seq_cst) != kSleeps) return;
  board->header.doorbell.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&board->header.doorbell, 1);
}

}  // namespace monarch
