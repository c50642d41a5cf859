// SPDX-License-Identifier: Apache-2.0
// Removing what a run in user mode left behind because everything of it was killed.
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace monarch {

// Removes from the directory `base` each "monarch-run.UID.*" directory of the calling user that no process
// holds a lock on (see Tier::open) and that is older than a few seconds. Returns how many were removed.
Result<int> sweep_user_dirs(const std::string& base);

}  // namespace monarch
