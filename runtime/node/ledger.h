// SPDX-License-Identifier: Apache-2.0
// What the jobs on this machine have of its tiers. The ledger is the records in jobs/ and removing/ with one
// lock: what a job has grows only while it is held, from reading the others' to writing the own. What only
// gets smaller needs no lock. Jobs of all clusters and node names that share a state directory share the
// tiers' quotas: a quota belongs to the tier's path.
//
// A job's share of a tier is fixed when it begins (part.h). It is granted that, or what others have left of
// the quota; then the rest follows once that is free. Nothing is ever taken back.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/node/part.h"
#include "runtime/node/state.h"

namespace monarch {

// Those that a node has whose configuration names none.
std::vector<TierConfig> discovered_tiers(const JobOnNode& job);

// The tiers that the job may have, with the admin's quotas in bytes. One that cannot be used is left out,
// with a line in the log. Looks at file systems, so it is called before the ledger is locked.
std::vector<TierConfig> tiers_for(const JobOnNode& job, const Config& config);

// Fixes the shares of `record`'s job, which has that part of the node, grants it what is free of them, sets
// the quotas in `tiers` to that, and writes the record. Returns what it gets of each, with what the removals
// of ended jobs still hold of its shares, in bytes. If the lock is not to be had within `patience_ms`, all
// have a quota of 0, which grows later, and nothing is returned.
Result<std::vector<uint64_t>> grant_shares(const StateDir& state, const NodePart& part,
                                           std::vector<TierConfig>* tiers, JobRecord* record,
                                           int patience_ms);

// Notes the control group in which the job's memory counts; one that is not found is looked for again.
void look_for_memory_group(JobRecord* record);

// Writes what the job is granted to where its agent looks for it.
Status tell_granted(const StateDir& state, const JobRecord& record);

// Whether a running job can get more of its share, or was not told what it has, or it is not known where its
// memory counts. Reads the state directory alone.
bool can_grant(const StateDir& state);
// Grants what is free to running jobs that have less than their share, the earliest first, and tells them. A
// memory tier is made larger before.
void grant(const StateDir& state);

}  // namespace monarch
