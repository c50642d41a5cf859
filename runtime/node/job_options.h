// SPDX-License-Identifier: Apache-2.0
// What a job's user asked for besides its datasets, as the plugin's options hand it on (spank_monarch(8)).
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/config/user_options.h"
#include "runtime/node/part.h"

namespace monarch {

// Leaves the job `most` bytes of its shares of these tiers, whose quotas are in bytes: of the first ones
// first, and none of those for which nothing is left.
void limit_capacity(uint64_t most, const NodePart& part, std::vector<TierConfig>* tiers);

// Changes a node's configuration for the job, which has so many nodes. Returns what the user does not get, as
// a text for the user, or
// "". An error if no tier is left.
Result<std::string> apply_options(const JobOptions& options, const std::string& node, Config* config,
                                  uint32_t nodes = 1);

}  // namespace monarch
