// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/agent_conf.h"

#include <fmt/core.h>

namespace monarch {
namespace {

std::string quota_text(const Quota& q) {
  return q.percent < 0 ? std::to_string(q.bytes) : fmt::format("{}%", q.percent);
}

}  // namespace

std::string agent_conf(const Config& config, const std::vector<TierConfig>& tiers, const JobNodes& nodes) {
  const AgentConfig& agent = config.agent;
  const PeerConfig& peer = config.peer;
  AgentConfig mine = agent;
  mine.divide_rates(nodes.count);
  const bool alone = nodes.count <= 1;
  // Nodes that do not know of each other would each read all of the dataset: with "auto" the agent sees
  // whether it finds its peers.
  const bool on = agent.prefetch == AgentConfig::Prefetch::kOn;
  const bool by_itself = agent.prefetch == AgentConfig::Prefetch::kAuto && (alone || nodes.together);
  const char* prefetch = on ? "on" : by_itself ? "auto" : "off";
  const bool is_set = mine.prefetch_burst != AgentConfig::kBurstAuto;
  std::string text = fmt::format(
      "# Written when the job started: its share of this node.\n[agent]\nthreads = {}\nwalk_threads = {}\n"
      "watch_directories = {}\nstage_wait_max = {}\nstage_wait = {}\nstage_again = {}\nprefetch = "
      "{}\nprefetch_burst = {}\nprefetch_patience = {}\nconsistency = "
      "{}\nmetadata = "
      "{}\nbackground_io = {}\n"
      "pfs_bandwidth = {}\npfs_opens = {}\npfs_stats = {}\ntier_bandwidth = {}\nmax_files = {}\nlog_level = "
      "{}\n",
      mine.threads, mine.walk_threads, mine.watch_directories, mine.stage_wait_max, mine.stage_wait,
      alone ? mine.stage_again : 0, prefetch, is_set ? std::to_string(mine.prefetch_burst) : "auto",
      mine.prefetch_patience, consistency_name(mine.consistency), metadata_name(mine.metadata),
      io_name(mine.background_io), mine.pfs_bandwidth, mine.pfs_opens, mine.pfs_stats, mine.tier_bandwidth,
      mine.max_files, mine.log_level);
  text += fmt::format("\n[peer]\nenabled = {}\nports = {}-{}\nbandwidth = {}\nencrypt = {}\n",
                      peer.enabled ? "on" : "off", peer.first_port, peer.last_port, peer.bandwidth,
                      peer.encrypt ? "on" : "off");
  if (!peer.network.empty()) text += "network = " + peer.network + "\n";
  for (const TierConfig& t : tiers) {
    const bool charged =
        t.charge == TierConfig::Charge::kJob;  // then the agent finds out how much it may use
    text +=
        fmt::format("\n[tier.{}]\npath = {}\nquota = {}\nmedium = {}\nmin_free = {}\n", t.name, t.path,
                    quota_text(charged ? Quota{} : t.quota), medium_name(t.medium), quota_text(t.min_free));
    if (charged) text += fmt::format("driver = {}\ncharge = {}\n", kind_name(t.kind), charge_name(t.charge));
  }
  text += "\n[policy]\n";
  for (const std::string& path : config.datasets.allow) text += "allow_datasets = " + path + "\n";
  for (const std::string& path : config.datasets.deny) text += "deny_datasets = " + path + "\n";
  return text;
}

}  // namespace monarch
