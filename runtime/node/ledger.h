// SPDX-License-Identifier: Apache-2.0
// What the jobs on this machine have of its tiers. The ledger is the records in jobs/ and removing/ with one
// lock: what a job has grows only while it is held, from reading the others' to writing the own. What only
// gets smaller needs no lock. Jobs of all clusters and node names that share a state directory share the
// tiers' quotas: a quota belongs to the tier's path. Who gets how much: shares.h.
//
// A tier that is charged to its job (`room`) gives way to the job's own memory: see job_memory.h.
//
// A running job gives back in three steps: its record and its grants file ask it to, its agent removes copies
// and says so, and only then its record has less.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/patience.h"
#include "runtime/config/config.h"
#include "runtime/node/part.h"
#include "runtime/node/state.h"

namespace monarch {

// The tiers that the job may have, with the admin's quotas in bytes. One that cannot be used is left out,
// with a line in the log. Looks at file systems, so it is called before the ledger is locked.
std::vector<TierConfig> tiers_for(const JobOnNode& job, const Config& config);

// Gives `record`'s job, which has that part of the node, what is free of each tier's quota and others need
// not have, sets the quotas in `tiers` to that, and writes the record with them. Asks others for what it is
// to have reserved besides. Whatever nothing is free of has a quota of 0, and grows later. If the lock is not
// to be had within `patience_ms`, so have all.
Status reserve(const StateDir& state, const NodePart& part, std::vector<TierConfig>* tiers, JobRecord* record,
               int patience_ms);

// The control group in which the job's memory counts is that; empty: it is to be looked for.
Status note_memory_group(const StateDir& state, const JobOnNode& job, const std::string& group);

// Writes what the job may use to where its agent looks for it.
Status tell_quotas(const StateDir& state, const JobRecord& record);

// Whether a running job can get more, should give something back or is asked to, or was not told what it has,
// or it is not known where its memory counts. Reads the state directory and control groups alone.
bool can_grant(const StateDir& state);
// Takes back what running jobs say that they have given back, and gives what is free to those that have less
// than they may; and tells them. A memory tier is made larger before, and smaller instead of believing
// anybody. Each job's board is waited for so long at most.
void grant(const StateDir& state, int board_ms = patience::kLeastMs);

}  // namespace monarch
