// SPDX-License-Identifier: Apache-2.0
// Reads a range of a PFS file and writes it to the same place of a tier's copy, in the way that is best for
// the tier and the size (doc/design.md, "A file's way to a tier").
#pragma once

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string_view>

#include "runtime/base/result.h"
#include "runtime/base/throttle.h"
#include "runtime/base/uring.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/driver.h"
#include "runtime/layout/board_layout.h"

namespace monarch {

// The rates that an admin sets for one agent; see AgentConfig.
struct Rates {
  explicit Rates(const AgentConfig& config, Clock& by = system_clock())
      : clock(by),
        pfs_bytes(config.pfs_bandwidth, by),
        pfs_opens(config.pfs_opens, by),
        pfs_stats(config.pfs_stats, by),
        tier_bytes(config.tier_bandwidth, by) {}
  Clock& clock;
  Throttle pfs_bytes, pfs_opens, pfs_stats, tier_bytes;
};

// The I/O scheduling class of the calling thread; see AgentConfig::background_io.
void set_io_priority(AgentConfig::Io io);

struct CopyRange {
  int source = -1;
  int copy = -1;
  uint64_t file_bytes = 0;  // of the whole file
  uint64_t offset = 0;      // a multiple of Copier::kPiece
  uint64_t bytes = 0;
  Writing writing = Writing::kBuffered;
  bool paced = false;       // nobody waits for it: keeps to the admin's rates
  bool keep_pages = false;  // the source's in the page cache, since the job reads them
  bool sparse = false;  // blocks of zeros are not written; the copy has its size, and nothing in it, before
  bool end_is_known = false;  // an earlier copy() from this source has found that it has `file_bytes`
  // Called with each piece that is in the copy; once more, if it had to be copied again.
  std::function<void(uint64_t offset, std::string_view piece)> copied = nullptr;
  // Called again and again while it waits for a rate.
  std::function<void()> waits = nullptr;
};

// What a copy thread has of its own. One thread uses it; the flags may be set from others.
class Copier {
 public:
  static constexpr uint64_t kPiece = 1 << 20;                   // one read and one write
  static constexpr unsigned kPieces = 4;                        // in flight at a time, by io_uring
  static constexpr uint64_t kSeveralPieces = kPieces * kPiece;  // what is smaller is quicker piece by piece

  Copier(Board* board, Rates* rates, const std::atomic<bool>* stopping)
      : board_(board), rates_(rates), stopping_(stopping) {}

  // Errors of the source say so in their text (see is_source_error); ENODATA: it has not `file_bytes`. With
  // kBuffered and more than a few pieces, dirty pages stay bounded and errors of write-back are found; what
  // is still dirty at the end is for WriteBack.
  Status copy(const CopyRange& range);

  // The same with bytes that come from elsewhere: `send` is given room for a piece, and calls `put` once the
  // next one is there. The range's source is not used.
  using Put = std::function<Status(uint64_t offset, uint64_t bytes)>;
  Status write(const CopyRange& range, const std::function<Status(char* room, const Put& put)>& send);

  // Somebody waits for what is being copied now: it no longer keeps to the rates. Any thread.
  void hurry() { hurry_.store(true, std::memory_order_relaxed); }
  // Nothing is copied for a while: gives memory back.
  void rest();
  // Before a new piece of work.
  void begin() { hurry_.store(false, std::memory_order_relaxed); }
  bool hurried() const { return hurry_.load(std::memory_order_relaxed); }
  bool is_stopping() const { return *stopping_; }

 private:
  struct Free {
    void operator()(void* p) const { std::free(p); }
  };
  char* buffer(unsigned piece);  // nullptr: no memory
  void note_progress();
  void note_rate(uint64_t bytes, int64_t nanoseconds);
  int64_t count_since(int64_t start, AgentCounter time);  // how long that is
  bool pace(const CopyRange& range, uint64_t bytes);
  void wait(const CopyRange& range, uint64_t bytes, Throttle* rate) const;
  Status look_at_end(const CopyRange& range);
  Status copy_piece(const CopyRange& range, uint64_t offset, uint64_t bytes);
  bool pace_tier(const CopyRange& range, uint64_t bytes);
  Status write_piece(const CopyRange& range, uint64_t offset, uint64_t bytes);
  Status write_all(const CopyRange& range, const char* from, uint64_t offset, uint64_t bytes);
  Status end_direct(const CopyRange& range, uint64_t end);
  Status bound_dirty(const CopyRange& range, uint64_t written);
  // How many of `bytes` from `offset` on io_uring has copied; 0 if there is none.
  uint64_t copy_by_uring(const CopyRange& range, uint64_t offset, uint64_t bytes);

  Board* const board_;
  Rates* const rates_;
  const std::atomic<bool>* const stopping_;
  std::atomic<bool> hurry_{false};
  std::unique_ptr<char, Free> buffers_[kPieces];
  std::unique_ptr<Uring> uring_;
  bool no_uring_ = false;
};

}  // namespace monarch
