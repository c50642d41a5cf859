// SPDX-License-Identifier: Apache-2.0
// The directories that root makes for a job.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/node/identity.h"

namespace monarch {

// Makes <tier>/monarch (root's, 0711) and in it `name` for the user. Every step by descriptor: a user who
// can write the tier's directory must not get root to touch anything else.
Status make_job_dir(const TierConfig& tier, const std::string& name, const User& user);

// Makes the run directory for the user, and in it agent.conf with the text `conf`, which is root's.
Status make_run_dir(const std::string& path, const std::string& conf, const User& user);

}  // namespace monarch
