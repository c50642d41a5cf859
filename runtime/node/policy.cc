// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/policy.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <vector>

#include "runtime/base/paths.h"
#include "runtime/config/dataset_rules.h"

namespace monarch {
namespace {

using Of = PolicySection::Of;

// Slurm compares the names of accounts and QOS so.
std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

bool applies(const PolicySection& section, const JobFacts& facts) {
  switch (section.of) {
    case Of::kAll:
      return true;
    case Of::kPartition:
      return facts.known && section.name == facts.partition;
    case Of::kAccount:
      return facts.known && section.name == lower_case(facts.account);
    case Of::kQos:
      return facts.known && section.name == lower_case(facts.qos);
  }
  return false;
}

// "partition gpu", "account physics" or "qos high".
std::string jobs_of(const PolicySection& section) {
  std::string text = section.title().substr(sizeof "policy." - 1);
  text.replace(text.find('.'), 1, " ");
  return text;
}

// Where a key of a job comes from.
std::string source(const PolicySection& section, const char* key) {
  return "(monarch.conf: [" + section.title() + "] " + key + ")";
}

Error refusal(const std::string& text) { return Error{kRefused, text}; }

class Policy {
 public:
  Policy(const Config& config, const JobFacts& facts) : facts_(facts) {
    for (const PolicySection& section : config.policies) {
      if (applies(section, facts)) sections_.push_back(&section);
      if (section.of == Of::kAll || !section.keys.enabled.value_or(false)) continue;
      on_for_ += (on_for_.empty() ? "" : ", ") + jobs_of(section);
    }
    std::stable_sort(sections_.begin(), sections_.end(),
                     [](const PolicySection* a, const PolicySection* b) { return a->of < b->of; });
  }

  // The most special section that has the key; nullptr: none has.
  template <typename T>
  const PolicySection* of(std::optional<T> PolicyKeys::*key) const {
    const auto last = std::find_if(sections_.rbegin(), sections_.rend(),
                                   [&](const PolicySection* s) { return (s->keys.*key).has_value(); });
    return last == sections_.rend() ? nullptr : *last;
  }
  template <typename T, typename Place>
  void set(std::optional<T> PolicyKeys::*key, Place* place) const {
    if (const PolicySection* section = of(key)) *place = *(section->keys.*key);
  }

  Status check_enabled() const;
  Status check_user() const;
  Status check_datasets(const DatasetRules& rules, const std::string& datasets) const;
  Status choose_tiers(std::vector<TierConfig>* tiers) const;

 private:
  std::string user() const {
    return "user " + (facts_.user_name.empty() ? std::to_string(facts_.user.uid) : facts_.user_name);
  }
  bool names_user(const std::string& word) const {
    return is_number(word) ? word == std::to_string(facts_.user.uid) : word == facts_.user_name;
  }
  bool names_group(const std::string& word) const {
    if (!is_number(word))
      return std::find(facts_.groups.begin(), facts_.groups.end(), word) != facts_.groups.end();
    const std::vector<gid_t>& more = facts_.user.groups;
    return word == std::to_string(facts_.user.gid) ||
           std::any_of(more.begin(), more.end(), [&](gid_t gid) { return word == std::to_string(gid); });
  }
  // The word of that list by which the user is meant; nullptr: by none, also without a list.
  const std::string* meant_by(PolicyKeys::List PolicyKeys::*key, const PolicySection* section,
                              bool (Policy::*names)(const std::string&) const) const {
    if (!section) return nullptr;
    const std::vector<std::string>& words = *(section->keys.*key);
    const auto at =
        std::find_if(words.begin(), words.end(), [&](const std::string& w) { return (this->*names)(w); });
    return at == words.end() ? nullptr : &*at;
  }
  // The section of that list, if there is something in it.
  const PolicySection* listed(PolicyKeys::List PolicyKeys::*key) const {
    const PolicySection* section = of(key);
    return section && !(section->keys.*key)->empty() ? section : nullptr;
  }
  Status check_names(std::initializer_list<PolicyKeys::List PolicyKeys::*> keys) const;

