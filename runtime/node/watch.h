// SPDX-License-Identifier: Apache-2.0
// What the keeper sees of the jobs on the node by their slurmstepds: whether they are over though no epilog
// came, and whether they are suspended.
#pragma once

#include "runtime/base/patience.h"
#include "runtime/node/keeper.h"
#include "runtime/node/state.h"
#include "runtime/node/sweep.h"

namespace monarch {

// Notes, while a step of the job starts its agent, the slurmstepds that live as long as this run of the job
// does on this node: the extern step's and the batch script's.
void note_anchor(JobRecord* record);
// Likewise `asker`, the process that has an agent asked for which is there already, if it is such a one.
void note_asker(JobRecord* record, pid_t asker);
// Whether all that were noted have ended: then what is there of the job is of an earlier run. Slurm itself
// does not say: what it tells plugins of restarts (S_SLURM_RESTART_COUNT) is 0 in each run, up to 26.05.
bool is_of_earlier_run(const JobRecord& record);

// The keeper's duty: is there a job of which it is not plain that it goes on? And one look at each such.
//  - A job without a slurmstepd is ended as by its epilog: after kAnchoredGraceSeconds if it had one that
//    lives as long as the job, or if its start was killed in the middle, else, since there may be none
//    between two steps, after kOtherGraceSeconds.
//  - While all tasks of a job are stopped or frozen, so is its agent.
//  - What is noted of a job that has no agent goes when it is old (sweep.h), without a slurmstepd.
bool jobs_need_look(const KeeperRequest& request, const StateDir& state);
void watch_jobs(const KeeperRequest& request, const StateDir& state);

inline constexpr int kAnchoredGraceSeconds =
    patience::kLookAgainSeconds;  // an epilog that comes has its turn
inline constexpr int kOtherGraceSeconds = patience::kLongestRetrySeconds;

}  // namespace monarch
