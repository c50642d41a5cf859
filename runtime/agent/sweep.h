// SPDX-License-Identifier: Apache-2.0
// Removing what a run in user mode left behind because everything of it was killed.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/result.h"

namespace monarch {

// A directory that a run of the calling user's has made (is_user_dir()).
struct LeftOver {
  int dir;   // itself
  int base;  // where it had the name
  std::string name;
};

inline constexpr int kYoungSeconds = 10;

// Calls `handle` for each directory "monarch-run.UID.*" in the directory `base` that a run of the calling
// user's has made, that no process holds a lock on (see Tier::open) and that is kYoungSeconds old; it is
// locked meanwhile. A younger one may not be locked yet by the run that made it, and is counted in `young`.
// Returns for how many it returned true.
Result<int> for_left_overs(const std::string& base, int* young,
                           const std::function<bool(const LeftOver&)>& handle);

// Removes one with all that is in it. What has its name by now, where others may rename, stays.
Status remove_left_over(const LeftOver& left);

// Removes them. Returns how many were removed.
Result<int> sweep_user_dirs(const std::string& base);

}  // namespace monarch
