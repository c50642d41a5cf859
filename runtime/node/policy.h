// SPDX-License-Identifier: Apache-2.0
// What the administrator allows a job of Slurm's, by its user, groups, partition, account and QOS
// (monarch.conf(5), "[policy]").
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/config/user_options.h"
#include "runtime/node/job_facts.h"

namespace monarch {

// What the job is to run with: `config` with its tiers, rates and limits as the sections say that apply to
// it. An error, EPERM, with a text for the user if the job is to run without Monarch. `datasets`,
// PATH[:PATH...], are compared as texts; what they lead to is for the agent to see.
Result<Config> apply_policy(const Config& config, const JobFacts& facts, const std::string& datasets);

// What the job asks for: what is default for it, and then, as far as it may, what its user has asked for in
// `asked`, KEY=VALUE .... `remark` learns what the user does not get. An error: `asked` is no such text.
Result<JobOptions> bound_options(const Config& config, const JobFacts& facts, const std::string& asked,
                                 std::string* remark);

// PATH[:PATH...] for a job that names no dataset; "": it has none.
std::string default_dataset(const Config& config, const JobFacts& facts);
// Whether there is one for any job.
bool has_default_dataset(const Config& config);

}  // namespace monarch
