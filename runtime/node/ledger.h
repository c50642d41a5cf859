// SPDX-License-Identifier: Apache-2.0
// What the jobs on this node have reserved of its tiers.
#pragma once

#include <vector>

#include "runtime/config/config.h"
#include "runtime/node/state.h"

namespace monarch {

// The tiers that the job gets, with quotas in bytes. One that cannot be used is left out, with a line in the
// log.
std::vector<TierConfig> share_of(const StateDir& state, const JobOnNode& job, const Config& config);

}  // namespace monarch
