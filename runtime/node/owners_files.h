// SPDX-License-Identifier: Apache-2.0
// What root reads of a job's files in its run directory, in a child that has become their owner.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "runtime/metadata/nodes_told.h"
#include "runtime/node/job_report.h"
#include "runtime/node/state.h"

namespace monarch {

// What `work` reads of a job's files and writes to its descriptor, exactly `bytes`, within `patience_ms`. One
// that hangs in the kernel all the same is noted, in the state too unless somebody has the job's lock, and
// left behind (life.h). Nothing is read while it hangs: so it is the only one. `state` nullptr: a person
// asks, and of *record the user and the run directory are known alone.
bool read_as_owner(const StateDir* state, JobRecord* record, int patience_ms, void* out, size_t bytes,
                   const std::function<bool(int)>& work);
// Notes such a process.
void note_hanging_reader(const StateDir& state, JobRecord* record, pid_t process);

// read_account() by that; the series is plausible() or empty. False: it did not come in time, or its counters
// are none of an agent's.
bool read_account_as(const StateDir* state, JobRecord* record, int patience_ms, JobAccount* account);

// read_nodes_told(); nullptr: there is nothing, or it is none of an agent's.
std::unique_ptr<NodesTold> read_nodes_told_as(const StateDir* state, JobRecord* record, int patience_ms);

}  // namespace monarch
