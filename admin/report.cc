// SPDX-License-Identifier: Apache-2.0
#include "admin/report.h"

#include <algorithm>

#include "build_config.h"
#include "runtime/metadata/board.h"

namespace monarch::admin {
namespace {

using nlohmann::ordered_json;

ordered_json task_counters(const NodeCounts& counts) {
  ordered_json tasks;
#define X(name, doc) tasks[#name] = counts[TaskCounter::name];
  MONARCH_TASK_COUNTERS(X)
#undef X
  return tasks;
}

ordered_json agent_counters(const NodeCounts& counts) {
  ordered_json agent;
#define X(name, doc) agent[#name] = counts[AgentCounter::name];
  MONARCH_AGENT_COUNTERS(X)
#undef X
  return agent;
}

// What is said of a node and of a job alike.
ordered_json opens_of(const NodeCounts& counts) {
  const uint64_t hits = counts.opens_tier, opens = hits + counts[TaskCounter::opens_pfs];
  return {{"opens", opens},
          {"opens_tier", hits},
          {"hit", opens ? static_cast<double>(hits) / static_cast<double>(opens) : 0.0}};
}

ordered_json job_of(const Board& board, NodeCounts counts) {
  const OthersTotals others = others_of(board);
  add(&counts, others.counts);
  const uint64_t nodes = std::max<uint64_t>(board.nodes.load(std::memory_order_relaxed), 1);
  ordered_json placed = ordered_json::object();
  for (uint32_t i = 0; i < kMedia; ++i)
    if (counts.placed_bytes[i] > 0) placed[medium_name(static_cast<Medium>(i))] = counts.placed_bytes[i];
  ordered_json job = {{"nodes", nodes}, {"nodes_told", std::min(1 + others.ended, nodes)}};
  job.update(opens_of(counts));
  job["read_calls_tier"] = counts.read_calls_tier;
  job["read_bytes_tier"] = counts.read_bytes_tier;
  job["placed_bytes"] = placed;
  job["tasks"] = task_counters(counts);
  job["agent"] = agent_counters(counts);
  return job;
}

}  // namespace

ordered_json report(const Board& board, const std::vector<TierInReport>& tiers, Reports what) {
  ordered_json levels = ordered_json::array();
  std::vector<Medium> media;
  for (uint32_t i = 0; i < tiers.size(); ++i) {
    const TierTotals t = tier_totals(board, i);
    media.push_back(tiers[i].medium);
    levels.push_back({{"name", tiers[i].name},
                      {"opens", t.opens},
                      {"read_calls", t.read_calls},
                      {"read_bytes", t.read_bytes},
                      {"placed_bytes", t.placed_bytes},
                      {"granted", t.granted}});
  }
  const NodeCounts counts = node_counts(board, media);
  ordered_json all = {{"version", PACKAGE_VERSION}};
  all.update(opens_of(counts));
  all["tiers"] = levels;
  all["tasks"] = task_counters(counts);
  all["agent"] = agent_counters(counts);
  if (what == Reports::kJob) all["job"] = job_of(board, counts);
  return all;
}

}  // namespace monarch::admin
