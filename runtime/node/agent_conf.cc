// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/agent_conf.h"

#include "runtime/config/keys.h"

namespace monarch {

std::string agent_conf(const Config& config, const std::vector<TierConfig>& tiers, const JobNodes& nodes) {
  using Prefetch = AgentConfig::Prefetch;
  AgentConfig agent = config.agent;
  agent.divide_rates(nodes.count);
  const bool alone = nodes.count <= 1;
  if (!alone) agent.stage_again = 0;
  // Nodes that do not know of each other would each read all of the dataset: with "auto" the agent sees
  // whether it finds its peers.
  if (agent.prefetch == Prefetch::kAuto && !alone && !nodes.together) agent.prefetch = Prefetch::kOff;
  std::string text = "# Written when the job started: its share of this node.\n[agent]\n";
  text +=
      lines_of(agent_keys(),
               {"threads", "walk_threads", "watch_directories", "stage_wait_max", "stage_wait", "stage_again",
                "prefetch", "prefetch_burst", "prefetch_patience", "consistency", "metadata", "background_io",
                "pfs_bandwidth", "pfs_opens", "pfs_stats", "tier_bandwidth", "max_files", "log_level"},
               agent);
  text += "\n[peer]\n" +
          lines_of(peer_keys(), {"enabled", "ports", "bandwidth", "encrypt", "network"}, config.peer);
  for (TierConfig tier : tiers) {
    const bool charged = tier.charge == TierConfig::Charge::kJob;  // then the agent finds out its quota
    if (charged) tier.quota = {};
    text +=
        "\n[tier." + tier.name + "]\n" + lines_of(tier_keys(), {"path", "quota", "medium", "min_free"}, tier);
    if (charged) text += lines_of(tier_keys(), {"driver", "charge"}, tier);
  }
  text += "\n[policy]\n";
  for (const std::string& path : config.datasets.allow) text += "allow_datasets = " + path + "\n";
  for (const std::string& path : config.datasets.deny) text += "deny_datasets = " + path + "\n";
  return text;
}

}  // namespace monarch
