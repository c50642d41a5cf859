// SPDX-License-Identifier: Apache-2.0
// What a reboot, or the death of all of a job's processes and of root's helpers, left on this node.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/node/removal.h"
#include "runtime/node/slurmstepds.h"
#include "runtime/node/state.h"

namespace monarch {

// Sets aside and removes, in the background, what no job can use any more: jobs of an earlier boot; jobs
// whose agent, slurmstepds and helpers are all gone; removals whose process was killed; control groups that
// no record names, and its helpers' if none is in it; old notes (below). A record that cannot be read is
// dropped once its job has no slurmstepd. Leaves out whatever a helper of root's has locked, and the job
// `own`. Accounts for what it removes of this boot, as the job's epilog would have, and leaves to the next
// what there is no time for: a fifth of a second, and as long as the last one takes. Nothing else is waited
// for.
void sweep(const StateDir& state, const JobOnNode& own);

// The keys of those jobs that sweep() would remove now, old notes included; changes nothing.
std::vector<std::string> dead_jobs(const StateDir& state);

// What the prolog or a start that failed has noted of a job that has no agent is old if nothing has changed
// in it for that long: its epilog may not come. A start that failed, the last to write there, would only fail
// again. A job that was only noted may have no slurmstepd until its first step. An empty directory is
// old at once: a helper was killed, or has yet to lock what it made, and then makes it anew.
bool is_old_note(const StateDir& state, const std::string& key);
// Removes it, unless it is not old, or a slurmstepd that runs now may be its job's, and something is noted:
// then it is looked at again after as long. The caller has the lock of its directory, so that none begins
// meanwhile unseen.
void forget_note(const StateDir& state, const std::string& key, const Fd& lock);

// Gives a record, in removing/, to each directory of `own`'s cluster and node that none names, on the tiers
// at `tiers` and in run/: the state directory was lost or made anew, or a record was spoilt. Leaves out those
// of jobs that live, but for `ended`. They are charged by what their file system holds until they are
// measured. Returns them, to be removed. Touches the tiers.
std::vector<Removal> take_unrecorded(const StateDir& state, const JobOnNode& own,
                                     const std::vector<std::string>& tiers, uint32_t ended = 0);

// Likewise for the directories of all clusters and nodes that were made before this boot, on file systems
// that no other machine has mounted.
std::vector<Removal> take_of_earlier_boots(const StateDir& state, const std::vector<std::string>& tiers);

}  // namespace monarch
