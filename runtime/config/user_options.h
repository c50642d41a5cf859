// SPDX-License-Identifier: Apache-2.0
// What a job's user asks for besides its datasets, as the plugin's options hand it on (spank_monarch(8)), and
// what the administrator has jobs ask for by default (monarch.conf(5), default_options).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace monarch {

// Each empty where nothing was asked for: then it is as configured.
struct JobOptions {
  std::string prefetch;            // "auto", "all" or "off"
  std::string consistency;         // as in monarch.conf(5)
  std::vector<std::string> tiers;  // by name, in the order in which they are filled
  // Of the dataset, so many percent are to be staged before the first step begins, or so many seconds to have
  // passed; 0: it begins at once.
  int wait_percent = 0, wait_seconds = 1800;
  // Bytes of all tiers together that the job is to have of a node: with less it runs without Monarch there,
  // or fails (require), and it gets no more.
  uint64_t least = 0, most = UINT64_MAX;
  bool require = false;
  std::string exclude;  // globs, with colons, of files that are not staged
  bool hints = false;   // from torch's DataLoader
  std::string report;   // the file for the job's report, an absolute path, in which %j is the job's number
};

// Of words "KEY=VALUE", with blanks between them. Whoever submits a job can have made them.
Result<JobOptions> parse_job_options(const std::string& text);

// Of --monarch-wait and of `monarchctl run --wait`: none, full or NN%. False: it is none of these, and
// *percent means nothing.
bool parse_wait(const std::string& value, int* percent);
inline constexpr int kMostWaitSeconds = 604800;

// The names of the options, as in --monarch-NAME with _ for -, with commas.
inline constexpr char kOptionNames[] =
    "prefetch, consistency, tiers, wait, wait_timeout, capacity, exclude, hints, report";
// The words of `text` whose options are not in `denied`; the names of the others, each once, go to
// `left_out`.
std::string without_options(const std::string& text, const std::vector<std::string>& denied,
                            std::vector<std::string>* left_out);
bool is_option(const std::string& name);

}  // namespace monarch
