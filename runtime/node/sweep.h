// SPDX-License-Identifier: Apache-2.0
// What a reboot, or the death of all of a job's processes and of root's helpers, left on this node.
#pragma once

#include <string>
#include <vector>

#include "runtime/node/removal.h"
#include "runtime/node/state.h"

namespace monarch {

// Sets aside and removes, in the background, what no job can use any more: jobs of an earlier boot; jobs
// whose agent, slurmstepds and helpers are all gone; removals whose process was killed; control groups that
// no record names, and its helpers' if none is in it. A record that cannot be read is dropped once its job
// has no slurmstepd. Leaves out whatever a helper of root's has locked, and the job `own`. Takes a look only:
// nothing is waited for.
void sweep(const StateDir& state, const JobOnNode& own);

// The keys of those jobs that sweep() would remove now; changes nothing.
std::vector<std::string> dead_jobs(const StateDir& state);

// Gives a record, in removing/, to each directory of `own`'s cluster and node that none names, on the tiers
// at `tiers` and in run/: the state directory was lost or made anew, or a record was spoilt. They are
// charged, by what their file system holds until they are measured, and left in place while their jobs have
// slurmstepds. Returns them, to be removed. Touches the tiers.
std::vector<Removal> take_unrecorded(const StateDir& state, const JobOnNode& own,
                                     const std::vector<std::string>& tiers);

// Likewise for the directories of all clusters and nodes that were made before this boot, on file systems
// that no other machine has mounted.
std::vector<Removal> take_of_earlier_boots(const StateDir& state, const std::vector<std::string>& tiers);

// Renames what take_unrecorded() found under `name` aside, though its job lives: it begins anew. The caller
// has the job's lock.
void make_room_for(const StateDir& state, const std::string& name, const std::vector<std::string>& tiers);

}  // namespace monarch