  const JobFacts& facts_;
  std::vector<const PolicySection*> sections_;  // the general one first
  std::string on_for_;                          // the jobs for which a section of their own enables it
};

Status Policy::check_enabled() const {
  const PolicySection* section = of(&PolicyKeys::enabled);
  if (!section || *section->keys.enabled) return {};
  std::string what = "jobs";
  if (section->of == Of::kPartition) what += " of partition " + facts_.partition;
  if (section->of == Of::kAccount) what += " of account " + facts_.account;
  if (section->of == Of::kQos) what += " with QOS " + facts_.qos;
  const bool is_general = section->of == Of::kAll, in_doubt = is_general && facts_.asked && !facts_.known;
  return refusal("the administrator has switched it off for " + what + " " +
                 source(*section, "enabled = off") +
                 (is_general && !on_for_.empty() ? "; it is on for " + on_for_ : "") +
                 (in_doubt ? ", and slurmctld has not told the job's partition, account and QOS" : ""));
}

// What nobody could look up decides against the user: a denial holds.
Status Policy::check_names(std::initializer_list<PolicyKeys::List PolicyKeys::*> keys) const {
  if (facts_.named) return {};
  for (const auto key : keys)
    if (const PolicySection* section = listed(key))
      for (const std::string& word : *(section->keys.*key))
        if (!is_number(word))
          return refusal(
              "the names of user " + std::to_string(facts_.user.uid) +
              " and of its groups could not be looked up, and the administrator names those who may "
              "use it " +
              source(*section, "allow_ and deny_"));
  return {};
}

Status Policy::check_user() const {
  using K = PolicyKeys;
  const PolicySection *deny_users = listed(&K::deny_users), *deny_groups = listed(&K::deny_groups);
  if (meant_by(&K::deny_users, deny_users, &Policy::names_user))
    return refusal(user() + " may not use it " + source(*deny_users, "deny_users") +
                   "; ask the administrator for it");
  if (const std::string* group = meant_by(&K::deny_groups, deny_groups, &Policy::names_group))
    return refusal(user() + " is in group " + *group + ", which may not use it " +
                   source(*deny_groups, "deny_groups") + "; ask the administrator for it");
  if (Status s = check_names({&K::deny_users, &K::deny_groups}); !s.ok()) return s;
  const PolicySection *users = listed(&K::allow_users), *groups = listed(&K::allow_groups);
  if ((!users && !groups) || meant_by(&K::allow_users, users, &Policy::names_user) ||
      meant_by(&K::allow_groups, groups, &Policy::names_group))
    return {};
  if (Status s = check_names({&K::allow_users, &K::allow_groups}); !s.ok()) return s;
  return refusal(user() + " is not among those who may use it " +
                 (users ? source(*users, "allow_users") : source(*groups, "allow_groups")) +
                 "; ask the administrator for it");
}

Status Policy::check_datasets(const DatasetRules& rules, const std::string& datasets) const {
  for (size_t at = 0; at < datasets.size();) {
    const size_t end = std::min(datasets.find(':', at), datasets.size());
    const Result<std::string> path = absolute_path(datasets.substr(at, end - at));
    if (path.ok())  // an empty one is none
      if (Status s = check_denied(rules, *path, *path); !s.ok()) return s;
    at = end + 1;
  }
  return {};
}

Status Policy::choose_tiers(std::vector<TierConfig>* tiers) const {
  const PolicySection* section = of(&PolicyKeys::tiers);
  if (!section) return {};
  std::vector<TierConfig> chosen;
  std::string names;
  for (const std::string& name : *section->keys.tiers) {
    names += (names.empty() ? "" : ", ") + name;
    for (const TierConfig& tier : *tiers)
      if (tier.name == name) chosen.push_back(tier);
  }
  if (chosen.empty())
    return Error{ENOSPC, "of the tiers that it may use none answers on this node: " + names + " " +
                             source(*section, "tiers")};
  *tiers = std::move(chosen);
  return {};
}

}  // namespace

Result<Config> apply_policy(const Config& config, const JobFacts& facts, const std::string& datasets) {
  using K = PolicyKeys;
  const Policy policy(config, facts);
  MONARCH_TRY(policy.check_enabled());
  MONARCH_TRY(policy.check_user());
  Config mine = config;
  policy.set(&K::allow_datasets, &mine.datasets.allow);
  policy.set(&K::deny_datasets, &mine.datasets.deny);
  MONARCH_TRY(policy.check_datasets(mine.datasets, datasets));
  MONARCH_TRY(policy.choose_tiers(&mine.tiers));
  for (TierConfig& tier : mine.tiers) policy.set(&K::job_capacity, &tier.job_capacity);
  policy.set(&K::max_files, &mine.agent.max_files);
  policy.set(&K::pfs_bandwidth, &mine.agent.pfs_bandwidth);
  policy.set(&K::pfs_opens, &mine.agent.pfs_opens);
  policy.set(&K::pfs_stats, &mine.agent.pfs_stats);
  policy.set(&K::closing_line, &mine.closing_line);
  return mine;
}

Result<JobOptions> bound_options(const Config& config, const JobFacts& facts, const std::string& asked,
                                 std::string* remark) {
  using K = PolicyKeys;
  const Policy policy(config, facts);
  const auto tell = [&](const std::string& text) { *remark += (remark->empty() ? "" : "; ") + text; };
  // What a user's own words are wrong in is no fault of the administrator's.
  if (const Result<JobOptions> own = parse_job_options(asked); !own.ok()) return own.error();
  std::string words = asked, defaults;
  if (const PolicySection* section = policy.of(&K::deny_options)) {
    std::vector<std::string> left_out;
    words = without_options(asked, *section->keys.deny_options, &left_out);
    for (std::string& name : left_out) {
      std::replace(name.begin(), name.end(), '_', '-');
      tell("--monarch-" + name + " has no effect here " + source(*section, "deny_options"));
    }
  }
  policy.set(&K::default_options, &defaults);
  Result<JobOptions> options = parse_job_options(defaults + " " + words);
  if (!options.ok()) return options;
  const bool waits = options->wait_percent > 0;
  if (const PolicySection* section = policy.of(&K::max_prefetch)) {
    const std::string& most = *section->keys.max_prefetch;
    const bool by_default = options->prefetch.empty() && config.agent.prefetch == AgentConfig::Prefetch::kOn;
    if (most != "all" && (waits || options->prefetch == "all" || by_default ||
                          (most == "off" && options->prefetch != "off"))) {
      if (waits || !options->prefetch.empty())
        tell((waits ? "--monarch-wait has no effect here "
                    : "--monarch-prefetch is at most " + most + " here ") +
             source(*section, "max_prefetch"));
      options->prefetch = options->prefetch == "off" ? "off" : most;
      options->wait_percent = 0;
    }
  }
  if (const PolicySection* section = policy.of(&K::max_wait);
      section && options->wait_percent > 0 && options->wait_seconds > *section->keys.max_wait) {
    const int most = *section->keys.max_wait;
    tell(most == 0
             ? "--monarch-wait has no effect here " + source(*section, "max_wait")
             : "--monarch-wait ends after " + std::to_string(most) + " s " + source(*section, "max_wait"));
    if (most == 0) options->wait_percent = 0;
    options->wait_seconds = most;
  }
  return options;
}

std::string default_dataset(const Config& config, const JobFacts& facts) {
  const PolicySection* section = Policy(config, facts).of(&PolicyKeys::default_dataset);
  std::string paths;
  if (section)
    for (const std::string& path : *section->keys.default_dataset) paths += (paths.empty() ? "" : ":") + path;
  return paths;
}

bool has_default_dataset(const Config& config) {
  return std::any_of(config.policies.begin(), config.policies.end(), [](const PolicySection& section) {
    return section.keys.default_dataset && !section.keys.default_dataset->empty();
  });
}

}  // namespace monarch
