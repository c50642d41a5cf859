// SPDX-License-Identifier: Apache-2.0
// monarchctl run --wait: until enough of the dataset is staged, with a bar on a terminal.
#pragma once

#include <functional>
#include <string>

namespace monarch::admin {

struct StagingWait {
  int percent = 0;     // of the dataset's bytes; 0: not at all
  int seconds = 1800;  // at most
};

// Waits until the agent of that run directory has staged so much, or stages no more, or `lives` says that it
// has ended, or the time is over; says at the end, on standard error, how much is staged, and why no more.
void wait_until_staged(const std::string& run_dir, StagingWait wait, const std::function<bool()>& lives);

}  // namespace monarch::admin
