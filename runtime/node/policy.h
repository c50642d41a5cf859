// SPDX-License-Identifier: Apache-2.0
// What the administrator allows a job of Slurm's, by its user, groups, partition, account and QOS
// (monarch.conf(5), "[policy]").
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/node/job_facts.h"

namespace monarch {

// What the job is to run with: `config` with its tiers, rates and limits as the sections say that apply to
// it. An error, EPERM, with a text for the user if the job is to run without Monarch. `datasets`,
// PATH[:PATH...], are compared as texts; what they lead to is for the agent to see.
Result<Config> apply_policy(const Config& config, const JobFacts& facts, const std::string& datasets);

}  // namespace monarch
