// SPDX-License-Identifier: Apache-2.0
// The agent's side of the job's series (runtime/metadata/series.h).
#pragma once

#include <cstdint>

#include "runtime/base/clock.h"
#include "runtime/base/patience.h"
#include "runtime/metadata/series.h"

namespace monarch {

struct StagedSoFar {
  uint64_t bytes = 0, all_bytes = 0;
  bool settled = false;  // nothing is left to stage ahead
  bool whole = false;    // all files are staged
};

// One thread. It has no clock of its own: its caller calls look() when it works anyway.
class SeriesFile {
 public:
  // `began_ns`: when there was nothing to count yet, by the clock.
  SeriesFile(int run_dir, const Board* board, int64_t began_ns, Clock& clock = system_clock())
      : run_dir_(run_dir), board_(board), began_ns_(began_ns), clock_(clock) {}

  // Takes a sample if the last one is old enough, or staging has come to its end; writes it unless nothing is
  // new but the time. The pause between two is a second first, and is doubled whenever the series is full.
  void look(const StagedSoFar& staged);

 private:
  void begin();

  const int run_dir_;
  const Board* const board_;
  const int64_t began_ns_;
  Clock& clock_;
  Series series_;
  uint64_t pause_ms_ = patience::kLookNs / 1'000'000;
};

}  // namespace monarch
