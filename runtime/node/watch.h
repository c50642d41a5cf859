// SPDX-License-Identifier: Apache-2.0
// What the keeper sees of the jobs on the node by their slurmstepds: whether they are over though no epilog
// came, and whether they are suspended.
#pragma once

#include "runtime/node/keeper.h"
#include "runtime/node/state.h"

namespace monarch {

// Notes, while a step of the job starts its agent, whether a slurmstepd runs that lives as long as the job
// does on this node: the extern step's or the batch script's.
void note_anchor(const StateDir& state, const JobOnNode& job);

// The keeper's duty: is there a job of which it is not plain that it goes on? And one look at each such.
//  - A job without a slurmstepd is ended as by its epilog: after kAnchoredGraceSeconds if it had one that
//    lives as long as the job, or if its start was killed in the middle, else, since there may be none
//    between two steps, after kOtherGraceSeconds.
//  - While all tasks of a job are stopped or frozen, so is its agent.
//  - What is noted of a job that has no agent goes after kOtherGraceSeconds without a slurmstepd.
bool jobs_need_look(const KeeperRequest& request, const StateDir& state);
void watch_jobs(const KeeperRequest& request, const StateDir& state);

inline constexpr int kAnchoredGraceSeconds = 10;  // an epilog that comes has its turn
inline constexpr int kOtherGraceSeconds = 3600;

}  // namespace monarch
