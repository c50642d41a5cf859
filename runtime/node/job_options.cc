// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_options.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <sstream>

namespace monarch {
namespace {

constexpr size_t kMostTiers = 64;

std::vector<std::string> listed(const std::string& names) {
  std::vector<std::string> list;
  std::istringstream in(names);
  for (std::string name; std::getline(in, name, ',');) list.push_back(name);
  return list;
}

bool is_one_of(const std::string& value, std::initializer_list<const char*> known) {
  return std::any_of(known.begin(), known.end(), [&](const char* k) { return value == k; });
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
    else
      return Error{EINVAL, "the job's options hold '" + word + "', which this version does not know"};
  }
  return options;
}

Result<std::string> apply_options(const JobOptions& options, const std::string& node, Config* config) {
  using Prefetch = AgentConfig::Prefetch;
  std::string remark, missing;
  AgentConfig& agent = config->agent;
  if (options.prefetch == "off") agent.prefetch = Prefetch::kOff;
  if (is_one_of(options.prefetch, {"auto", "all"})) {
    if (agent.prefetch == Prefetch::kOff) {
      if (options.prefetch == "all")
        remark =
            "--monarch-prefetch=all has no effect on " + node + ", whose configuration says prefetch = off";
    } else {
      agent.prefetch = Prefetch::kAuto;
      if (options.prefetch == "all") agent.prefetch_burst = AgentConfig::kBurstAll;
    }
  }
  if (!options.consistency.empty())
    agent.consistency =
        options.consistency == "open" ? AgentConfig::Consistency::kOpen : AgentConfig::Consistency::kJob;
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
