// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/config.h"

namespace monarch {

// What the agent is told, in the words of monarch.conf(5): its tiers and its share of the rates.
std::string agent_conf(const Config& config, const std::vector<TierConfig>& tiers, uint32_t nodes);

}  // namespace monarch
