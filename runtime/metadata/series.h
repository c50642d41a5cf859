// SPDX-License-Identifier: Apache-2.0
// What a job on one node has read and staged over time: a bounded number of samples in a file of the run
// directory, which the agent writes, and tools and root's epilog read.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/layout/board_layout.h"

namespace monarch {

inline constexpr char kSeriesFile[] = "series";
inline constexpr uint32_t kSamples = 240;

// All but `ms` and the bytes that are placed now grow only. Words of 64 bits alone.
struct Sample {
  uint64_t ms = 0;                                   // since the series began
  uint64_t read_bytes_pfs = 0, read_bytes_tier = 0;  // by the job's programs
  uint64_t agent_bytes_pfs = 0, peer_bytes = 0, served_bytes = 0;
  uint64_t opens_pfs = 0, opens_tier = 0;
  uint64_t waits = 0, wait_ns = 0;
  uint64_t staged_bytes = 0,
           dataset_bytes = 0;  // Progress::staged_bytes, all_bytes (runtime/agent/progress.h)
  uint64_t placed_bytes[kMaxTiers] = {};
  bool operator==(const Sample&) const = default;
};

struct Series {
  uint64_t magic = 0;
  uint64_t began = 0;     // seconds of CLOCK_REALTIME
  uint64_t began_ms = 0;  // of CLOCK_MONOTONIC
  // When nothing was left to stage ahead, and when all files were staged, as `ms` of a sample, at least 1;
  // 0: not yet, or not known.
  uint64_t settled_ms = 0, whole_ms = 0;
  uint64_t count = 0;
  Sample samples[kSamples];

  uint64_t bytes() const { return offsetof(Series, samples) + count * sizeof(Sample); }
};
inline constexpr uint64_t kSeriesMagic = 0x31535f4843524e4d;

// What the board counts now; what it does not know, of `before`.
Sample sample_of(const Board& board, uint64_t ms, const Sample& before);

// Adds a sample. A node that rests needs no more of them: of three that differ in their time alone, the last
// two become one. Of a full series every second one goes.
void append(const Sample& sample, Series* series);

// Whole or not at all.
Status write_series(int run_dir, const Series& series);

// Without mapping it, as read_board() does; what is there is the owner's, and may say anything. ENOENT: there
// is none (yet). Run as the job's owner.
Result<Series> read_series(const std::string& run_dir);

// What `all` files have, of which `known` ones have `bytes`: the others are taken for as large.
uint64_t bytes_of_all(uint64_t bytes, uint64_t known, uint64_t all);

// With a last sample, of now.
void close_series(const Board& board, Series* series, Clock& clock = system_clock());

// How long programs were at work, from the first open on, and in how much of that they read from the PFS, at
// most: between two samples they either did or did not. A read counts when it has ended.
struct AtWork {
  uint64_t ms = 0, pfs_ms = 0;
};
AtWork at_work(const Series& series);

// Whether all numbers are such as an agent can have written.
bool plausible(const Series& series);

}  // namespace monarch
