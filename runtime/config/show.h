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

// Where each value came from; if there is no configuration, which line or key was refused.
struct ConfigTrace {
  std::map<std::string, int> lines;  // by SECTION.KEY: the last line of the file that has it; 0: a word
  int failed_line = 0;               // 0: of no line
  std::string failed_key;            // SECTION.KEY; empty: of no key
};
Result<Config> load_config(const std::string& source, ConfigTrace* trace);

struct ConfigValue {
  std::string section, key;
  enum class Kind { kSingle, kList } kind = Kind::kSingle;
  // What stands behind "key = ", of a list in several lines; nothing: it is not set, and nothing can be
  // written that says so.
  std::optional<std::vector<std::string>> values;
};
// Every key of each section that there is, and of [policy]; in the file's order, the tiers in theirs.
std::vector<ConfigValue> values_of(const Config& config);

}  // namespace monarch
