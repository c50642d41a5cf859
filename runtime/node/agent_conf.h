// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/config.h"

namespace monarch {

struct JobNodes {
  uint32_t count = 1;
  bool together = false;  // their agents are told of each other
};

// What the agent is told, in the words of monarch.conf(5): its tiers and its share of the rates.
std::string agent_conf(const Config& config, const std::vector<TierConfig>& tiers, const JobNodes& nodes);

}  // namespace monarch
