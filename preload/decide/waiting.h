// SPDX-License-Identifier: Apache-2.0
// Asking the agent for a file or a chunk of one, and waiting for it: how long, and for whom.
#pragma once

#include "preload/client/room.h"
#include "runtime/layout/board_client.h"
#include "runtime/layout/catalog_reader.h"

namespace monarch {

enum class WaitEnd {
  kSettled,  // the entry's state says where the file is
  kRefused,  // the agent took the request and made no entry
  kRingFull,
  kNoAgent,
  kTimeout,
};

inline constexpr int64_t kWaitSliceNs = 50 * 1000000;  // how soon a dead agent is noticed
// The least bound on an open's wait: an agent that lives and is stopped for two seconds is only slow.
inline constexpr int64_t kWaitFloorNs = 3000 * 1000000ll;

// Whether nothing is to be served any more.
inline bool is_closed(const Board& board) {
  return board.header.closed.load(std::memory_order_acquire) != kServes;
}

// Whether the agent lives, or another one is expected to go on for it: once in a job, for kResumeNs.
inline bool has_agent(Board* board) {
  constexpr int64_t kResumeNs = 2500 * 1000000ll;  // below kWaitFloorNs: what was asked meanwhile is answered
  if (__builtin_expect(agent_lives(*board), 1)) return true;
  std::atomic<int64_t>* until = &board->header.resumes_until_ns;
  const int64_t now = monotonic_ns();
  int64_t told = kIsWatched;
  if (until->compare_exchange_strong(told, now + kResumeNs, std::memory_order_acq_rel))
    told = now + kResumeNs;
  return now < told;
}

// Whether the agent is another one than before, which has not heard of what that was asked: that could go on
// for a killed one alone.
class Asked {
 public:
  explicit Asked(Board* board) : expected_(is_expected(*board)) {}
  bool is_new(const Board& board) { return expected_ && !(expected_ = is_expected(board)); }

 private:
  static bool is_expected(const Board& board) {
    return board.header.resumes_until_ns.load(std::memory_order_acquire) != 0;
  }
  bool expected_;
};

// Whether an open would wait for an entry in this state.
inline bool unsettled(State s) { return s == State::kKnown || s == State::kQueued || s == State::kStaging; }

// How long an open waits for `size` bytes at the measured rate: kWaitFloorNs, or twice the time they take.
inline int64_t wait_limit_ns(uint64_t size, uint64_t bytes_per_second) {
  if (bytes_per_second == 0) return kWaitFloorNs;
  const double need = 2e9 * static_cast<double>(size) / static_cast<double>(bytes_per_second);
  if (need <= static_cast<double>(kWaitFloorNs)) return kWaitFloorNs;
  return need < 3.6e12 ? static_cast<int64_t>(need) : 3600000000000;
}

// How long one request may still wait: wait_limit_ns since the agent last copied a piece of anything. But
// while a file is queued, or no rate is known yet, kQueueLimitNs at most; while it is being copied, for
// kMoreLimits times the limit at most, since the rate is a guess and another file's progress is no proof. Who
// has waited in vain while nothing was copied (the PFS hangs) spares the others: for kStallNs, or until a
// copy succeeds, nobody waits.
class Patience {
 public:
  explicit Patience(Board* board)
      : board_(board),
        start_(monotonic_ns()),
        since_(start_),
        moved_(start_),
        progress_(board->header.progress.load(std::memory_order_relaxed)) {}

  // Nanoseconds, or <= 0: give up. `size` of the file, 0 if it is not known.
  int64_t left(bool in_work, uint64_t size) {
    const BoardHeader& header = board_->header;
    const int64_t now = monotonic_ns();
    if (now < header.stalled_until_ns.load(std::memory_order_relaxed)) return 0;
    const uint64_t rate = header.bytes_per_second.load(std::memory_order_relaxed);
    const int64_t limit = wait_limit_ns(size, rate);
    if (in_work && !in_work_) since_ = start_ = now;
    in_work_ = in_work;
    const uint64_t progress = header.progress.load(std::memory_order_relaxed);
    if (progress != progress_) {
      moved_ = now;
      if (now - start_ < (in_work && rate != 0 ? kMoreLimits * limit : kQueueLimitNs)) since_ = now;
    }
    progress_ = progress;
    const int64_t left = since_ + limit - now;
    if (left <= 0 && now - moved_ >= kWaitFloorNs)
      board_->header.stalled_until_ns.store(now + kStallNs, std::memory_order_relaxed);
    return left;
  }

