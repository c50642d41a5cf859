// SPDX-License-Identifier: Apache-2.0
// Removing what a job had on this node, by a process of its own. All of it is root's, and root removes it
// under its name; of the run directory's files, which are the owner's, it asks nothing that the owner could
// have mounted on them. What a job in layout 1 (state.h) has is emptied by rm(1) as its owner; root removes
// what is empty then. What stays is named in the log and charged by what it occupies.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/node/state.h"

namespace monarch {

// A record in removing/, and the lock on its directory: who holds it removes.
struct Removal {
  JobRecord record;
  Fd lock;
};

// Moves the jobs' records from jobs/ to removing/: keys are free again, reservations count until all is gone.
// Takes the jobs' locks, and returns those of the removals. Those whose record could not be moved are left
// out, with a line in the log; so are those that another helper removes already.
std::vector<Removal> set_aside(const StateDir& state, std::vector<Removal> jobs);

// The same of a run that has not started, or is over as its job begins anew. The caller has the job's lock,
// and keeps it: in jobs/ what is noted of the run goes, and `notes` stay. Nothing is returned where another
// helper removes it already.
Result<std::vector<Removal>> set_run_aside(const StateDir& state, const JobRecord& run);

// Removes in a process of its own, which outlives the caller, takes these locks with it and no others. It
// goes on for half an hour where a tree is large; the records go when all is gone. What remains is noted in
// its record, to be tried again by the keeper after a second, then after twice as long each time, at most an
// hour; the log has it after kTriesUntilNamed. A tier that does not answer is passed over meanwhile. What is
// on a file system that is not mounted at its tier any more is forgotten: if it comes back, no record names
// it (sweep.h). Waits for it at most `patience_ms`. True: nothing is left.
inline constexpr uint32_t kTriesUntilNamed = 5;
bool remove_in_background(const StateDir& state, std::vector<Removal> removals, int patience_ms);

// remove_in_background() of what `find` returns, in that process: it may touch tiers.
void find_and_remove(const StateDir& state, const std::function<std::vector<Removal>()>& find);

// The removals that nobody is at work on: their process was killed, or gave up and their time has come.
std::vector<Removal> unattended_removals(const StateDir& state);

}  // namespace monarch
