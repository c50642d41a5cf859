// SPDX-License-Identifier: Apache-2.0
// The agent's and the tools' side of the board; see layout/board_layout.h.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/layout/board_client.h"

namespace monarch {

// A mapping of a run directory's board. Move-only; unmaps.
class BoardFile {
 public:
  // Makes the file, wholly allocated. Agent only.
  static Result<BoardFile> create(const std::string& run_dir);
  // Maps an existing one of this version for reading and writing. Errors: not there, of another version.
  static Result<BoardFile> open(const std::string& run_dir);
  BoardFile(BoardFile&& other) noexcept : board_(std::exchange(other.board_, nullptr)) {}
  BoardFile& operator=(BoardFile&&) = delete;
  ~BoardFile();

  Board* get() const { return board_; }
  Board* operator->() const { return board_; }

 private:
  explicit BoardFile(Board* board) : board_(board) {}
  Board* board_;
};

// Takes the mutex that says that the agent lives, also after an agent that was killed; the calling thread
// must live as long as the agent serves. EBUSY: another one lives. See BoardHeader::agent_lives.
Status declare_alive(Board* board);

inline void add(Board* board, AgentCounter counter, uint64_t n = 1) {
  board->agent[static_cast<uint32_t>(counter)].fetch_add(n, std::memory_order_relaxed);
}

// Wakes who waits for the entry with this hash, or for a chunk of it.
void wake_parked(Board* board, uint32_t hash, uint32_t chunk = kWholeFile);

// The agent's end of the request ring. One thread uses it.
class RequestRing {
 public:
  explicit RequestRing(Board* board, Clock& clock = system_clock())
      : board_(board), clock_(clock), claimed_(kSlots) {}

  // Sleeps until the doorbell rings or `timeout_ms` passed, unless `drained` is false once tasks know that it
  // sleeps. kNaps: requests alone ring the doorbell.
  void wait(int timeout_ms, AgentSleep how, const std::function<bool()>& drained);
  void wait(int timeout_ms) {
    wait(timeout_ms, kSleeps, [] { return true; });
  }

  // Calls `take` for each published request, then frees its slot. What `take` gets is a private copy,
  // range-checked: root number, a clean relative path, and the hash computed anew. The number of the chunk is
  // as the task wrote it.
  void drain(uint32_t roots, const std::function<void(const RelPath&, uint32_t chunk)>& take);

 private:
  struct Claim {
    uint64_t word = 0;
    int64_t since_ns = 0;
  };
  void free_stale(uint32_t slot, uint64_t word);

  Board* board_;
  Clock& clock_;
  std::vector<Claim> claimed_;  // slots seen kClaimed, to free those whose task is gone
  uint32_t seen_ = 0;
};

// The agent's end of the slots for what tasks saw. One thread uses it.
class SeenSlots {
 public:
  explicit SeenSlots(Board* board) : board_(board) {}

  // Calls `take` for what was published, a private copy, with nothing in it checked. False: there was
  // nothing.
  bool drain(const std::function<void(const Seen&)>& take);
  bool is_drained() const { return board_->header.seen.load(std::memory_order_seq_cst) == seen_; }

 private:
  Board* board_;
  uint32_t seen_ = 0;
};

// Sums over the shards.
uint64_t total(const Board& board, TaskCounter counter);
uint64_t total(const Board& board, AgentCounter counter);
struct TierTotals {
  uint64_t opens;
  uint64_t read_calls;
  uint64_t read_bytes;
  uint64_t placed_bytes;
  uint64_t granted;
};
TierTotals tier_totals(const Board& board, uint32_t tier);
OpenTimes open_times(const Board& board);

// Whether the job has used what is below the roots: opened or mapped a file there, on any node of which this
// one knows. That a script looks whether a directory is there is no use yet; a walk over it is.
bool has_been_used(const Board& board);
bool has_used(const NodeCounts& counts);  // the same of what was counted

// All that the board counts; `tiers`: what each is made of, in the hierarchy's order.
NodeCounts node_counts(const Board& board, const std::vector<Medium>& tiers);
void add(NodeCounts* sum, const NodeCounts& more);

// Files that are placed now.
uint64_t placed_files(const NodeCounts& counts);
// Bytes that programs and the agent have read from the PFS.
uint64_t bytes_from_pfs(const NodeCounts& counts);

// What the first node knows of the job's other nodes.
struct OthersTotals {
  NodeCounts counts;   // sums over all of which anything is known
  uint64_t ended = 0;  // nodes of which all is in it
};
// The agent's. One thread at a time; a reader sees this or what was there before.
void set_others(Board* board, const OthersTotals& others);
OthersTotals others_of(const Board& board);

// Whether `path` is relative and has no empty, "." or ".." component.
bool is_clean_relative(const char* path, size_t len);

}  // namespace monarch