 private:
  static constexpr int64_t kQueueLimitNs = 30 * 1000000000ll, kStallNs = 5 * 1000000000ll;
  static constexpr int64_t kMoreLimits = 3;
  Board* const board_;
  int64_t start_;  // of waiting in the queue, then of the copying
  int64_t since_;
  int64_t moved_;  // when the agent was last seen to have copied something
  uint64_t progress_;
  bool in_work_ = false;
};

// Asks for `path` (found as *found, empty if it has no entry yet) and waits until its state is settled, as
// long as Patience allows. *found is the entry found last.
inline WaitEnd request_and_wait(Board* board, const CatalogReader& catalog, const RelPath& path,
                                Found* found) {
  Patience patience(board);
  std::atomic<uint32_t>* parking = &board->parking[parking_of(path.hash, kWholeFile)];
  Posted posted{nullptr, 0};
  Asked agent(board);
  bool asked = false;
  for (;;) {
    const uint32_t seen = parking->load(std::memory_order_acquire);
    if (!*found) *found = catalog.find(path);
    const State state =
        *found ? state_of(found->entry->state.load(std::memory_order_acquire)) : State::kKnown;
    if (*found && !unsettled(state)) return WaitEnd::kSettled;
    if (!has_agent(board)) return WaitEnd::kNoAgent;
    const uint64_t size = *found ? found->entry->size.load(std::memory_order_relaxed) : 0;
    const uint64_t most = catalog.facts().stage_wait_max;  // larger ones are not waited for
    const int64_t left = patience.left(state == State::kStaging, size < most ? size : most);
    if (left <= 0) return WaitEnd::kTimeout;
    if (agent.is_new(*board)) asked = false;
    // What is prefetched may be copied slowly: so it is asked for, too.
    if (!asked && state != State::kQueued) {
      posted = post_request(board, path);
      if (!posted.slot) return WaitEnd::kRingFull;
      asked = true;
    } else if (asked && !*found && posted.slot->word.load(std::memory_order_acquire) != posted.word) {
      *found = catalog.find(path);  // the agent enters the path before it frees the slot
      if (!*found) return WaitEnd::kRefused;
      continue;
    }
    futex_wait(parking, seen, left < kWaitSliceNs ? left : kWaitSliceNs);
  }
}

// Asks for the whole of the large file `e` and waits for it, if it is expected within stage_wait: by the rate
// of one copying thread at first, and then by how its chunks come. Twice stage_wait at most while they come,
// ten times in all, once while nothing is copied.
enum class Whole { kThere, kNotInTime, kNotWaitedFor };
inline Whole request_whole(Board* board, const CatalogReader& catalog, const RelPath& path, const Entry& e) {
  constexpr double kThreads = 16;  // twice as many as copy by default, since it waits for twice as long
  const BoardHeader& header = board->header;
  const auto most = static_cast<int64_t>(catalog.facts().stage_wait_ns);
  const uint64_t size = e.size.load(std::memory_order_relaxed);
  const uint32_t all = chunk_count(size);
  const double rate = kThreads * static_cast<double>(header.bytes_per_second.load(std::memory_order_relaxed));
  const bool soon = rate == 0 || static_cast<double>(size) / rate * 1e9 <= static_cast<double>(most);
  std::atomic<uint32_t>* parking = &board->parking[parking_of(path.hash, kWholeFile)];
  const int64_t start = monotonic_ns();
  int64_t last = start, moved = start;    // when it was looked last; when the agent had copied something
  int64_t worked = 0;                     // while chunks came: others may have their turn before
  uint32_t first = all, last_done = all;  // chunks that were there before
  uint64_t progress = 0;
  Asked agent(board);
  for (bool asked = false;; asked = true) {
    const uint32_t seen = parking->load(std::memory_order_acquire);
    const uint64_t word = e.state.load(std::memory_order_acquire);
    const Whole not_there = asked ? Whole::kNotInTime : Whole::kNotWaitedFor;
    if (state_of(word) != State::kLarge) return state_of(word) == State::kPlaced ? Whole::kThere : not_there;
    const Chunks* chunks = catalog.chunks(chunks_of(word));
    const int64_t now = monotonic_ns();
    uint32_t done = 0;
    for (uint32_t n = 0; chunks && n < all; ++n) done += catalog.has_chunk(chunks_of(word), n);
    if (done < first) first = done;
    if (done > last_done) worked += now - last;
    if (header.progress.load(std::memory_order_relaxed) != progress) moved = now;
    last = now, last_done = done;
    progress = header.progress.load(std::memory_order_relaxed);
    const bool slow = worked > most && worked / (done - first + 1) * (all - done) > 2 * most - worked;
    const bool closed = chunks && chunks->closed.load(std::memory_order_acquire) != 0;
    if (!soon || slow || closed || worked >= 2 * most || now - start >= 10 * most || now - moved >= most ||
        now < header.stalled_until_ns.load(std::memory_order_relaxed) ||
        header.closed.load(std::memory_order_relaxed) != kServes || !has_agent(board))
      return not_there;
    if ((agent.is_new(*board) || !asked) && !post_request(board, path).slot) return not_there;
    futex_wait(parking, seen, most / 8 < kWaitSliceNs ? most / 8 + 1 : kWaitSliceNs);
  }
}

// Asks for chunk `n` of the large file `e` and waits until it is there, as long as Patience allows. kSettled:
// it is there (*chunks tells where), or will not come, or the file is no longer kLarge (*chunks is nullptr).
inline WaitEnd request_chunk(Board* board, const CatalogReader& catalog, const Entry& e, uint32_t n,
                             const Chunks** chunks) {
  preload::Room room;
  RelPath path;
  if (!preload::path_of(catalog, e, &room, &path)) return WaitEnd::kRefused;
  Patience patience(board);
  std::atomic<uint32_t>* parking = &board->parking[parking_of(path.hash, n)];
  Asked agent(board);
  for (bool asked = false;; asked = true) {
    const uint32_t seen = parking->load(std::memory_order_acquire);
    const uint64_t word = e.state.load(std::memory_order_acquire);
    *chunks = nullptr;
    if (state_of(word) != State::kLarge) return WaitEnd::kSettled;
    *chunks = catalog.chunks(chunks_of(word));
    if (*chunks && catalog.has_chunk(chunks_of(word), n)) return WaitEnd::kSettled;
    if (*chunks && (*chunks)->closed.load(std::memory_order_acquire))
      return *chunks = nullptr, WaitEnd::kSettled;
    if (!has_agent(board)) return WaitEnd::kNoAgent;
    const int64_t left = patience.left(false, kChunkBytes);
    if (left <= 0) return WaitEnd::kTimeout;
    if ((agent.is_new(*board) || !asked) && !post_request(board, path, n).slot) return WaitEnd::kRingFull;
    futex_wait(parking, seen, left < kWaitSliceNs ? left : kWaitSliceNs);
  }
}

}  // namespace monarch
