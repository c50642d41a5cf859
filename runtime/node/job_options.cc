// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_options.h"

#include <fmt/core.h>

#include <algorithm>

namespace monarch {
namespace {

std::string names_of(const std::vector<TierConfig>& tiers) {
  std::string names;
  for (const TierConfig& t : tiers) names += (names.empty() ? "" : ",") + t.name;
  return names;
}

// The tiers that were asked for, in that order; `missing`: those that the node has not.
std::vector<TierConfig> chosen(const std::vector<std::string>& names, const std::vector<TierConfig>& all,
                               std::string* missing) {
  std::vector<TierConfig> tiers;
  for (const std::string& name : names) {
    const auto is_it = [&](const TierConfig& t) { return t.name == name; };
    const auto it = std::find_if(all.begin(), all.end(), is_it);
    if (it == all.end())
      *missing += (missing->empty() ? "" : ",") + name;
    else if (std::none_of(tiers.begin(), tiers.end(), is_it))
      tiers.push_back(*it);
  }
  return tiers;
}

}  // namespace

void limit_capacity(uint64_t most, const NodePart& part, std::vector<TierConfig>* tiers) {
  if (most == UINT64_MAX) return;
  for (TierConfig& tier : *tiers) {
    const uint64_t own = tier.quota.bytes == 0 ? 0 : share_of(tier, part);
    if (own > most || own == 0) tier.job_capacity = Quota{std::min(own, most), -1};
    most -= std::min(own, most);
  }
  std::erase_if(*tiers,
                [](const TierConfig& t) { return t.job_capacity.percent < 0 && t.job_capacity.bytes == 0; });
}

Result<std::string> apply_options(const JobOptions& options, const std::string& node, Config* config,
                                  uint32_t nodes) {
  using Prefetch = AgentConfig::Prefetch;
  std::string remark, missing;
  AgentConfig& agent = config->agent;
  const bool waits = options.wait_percent > 0, all = waits || options.prefetch == "all";
  if (options.prefetch == "off") agent.prefetch = Prefetch::kOff;
  const char* asked = waits ? "--monarch-wait" : "--monarch-prefetch=all";
  if (agent.prefetch == Prefetch::kOff && options.prefetch != "off" && all)
    remark = fmt::format("{} has no effect on {}, whose configuration says prefetch = off", asked, node);
  else if (agent.prefetch == Prefetch::kAuto && all && nodes > 1 && !config->peer.enabled)
    remark = fmt::format(
        "{} has no effect on {}: the job has {} nodes, which get no files from each other here "
        "(monarch.conf: "
        "[peer])",
        asked, node, nodes);
  // What the configuration has on has no bound already, on nodes that do not know of each other, too.
  if (agent.prefetch == Prefetch::kAuto && all) agent.prefetch_burst = AgentConfig::kBurstAll;
  if (agent.prefetch == Prefetch::kOn && !all && options.prefetch == "auto") agent.prefetch = Prefetch::kAuto;
  if (!options.consistency.empty())
    agent.consistency =
        options.consistency == "open" ? AgentConfig::Consistency::kOpen : AgentConfig::Consistency::kJob;
  agent.exclude = options.exclude;
  if (options.tiers.empty()) return remark;
  std::vector<TierConfig> tiers = chosen(options.tiers, config->tiers, &missing);
  const std::string unknown =
      fmt::format("{} has no tier {}; it has {}", node, missing, names_of(config->tiers));
  if (tiers.empty())
    return Error{ENODEV, unknown + ": name one of these in --monarch-tiers, or leave it out"};
  if (!missing.empty()) remark += (remark.empty() ? "" : "; ") + unknown;
  config->tiers = std::move(tiers);
  return remark;
}

}  // namespace monarch
