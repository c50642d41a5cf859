// SPDX-License-Identifier: Apache-2.0
// What a job's user asked for besides its datasets, as the plugin's options hand it on (spank_monarch(8)).
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"

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
};

// Of words "KEY=VALUE", with blanks between them. Whoever submits a job can have made them.
Result<JobOptions> parse_job_options(const std::string& text);

// Leaves the job `most` bytes of these tiers, whose quotas are in bytes: of the first ones first, and none of
// those for which nothing is left.
void limit_capacity(uint64_t most, std::vector<TierConfig>* tiers);

// Changes a node's configuration for the job, which has so many nodes. Returns what the user does not get, as
// a text for the user, or
// "". An error if no tier is left.
Result<std::string> apply_options(const JobOptions& options, const std::string& node, Config* config,
                                  uint32_t nodes = 1);

}  // namespace monarch
