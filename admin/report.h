// SPDX-License-Identifier: Apache-2.0
// The counters of one job on one node as JSON; each field is documented in monarchctl(1).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/layout/board_layout.h"

namespace monarch::admin {

// `tiers`: the names, in the hierarchy's order.
nlohmann::ordered_json report(const Board& board, const std::vector<std::string>& tiers);

}  // namespace monarch::admin
