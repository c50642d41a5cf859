// SPDX-License-Identifier: Apache-2.0
// What a reboot, or the death of all of a job's processes and of root's helpers, left on this node.
#pragma once

#include <string>
#include <vector>

#include "runtime/node/state.h"

namespace monarch {

// Sets aside and removes, in the background, what no job can use any more: jobs of an earlier boot; jobs
// whose agent, slurmstepds and helpers are all gone; removals whose process was killed; and on the tiers at
// `tiers` directories of `own`'s cluster and node that no record names and that were last changed before this
// boot; control groups that no record names, and its helpers' if none is in it. Leaves out whatever a helper
// of root's has locked, and the job `own`. Takes a look only: nothing is waited for.
void sweep(const StateDir& state, const JobOnNode& own, const std::vector<std::string>& tiers);

}  // namespace monarch
