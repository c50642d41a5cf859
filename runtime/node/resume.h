// SPDX-License-Identifier: Apache-2.0
// A duty of the keeper: another agent goes on for one that was killed while its job runs, once.
#pragma once

#include "runtime/node/keeper.h"
#include "runtime/node/state.h"

namespace monarch {

// Whether a job's agent was killed, and none has gone on for it yet.
bool agents_are_missed(const KeeperRequest& request, const StateDir& state);

// Starts those agents, with new stores in the jobs' directories. One that cannot go on is not tried again.
void resume_agents(const KeeperRequest& request, const StateDir& state);

}  // namespace monarch
