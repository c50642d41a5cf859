// SPDX-License-Identifier: Apache-2.0
#include "admin/report.h"

#include "build_config.h"
#include "runtime/metadata/board.h"

namespace monarch::admin {

nlohmann::ordered_json report(const Board& board, const std::vector<std::string>& tiers) {
  nlohmann::ordered_json tasks, agent, levels = nlohmann::ordered_json::array();
  uint64_t hits = 0;
  for (uint32_t i = 0; i < tiers.size(); ++i) {
    const TierTotals t = tier_totals(board, i);
    hits += t.opens;
    levels.push_back({{"name", tiers[i]},
                      {"opens", t.opens},
                      {"read_calls", t.read_calls},
                      {"read_bytes", t.read_bytes},
                      {"placed_bytes", t.placed_bytes}});
  }
#define X(name, doc) tasks[#name] = total(board, TaskCounter::name);
  MONARCH_TASK_COUNTERS(X)
#undef X
#define X(name, doc) agent[#name] = total(board, AgentCounter::name);
  MONARCH_AGENT_COUNTERS(X)
#undef X
  const uint64_t opens = hits + total(board, TaskCounter::opens_pfs);
  return {{"version", PACKAGE_VERSION},
          {"opens", opens},
          {"opens_tier", hits},
          {"hit", opens ? static_cast<double>(hits) / static_cast<double>(opens) : 0.0},
          {"tiers", levels},
          {"tasks", tasks},
          {"agent", agent}};
}

}  // namespace monarch::admin
