// SPDX-License-Identifier: Apache-2.0
// Whether anybody uses the dataset at all: a static program, or one in a container that was not shown the
// library, reads the PFS itself, and all that is staged for it is read once more and for nothing.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/metadata/board.h"

namespace monarch {

// A file of the run directory: when the job's first task began, or is sure to have begun, in milliseconds of
// CLOCK_MONOTONIC.
inline constexpr char kBeganFile[] = "began";
// What it says; -1: no task has begun, as far as it tells. It is the user's, and may say anything.
int64_t began_ms(int run_dir);

// One thread.
class UseWatch {
 public:
  // `run_dir`: where the job's first task is noted (kBeganFile). `patience_s`: see AgentConfig.
  UseWatch(const Board* board, int run_dir, int patience_s, Clock& clock = system_clock())
      : board_(board), run_dir_(run_dir), patience_ms_(int64_t{patience_s} * 1000), clock_(clock) {}

  // Whether the job's first task has run for so long without any use; looks, unless nothing can be new. Once
  // there was a use it is false for good.
  bool is_unused();
  // How long to wait before that is asked again, as poll(2) takes it.
  int wait_ms() const { return wait_ms_; }

 private:
  const Board* const board_;
  const int run_dir_;
  const int64_t patience_ms_;
  Clock& clock_;
  int wait_ms_ = 0;
};

}  // namespace monarch
