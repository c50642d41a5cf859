// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/discovery.h"

namespace monarch::admin {

// The tiers that jobs on this node would have, and what else there is; without those that no job could use.
Result<std::vector<Candidate>> look_at_tiers(const std::vector<TierConfig>& configured);

// Of a configured tier whose directory is on the root file system, as it is while its disk is not mounted;
// empty: it is not.
std::string doubt_of_disk(const TierConfig& tier);

// Whether a job with these datasets can have the tier: they may not lie in each other.
Status check_apart(const TierConfig& tier, const std::vector<std::string>& datasets);

}  // namespace monarch::admin
