// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/discovery.h"

namespace monarch::admin {

// The tiers that jobs on this node would have, and what else there is; without those that no job could use.
Result<std::vector<Candidate>> look_at_tiers(const std::vector<TierConfig>& configured);

}  // namespace monarch::admin
