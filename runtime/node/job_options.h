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
};

// Of words "KEY=VALUE", with blanks between them. Whoever submits a job can have made them.
Result<JobOptions> parse_job_options(const std::string& text);

// Changes a node's configuration for the job. Returns what the user does not get, as a text for the user, or
// "". An error if no tier is left.
Result<std::string> apply_options(const JobOptions& options, const std::string& node, Config* config);

}  // namespace monarch
