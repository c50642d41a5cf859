// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/show.h"

#include <fmt/format.h>

namespace monarch {
namespace {

using Values = std::optional<std::vector<std::string>>;

// Exactly, unlike format_size().
std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"", "K", "M", "G", "T", "P"};
  size_t unit = 0;
  for (; bytes != 0 && bytes % 1024 == 0 && unit + 1 < std::size(kUnits); ++unit) bytes /= 1024;
  return std::to_string(bytes) + kUnits[unit];
}

std::string quota_text(const Quota& quota) {
  return quota.percent < 0 ? size_text(quota.bytes) : fmt::format("{}%", quota.percent);
}

std::string rate_text(uint64_t rate) { return rate == 0 ? "none" : size_text(rate); }
std::string switch_text(bool on) { return on ? "on" : "off"; }

std::string prefetch_text(AgentConfig::Prefetch prefetch) {
  switch (prefetch) {
    case AgentConfig::Prefetch::kAuto:
      return "auto";
    case AgentConfig::Prefetch::kOn:
      return "on";
    case AgentConfig::Prefetch::kOff:
      return "off";
  }
  return "?";
}

std::string accounting_text(Accounting accounting) {
  switch (accounting) {
    case Accounting::kAuto:
      return "auto";
    case Accounting::kSacct:
      return "sacct";
    case Accounting::kSpool:
      return "spool";
    case Accounting::kLog:
      return "log";
    case Accounting::kOff:
      return "off";
  }
  return "?";
}

class Lister {
 public:
  void section(std::string title) { section_ = std::move(title); }
  void add(const char* key, std::string text) {
    all_.push_back({section_, key, ConfigValue::Kind::kSingle, Values({std::move(text)})});
  }
  void add_unset(const char* key) { all_.push_back({section_, key, ConfigValue::Kind::kSingle, {}}); }
  template <typename T, typename Text>
  void add_if(const char* key, const std::optional<T>& value, const Text& text) {
    value ? add(key, text(*value)) : add_unset(key);
  }
  void add_list(const char* key, const PolicyKeys::List& list) {
    Values values = list;
    if (values && values->empty()) values->push_back("");
    all_.push_back({section_, key, ConfigValue::Kind::kList, std::move(values)});
  }
  std::vector<ConfigValue> take() { return std::move(all_); }

 private:
  std::string section_;
  std::vector<ConfigValue> all_;
};

void list_tier(const TierConfig& tier, Lister* out) {
  out->section("tier." + tier.name);
  out->add("path", tier.path);
  out->add("quota", quota_text(tier.quota));
  out->add("share", share_name(tier.share));
  out->add("job_capacity", quota_text(tier.job_capacity));
  out->add("medium", medium_name(tier.medium));
  out->add("driver", kind_name(tier.kind));
  out->add("charge", charge_name(tier.charge));
  out->add("min_free", quota_text(tier.min_free));
}

void list_agent(const AgentConfig& agent, Lister* out) {
  const uint64_t burst = agent.prefetch_burst, memory = agent.memory_max;
  out->section("agent");
  out->add("threads", std::to_string(agent.threads));
  out->add("walk_threads", std::to_string(agent.walk_threads));
  out->add("watch_directories", std::to_string(agent.watch_directories));
  out->add("stage_wait_max", size_text(agent.stage_wait_max));
  out->add("stage_wait", std::to_string(agent.stage_wait));
  out->add("stage_again", std::to_string(agent.stage_again));
  out->add("prefetch", prefetch_text(agent.prefetch));
  out->add("prefetch_burst", burst == AgentConfig::kBurstAuto ? "auto" : size_text(burst));
  out->add("prefetch_patience", std::to_string(agent.prefetch_patience));
  out->add("consistency", consistency_name(agent.consistency));
  out->add("metadata", metadata_name(agent.metadata));
  out->add("pfs_bandwidth", rate_text(agent.pfs_bandwidth));
  out->add("pfs_opens", rate_text(agent.pfs_opens));
  out->add("pfs_stats", rate_text(agent.pfs_stats));
  out->add("tier_bandwidth", rate_text(agent.tier_bandwidth));
  out->add("background_io", io_name(agent.background_io));
  out->add("max_files", rate_text(agent.max_files));
  out->add("memory_max", memory == AgentConfig::kMemoryAuto ? "auto" : rate_text(memory));
  out->add("run_size", rate_text(agent.run_size));
  agent.log.empty() ? out->add_unset("log") : out->add("log", agent.log);
  out->add("log_level", agent.log_level);
}

void list_peer(const PeerConfig& peer, Lister* out) {
  out->section("peer");
  out->add("enabled", switch_text(peer.enabled));
  peer.network.empty() ? out->add_unset("network") : out->add("network", peer.network);
  out->add("ports", fmt::format("{}-{}", peer.first_port, peer.last_port));
  out->add("bandwidth", rate_text(peer.bandwidth));
  out->add("encrypt", switch_text(peer.encrypt));
}

void list_policy(const PolicySection& policy, Lister* out) {
  const PolicyKeys& keys = policy.keys;
  out->section(policy.title());
  out->add_if("enabled", keys.enabled, switch_text);
  out->add_list("allow_users", keys.allow_users);
  out->add_list("deny_users", keys.deny_users);
  out->add_list("allow_groups", keys.allow_groups);
  out->add_list("deny_groups", keys.deny_groups);
  out->add_list("allow_datasets", keys.allow_datasets);
  out->add_list("deny_datasets", keys.deny_datasets);
  out->add_if("tiers", keys.tiers, [](const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, ", "));
  });
  out->add_if("job_capacity", keys.job_capacity, quota_text);
  out->add_if("max_files", keys.max_files, rate_text);
  out->add_if("pfs_bandwidth", keys.pfs_bandwidth, rate_text);
  out->add_if("pfs_opens", keys.pfs_opens, rate_text);
  out->add_if("pfs_stats", keys.pfs_stats, rate_text);
  const auto as_it_is = [](const std::string& text) { return text; };
  out->add_list("default_dataset", keys.default_dataset);
  out->add_if("default_options", keys.default_options, as_it_is);
  out->add_list("deny_options", keys.deny_options);
  out->add_if("max_prefetch", keys.max_prefetch, as_it_is);
  out->add_if("max_wait", keys.max_wait, [](int seconds) { return std::to_string(seconds); });
}

}  // namespace

std::vector<ConfigValue> values_of(const Config& config) {
  Lister out;
  for (const TierConfig& tier : config.tiers) list_tier(tier, &out);
  list_agent(config.agent, &out);
  list_peer(config.peer, &out);
  out.section("accounting");
  out.add("account", accounting_text(config.accounting));
  out.add("spool_days", std::to_string(config.spool.spool_days));
  out.add("spool_lines", std::to_string(config.spool.spool_lines));
  out.add("report_days", std::to_string(config.reports.report_days));
  out.add("report_size", rate_text(config.reports.report_size));
  bool general = false;
  for (const PolicySection& policy : config.policies) general |= policy.of == PolicySection::Of::kAll;
  if (!general) list_policy({}, &out);
  for (const PolicySection& policy : config.policies) list_policy(policy, &out);
  return out.take();
}

}  // namespace monarch
