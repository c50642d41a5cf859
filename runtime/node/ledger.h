// SPDX-License-Identifier: Apache-2.0
// What the jobs on this machine have reserved of its tiers. The ledger is the records in jobs/ and removing/
// with one lock: a reservation is made or grows only while it is held, from reading the others' to writing
// the own. What only gets smaller needs no lock. Jobs of all clusters and node names that share a state
// directory share the tiers' quotas: a quota belongs to the tier's path.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/node/state.h"

namespace monarch {

// The tiers that the job may have, with the admin's quotas in bytes. One that cannot be used is left out,
// with a line in the log. Looks at file systems, so it is called before the ledger is locked.
std::vector<TierConfig> tiers_for(const JobOnNode& job, const Config& config);

// Reserves for `record`'s job what is left of each tier's quota, sets the quotas in `tiers` to that, and
// writes the record with them. Whatever nothing is left of has a quota of 0, and grows when space becomes
// free. If the lock is not to be had within `patience_ms`, so have all.
Status reserve(const StateDir& state, std::vector<TierConfig>* tiers, JobRecord* record, int patience_ms);

// Writes the job's quotas to where its agent looks for them.
Status tell_quotas(const StateDir& state, const JobRecord& record);

// Whether there is space for a running job that has less than it may, or one was not told what it has. Reads
// the state directory alone.
bool can_grant(const StateDir& state);
// Gives what has become free to the running jobs that have less than they may, the earliest first, as when
// they started; and tells them. A memory tier is made larger before.
void grant(const StateDir& state);

}  // namespace monarch
