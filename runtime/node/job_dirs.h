// SPDX-License-Identifier: Apache-2.0
// The directories that root makes for a job.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/node/identity.h"
#include "runtime/node/state.h"

namespace monarch {

// Makes <tier>/monarch (root's, 0711), whatever a user has put there before, which gets another name beside
// it, with a line in the log: the tier's directory is one that all users can write. For a child that has a
// time: who can list that directory can keep it locked in the kernel, and whoever makes something there
// waits, and cannot be killed. Of those that wait on one tier one hangs.
Status make_tier_jobs(const StateDir& state, const TierConfig& tier);

// Makes <tier>/monarch, where it is missing, in 0.3 s or not at all; in it `name`, likewise root's, which the
// user `uid` can enter by an access control list, but not list, and nobody else; a memory tier is mounted on
// it. Returns that directory. An error has the remedy, if there is one, and nothing is left. Every step by
// descriptor: a user who can write the tier's directory must not get root to touch anything else.
Result<Fd> make_job_dir(const StateDir& state, const TierConfig& tier, const std::string& name, uid_t uid);

// Makes the job's run directory, root's, which the user can enter, but not list, and nobody else, unless the
// file system has no access control lists; in it, the user's, empty files of all names that are used
// (run_file.h), and some for the agent, by name and text: its configuration; since all users can see a
// command line, the datasets, PATH[:PATH...]; and the job's nodes, a line NAME ADDRESS each. It is a tmpfs of
// its own of `bytes`, so that the user cannot fill what it is in; if `bytes` is 0, or the kernel refuses
// (which the log says), a plain directory.
inline constexpr char kAgentConf[] = "agent.conf", kDatasets[] = "datasets", kPeers[] = "peers",
                      kExclude[] = "exclude";
using RunFiles = std::vector<std::pair<const char*, std::string>>;
Status make_run_dir(const std::string& path, uint64_t bytes, const RunFiles& files, const User& user);

}  // namespace monarch
