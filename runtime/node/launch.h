// SPDX-License-Identifier: Apache-2.0
// The job's agent, as a process of its owner's, and its stores, as root's.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/node/job_peers.h"
#include "runtime/node/state.h"

namespace monarch {

// A job's directory on a tier, as make_job_dir() returns it.
struct JobDir {
  std::string tier;
  Fd dir;
};

// The agent's ends of what leads to the store of one tier (runtime/store): a pipe for requests, which carries
// no descriptors to root, and a socket for answers.
struct StartedStore {
  std::string tier;
  Fd requests, answers;
  pid_t store = -1;
};

// Starts a store for each of these directories, in the control group that the agent will have, limited to
// `memory` bytes (0: not): who ends that ends the stores, and each ends by itself when nobody has its pipe
// open. What is granted must have been told (ledger.h). A store that cannot be started is missing in what is
// returned, with a line in the log.
std::vector<StartedStore> start_stores(const StateDir& state, uint64_t memory,
                                       const std::vector<JobDir>& dirs, const JobRecord& record);

// Forks the agent into that control group, where it becomes the user; records it in `record`, lets it begin,
// and waits at most `patience_ms` for it to be ready. One that is not ready by then is not given up. On an
// error there is neither agent nor store. It is told of `peers`, whose list is in the run directory, unless
// that is nullptr; of the key by a pipe, since all can read a command line, and its user an environment and a
// file. A resumed record's goes on for the one before. Returns why it is on its own though it was told of
// peers, in its own words; else "".
Result<std::string> launch_agent(const StateDir& state, uint64_t memory, int patience_ms,
                                 const AgentPeers* peers, std::vector<StartedStore> stores,
                                 JobRecord* record);

}  // namespace monarch
