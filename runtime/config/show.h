// SPDX-License-Identifier: Apache-2.0
// A configuration as monarch.conf(5) would say it, and where its values came from.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"

namespace monarch {

struct ConfigError {
  int line;         // 0: of none
  std::string key;  // SECTION.KEY; empty: of none
  Error error;
};

// Where each value came from, and if there is no configuration, why.
struct ConfigTrace {
  std::map<std::string, int> lines;  // by SECTION.KEY: the last line of the file that has it; 0: a word
  // All that is wrong, in the order in which it is found; reading ends at a hundred. The first is what
  // load_config() returns.
  std::vector<ConfigError> errors;
};
Result<Config> load_config(const std::string& source, ConfigTrace* trace);

struct ConfigValue {
  std::string section, key;
  enum class Kind { kSingle, kList } kind = Kind::kSingle;
  // What stands behind "key = ", of a list in several lines; nothing: it is not set, and nothing can be
  // written that says so.
  using Values = std::optional<std::vector<std::string>>;
  Values values;
};
// Every key of each section that there is, and of [policy]; in the file's order, the tiers in theirs.
std::vector<ConfigValue> values_of(const Config& config);

}  // namespace monarch
