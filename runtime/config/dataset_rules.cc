// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/dataset_rules.h"

#include <algorithm>

#include "runtime/base/paths.h"

namespace monarch {
namespace {

std::string named(const std::string& path, const std::string& given) {
  return "dataset " + given + (path == given ? "" : ", which is " + path + ",");
}

// With what they lead to. A rule may be of a file system that this node has not, or lead to what the job's
// user may not look up.
std::vector<std::string> with_real(const std::vector<std::string>& rules) {
  std::vector<std::string> all = rules;
  for (const std::string& rule : rules)
    if (const Result<std::string> real = real_path(rule); real.ok() && *real != rule) all.push_back(*real);
  return all;
}

}  // namespace

Status check_denied(const DatasetRules& rules, const std::string& path, const std::string& given) {
  for (const std::string& denied : rules.deny) {
    if (path == denied)
      return Error{kRefused,
                   named(path, given) +
                       " is excluded by the administrator (monarch.conf: deny_datasets); name another"};
    if (is_below(path, denied))
      return Error{kRefused,
                   named(path, given) + " is in " + denied +
                       ", which the administrator excludes (monarch.conf: deny_datasets); name another"};
    if (is_below(denied, path))
      return Error{kRefused, named(path, given) + " holds " + denied +
                                 ", which the administrator excludes (monarch.conf: deny_datasets); name a "
                                 "directory that does not"};
  }
  return {};
}

Status check_rules(const DatasetRules& rules, const std::string& real, const std::string& given) {
  MONARCH_TRY(check_denied({{}, with_real(rules.deny)}, real, given));
  const std::vector<std::string> allow = with_real(rules.allow);
  if (allow.empty() ||
      std::any_of(allow.begin(), allow.end(), [&](const std::string& rule) { return is_below(real, rule); }))
    return {};
  std::string names;
  for (const std::string& rule : rules.allow) names += (names.empty() ? "" : ", ") + rule;
  return Error{kRefused, named(real, given) +
                             " is in none of the directories that the administrator allows: " + names +
                             " (monarch.conf: allow_datasets); name one below them"};
}

}  // namespace monarch
