// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/user_options.h"

#include <algorithm>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include "runtime/base/number.h"
#include "runtime/base/size.h"

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

// A number from 1 to `most` and nothing else; 0: it is none.
int number_to(int most, std::string_view text) {
  const int n = to_number<int>(text).value_or(0);
  return n >= 1 && n <= most ? n : 0;
}

// MIN[:MAX][,require], or the last with a colon
bool take_capacity(const std::string& value, JobOptions* options) {
  constexpr std::string_view kRequire = "require";
  std::string_view sizes = value;
  options->require = sizes.ends_with(",require") || sizes.ends_with(":require");
  if (options->require) sizes.remove_suffix(1 + kRequire.size());
  const size_t colon = std::min(sizes.find(':'), sizes.size());
  const Result<uint64_t> least = parse_size(sizes.substr(0, colon));
  const Result<uint64_t> most = colon < sizes.size() ? parse_size(sizes.substr(colon + 1)) : UINT64_MAX;
  if (!least.ok() || !most.ok() || *most < *least || *most == 0) return false;
  options->least = *least;
  options->most = *most;
  return true;
}

}  // namespace

bool parse_wait(const std::string& value, int* percent) {
  if (value == "none" || value == "full") {
    *percent = value == "full" ? 100 : 0;
    return true;
  }
  *percent = value.ends_with('%') ? number_to(100, std::string_view(value).substr(0, value.size() - 1)) : 0;
  return *percent != 0;
}

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
    else if (key == "wait_timeout" && number_to(kMostWaitSeconds, value) != 0)
      options.wait_seconds = number_to(kMostWaitSeconds, value);
    else if ((key == "wait" && parse_wait(value, &options.wait_percent)) ||
             (key == "capacity" && take_capacity(value, &options)))
      continue;
    else if (key == "exclude" && !value.empty())
      options.exclude = value;
    else if (key == "hints" && is_one_of(value, {"torch", "off"}))
      options.hints = value == "torch";
    else if (key == "report" && value.starts_with('/') && !value.ends_with('/'))
      options.report = value;
    else
      return Error{EINVAL, "option '" + word + "' is not known to this version of Monarch"};
  }
  return options;
}

bool is_option(const std::string& name) {
  return is_one_of(name, {"prefetch", "consistency", "tiers", "wait", "wait_timeout", "capacity", "exclude",
                          "hints", "report"});
}

std::string without_options(const std::string& text, const std::vector<std::string>& denied,
                            std::vector<std::string>* left_out) {
  const auto is_in = [](const std::vector<std::string>& list, const std::string& name) {
    return std::find(list.begin(), list.end(), name) != list.end();
  };
  std::string kept;
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    const std::string name = word.substr(0, word.find('='));
    if (!is_in(denied, name))
      kept += (kept.empty() ? "" : " ") + word;
    else if (!is_in(*left_out, name))
      left_out->push_back(name);
  }
  return kept;
}

}  // namespace monarch
