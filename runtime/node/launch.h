// SPDX-License-Identifier: Apache-2.0
// The job's agent, as a process of its owner's.
#pragma once

#include "runtime/base/result.h"
#include "runtime/node/job_peers.h"
#include "runtime/node/state.h"

namespace monarch {

// Forks the agent into a control group of its own, limited to `memory` bytes (0: not), where it becomes the
// user; records it in `record`, lets it begin, and waits at most `patience_ms` for it to be ready. One that
// is not ready by then is not given up. On an error there is no agent. It is told of `peers`, whose list is
// in the run directory, unless that is nullptr; of the key by a pipe, since all can read a command line, and
// its user an environment and a file. Returns why it is on its own though it was told of peers, in its own
// words; else "".
Result<std::string> launch_agent(const StateDir& state, uint64_t memory, int patience_ms,
                                 const AgentPeers* peers, JobRecord* record);

}  // namespace monarch
