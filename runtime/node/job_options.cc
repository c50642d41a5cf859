// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_options.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "runtime/base/size.h"

namespace monarch {
namespace {

constexpr size_t kMostTiers = 64;
constexpr int kMostWaitSeconds = 604800;

std::vector<std::string> listed(const std::string& names) {
  std::vector<std::string> list;
  std::istringstream in(names);
  for (std::string name; std::getline(in, name, ',');) list.push_back(name);
  return list;
}

bool is_one_of(const std::string& value, std::initializer_list<const char*> known) {
  return std::any_of(known.begin(), known.end(), [&](const char* k) { return value == k; });
}

// A number from 1 to `most` and nothing else; 0: it is none.
int number_in(const std::string& text, int most) {
  int n = 0;
  const char* end = text.data() + text.size();
  const auto [rest, ec] = std::from_chars(text.data(), end, n);
  return ec == std::errc() && rest == end && n >= 1 && n <= most ? n : 0;
}

// none, full or a percentage.
bool take_wait(const std::string& value, int* percent) {
  if (value == "none" || value == "full") {
    *percent = value == "full" ? 100 : 0;
    return true;
  }
  *percent = value.ends_with('%') ? number_in(value.substr(0, value.size() - 1), 100) : 0;
  return *percent != 0;
}

// MIN[:MAX][,require]
bool take_capacity(const std::string& value, JobOptions* options) {
  constexpr std::string_view kRequire = ",require";
  std::string_view sizes = value;
  options->require = sizes.ends_with(kRequire);
  if (options->require) sizes.remove_suffix(kRequire.size());
  const size_t colon = std::min(sizes.find(':'), sizes.size());
  const Result<uint64_t> least = parse_size(sizes.substr(0, colon));
  const Result<uint64_t> most = colon < sizes.size() ? parse_size(sizes.substr(colon + 1)) : UINT64_MAX;
  if (!least.ok() || !most.ok() || *most < *least || *most == 0) return false;
  options->least = *least;
  options->most = *most;
  return true;
}

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

Result<JobOptions> parse_job_options(const std::string& text) {
  JobOptions options;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    const size_t at = word.find('=');
    const std::string key = word.substr(0, at), value = at == std::string::npos ? "" : word.substr(at + 1);
    if (key == "prefetch" && is_one_of(value, {"auto", "all", "off"}))
      options.prefetch = value;
    else if (key == "consistency" && is_one_of(value, {"job", "open"}))
      options.consistency = value;
    else if (key == "tiers" && !value.empty() && listed(value).size() <= kMostTiers)
      options.tiers = listed(value);
    else if (key == "wait_timeout" && number_in(value, kMostWaitSeconds) != 0)
      options.wait_seconds = number_in(value, kMostWaitSeconds);
    else if ((key == "wait" && take_wait(value, &options.wait_percent)) ||
             (key == "capacity" && take_capacity(value, &options)))
      continue;
    else if (key == "exclude" && !value.empty())
      options.exclude = value;
    else
      return Error{EINVAL, "the job's options hold '" + word + "', which this version does not know"};
  }
  return options;
}

void limit_capacity(uint64_t most, std::vector<TierConfig>* tiers) {
  if (most == UINT64_MAX) return;
  for (TierConfig& tier : *tiers) {
    const uint64_t own = std::min(tier.job_capacity.of(tier.quota.bytes), tier.quota.bytes);
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
