// SPDX-License-Identifier: Apache-2.0
// Removing what a run in user mode left behind because everything of it was killed.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/result.h"

namespace monarch {

// Calls `handle`, with a descriptor of the directory `base`, for each name "monarch-run.UID.*" in it that is
// a directory that the calling user's run has made (is_user_dir()), that no process holds a lock on (see
// Tier::open) and that is older than a few seconds; it is locked meanwhile. Returns for how many it returned
// true.
Result<int> for_user_dirs(const std::string& base,
                          const std::function<bool(int base, const std::string& name)>& handle);

// Removes them. Returns how many were removed.
Result<int> sweep_user_dirs(const std::string& base);

}  // namespace monarch
