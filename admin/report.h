// SPDX-License-Identifier: Apache-2.0
// The counters of one job on one node as JSON, and on the first of several those of the whole job; each field
// is documented in monarchctl(1).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/layout/board_layout.h"

namespace monarch::admin {

struct TierInReport {
  std::string name;
  Medium medium = Medium::kSsd;
};
enum class Reports { kNode, kJob };  // what

// `tiers`: in the hierarchy's order. `what`: of the first of several nodes, the job.
nlohmann::ordered_json report(const Board& board, const std::vector<TierInReport>& tiers, Reports what);

}  // namespace monarch::admin
