// SPDX-License-Identifier: Apache-2.0
// How far a job's agent has come, for a person that asks.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/node/accounting.h"

namespace monarch {

// Numbers and names only, so that a child with the owner's identity can hand it to root.
struct JobStatus {
  uint64_t magic;
  JobCounters counters;
  uint64_t granted[kMaxTiers];                   // see Board::granted
  uint64_t progress;                             // pieces copied; see BoardHeader
  uint64_t alive;                                // 1: the agent lives
  uint64_t closed, full;                         // see BoardHeader
  uint64_t walked;                               // 1: all files of the dataset are found
  uint64_t tiers;                                // at most kMaxTiers; 0: there is no catalog yet
  char names[kMaxTiers][sizeof TierPath::name];  // as configured; NUL-terminated
  uint64_t datasets;                             // as many directories; 0: as with tiers
  char dataset[kPathBytes];                      // the first one; NUL-terminated, and anything may be in it
};
inline constexpr uint64_t kJobStatusMagic = 0x33535f4843524e4d;

// From the board and the catalog's header, without mapping either, as read_board() does. ENOENT: there is no
// board (yet). Run as the job's owner.
Result<JobStatus> read_status(const std::string& run_dir);

// Whether all of it is such as a job can have; names are plain.
bool plausible(const JobStatus& status);

}  // namespace monarch
