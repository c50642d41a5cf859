// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/policy_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <optional>

#include "runtime/config/keys.h"
#include "runtime/config/user_options.h"
#include "runtime/config/values.h"

namespace monarch {

std::vector<std::string> split_list(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    size_t first = at, last = end;
    while (first < last && std::isspace(static_cast<unsigned char>(text[first]))) ++first;
    while (last > first && std::isspace(static_cast<unsigned char>(text[last - 1]))) --last;
    if (last > first) words.push_back(text.substr(first, last - first));
    at = end + 1;
  }
  return words;
}

namespace {

using Of = PolicySection::Of;

struct KeyPrefix {
  Of of;
  const char* text;
};
constexpr KeyPrefix kPrefixes[] = {
    {Of::kPartition, "policy.partition."}, {Of::kAccount, "policy.account."}, {Of::kQos, "policy.qos."}};

// Nothing: it is none of policy.
std::optional<PolicySection> parse_section(const std::string& section) {
  PolicySection policy;
  if (section == "policy") return policy;
  for (const KeyPrefix& prefix : kPrefixes) {
    if (section.rfind(prefix.text, 0) != 0) continue;
    policy.of = prefix.of;
    policy.name = section.substr(std::string(prefix.text).size());
    if (policy.name.empty()) return {};
    if (policy.of != Of::kPartition)  // whose names Slurm tells from each other by case, too
      for (char& c : policy.name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return policy;
  }
  return {};
}

// Of users, groups, tiers and options, of which no name has a colon.
Status check_names(const std::string& value) {
  if (value.find(':') == std::string::npos) return {};
  return bad_input("names are separated by ',', not by ':'; write for example one, two");
}

Status add_names(const std::string& value, PolicyKeys::List* list) {
  MONARCH_TRY(check_names(value));
  if (!*list) list->emplace();
  for (std::string& name : split_list(value, ',')) (*list)->push_back(std::move(name));
  return {};
}

Status add_paths(const std::string& value, PolicyKeys::List* list) {
  std::vector<std::string> clean;
  for (const std::string& path : split_list(value, ':')) {
    const size_t next = path.find_first_not_of(" \t", std::min(path.find(','), path.size() - 1) + 1);
    if (next != std::string::npos && path[next] == '/')
      return bad_input("paths are separated by ':', not by ','; write for example /lustre/a:/lustre/b");
    Result<std::string> parsed = parse_path(path);
    if (!parsed.ok()) return parsed.error();
    clean.push_back(parsed.take());
  }
  if (!*list) list->emplace();
  (*list)->insert((*list)->end(), clean.begin(), clean.end());
  return {};
}

Result<std::vector<std::string>> parse_tiers(const std::string& value) {
  MONARCH_TRY(check_names(value));
  const std::vector<std::string> names = split_list(value, ',');
  if (names.empty())
    return bad_input("tiers names none; write for example tiers = nvme, ssd, or enabled = off");
  for (size_t i = 0; i < names.size(); ++i)
    if (std::count(names.begin(), names.end(), names[i]) > 1)
      return bad_input("tiers names " + names[i] + " twice");
  return names;
}

Result<std::string> parse_default_options(const std::string& value) {
  if (const Result<JobOptions> parsed = parse_job_options(value); !parsed.ok())
    return bad_input("default_options = " + value + ": " + parsed.error().text +
                     "; write for example default_options = prefetch=off consistency=open, of " +
                     kOptionNames);
  return value;
}

Status add_options(const std::string& value, PolicyKeys::List* list) {
  for (const std::string& name : split_list(value, ','))
    if (!is_option(name)) return bad_input("deny_options names '" + name + "'; known are " + kOptionNames);
  return add_names(value, list);
}

Key<PolicyKeys> list_key(const char* name, PolicyKeys::List PolicyKeys::*list,
                         Status (*add)(const std::string&, PolicyKeys::List*)) {
  const auto values = [=](const PolicyKeys& keys) -> ConfigValue::Values {
    if (keys.*list && (keys.*list)->empty()) return ConfigValue::Values({""});
    return keys.*list;
  };
  const auto set = [=](const std::string& text, PolicyKeys* keys) { return add(text, &(keys->*list)); };
  return {name, set, values, ConfigValue::Kind::kList};
}

Result<std::string> parse_max_prefetch(const std::string& text) {
  if (text == "all" || text == "auto" || text == "off") return text;
  return bad_input("max_prefetch '" + text + "' is none of all, auto, off");
}

Result<int> parse_max_wait(const std::string& text) {
  if (text.empty() || text.size() > 6 || text.find_first_not_of("0123456789") != std::string::npos ||
      std::stoi(text) > 604800)
    return bad_input("max_wait '" + text + "' is not a number of seconds from 0 to 604800, which is a week");
  return std::stoi(text);
}

}  // namespace

std::string PolicySection::title() const {
  for (const KeyPrefix& prefix : kPrefixes)
    if (prefix.of == of) return prefix.text + name;
  return "policy";
}

bool is_policy_section(const std::string& section) { return parse_section(section).has_value(); }

std::string canonical_section(const std::string& section) {
  const std::optional<PolicySection> policy = parse_section(section);
  return policy ? policy->title() : section;
}

PolicySection* find_policy(Config* config, const std::string& section) {
  const std::optional<PolicySection> wanted = parse_section(section);
  for (PolicySection& policy : config->policies)
    if (wanted && policy.of == wanted->of && policy.name == wanted->name) return &policy;
  return nullptr;
}

void add_policy(Config* config, const std::string& section) {
  if (std::optional<PolicySection> policy = parse_section(section))
    config->policies.push_back(std::move(*policy));
}

const Keys<PolicyKeys>& policy_keys() {
  using P = PolicyKeys;
  const auto as_it_is = [](const std::string& text) { return text; };
  const auto joined = [](const std::vector<std::string>& names) {
    return fmt::format("{}", fmt::join(names, ", "));
  };
  static const Keys<P> keys = {
      key_of<P>("enabled", &P::enabled, &parse_switch, &switch_text),
      list_key("allow_users", &P::allow_users, &add_names),
      list_key("deny_users", &P::deny_users, &add_names),
      list_key("allow_groups", &P::allow_groups, &add_names),
      list_key("deny_groups", &P::deny_groups, &add_names),
      list_key("allow_datasets", &P::allow_datasets, &add_paths),
      list_key("deny_datasets", &P::deny_datasets, &add_paths),
      key_of<P>("tiers", &P::tiers, &parse_tiers, joined),
      key_of<P>("job_capacity", &P::job_capacity, &parse_job_capacity, &quota_text),
      key_of<P>("max_files", &P::max_files, &parse_number, &rate_text),
      key_of<P>("pfs_bandwidth", &P::pfs_bandwidth, &parse_rate, &rate_text),
      key_of<P>("pfs_opens", &P::pfs_opens, &parse_number, &rate_text),
      key_of<P>("pfs_stats", &P::pfs_stats, &parse_number, &rate_text),
      list_key("default_dataset", &P::default_dataset, &add_paths),
      key_of<P>("default_options", &P::default_options, &parse_default_options, as_it_is),
      list_key("deny_options", &P::deny_options, &add_options),
      key_of<P>("max_prefetch", &P::max_prefetch, &parse_max_prefetch, as_it_is),
      key_of<P>("max_wait", &P::max_wait, &parse_max_wait, [](int n) { return std::to_string(n); }),
      key_of<P>("closing_line", &P::closing_line, &parse_switch, &switch_text)};
  return keys;
}

bool is_list_of_policy(const std::string& key) {
  const Key<PolicyKeys>* const known = find_key(policy_keys(), key);
  return known && known->kind == ConfigValue::Kind::kList;
}

Status check_policy(const Config& config, const PolicySection& policy) {
  if (!policy.keys.tiers) return {};
  for (const std::string& name : *policy.keys.tiers)
    if (std::none_of(config.tiers.begin(), config.tiers.end(),
                     [&](const TierConfig& tier) { return tier.name == name; }))
      return bad_input("tiers names " + name + ", but there is no section [tier." + name + "]; add it");
  return {};
}

}  // namespace monarch
