// SPDX-License-Identifier: Apache-2.0
// Removing what a job had on this node: out of the way at once, by renaming, and then gone, by a process of
// its own. Root itself only renames the job's directories, in directories of root's, and removes them when
// they are empty. They are emptied with the owner's rights (owner.h): what the kernel does not let the owner
// remove stays where it is, aside, is named in the log and charged by what it occupies.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/node/state.h"

namespace monarch {

// Runs `work`, with a descriptor to write to, in a child that has become `user` and has no other descriptors;
// kills it after `patience_ms`. Reads what it writes into `out`, exactly `bytes` or nothing. True: it
// returned true in time.
bool run_as(const User& user, int patience_ms, void* out, size_t bytes, const std::function<bool(int)>& work);

// Renames the job's directories on the tiers and its run directory to record.aside(), and its record from
// jobs/ to removing/: its name and its key are free again, its reservation counts until all is gone. `lock`
// is that of the job, and stays with the record. What cannot be renamed is the remover's to try again.
Status set_aside(const StateDir& state, const JobRecord& record);

// Renames the directories of a job that did not start aside and has them removed in the background, under a
// record of their own; waits a little for it. The job's own record stays.
Status remove_job_files(const StateDir& state, const JobRecord& record);

// A record in removing/, and the lock on its directory: who holds it removes.
struct Removal {
  JobRecord record;
  Fd lock;
};

// Removes in a process of its own, which outlives the caller, takes the locks with it, and tries for 30 s
// where something fails, longer where a large tree gets smaller; the records go when all is gone. What
// remains is noted in its record, to be tried again after a minute, then after twice as long each time, at
// most an hour. Waits for it at most `patience_ms`. True: all is gone.
bool remove_in_background(const StateDir& state, std::vector<Removal> removals, int patience_ms);

// The removals that nobody is at work on: their process was killed, or gave up and their time has come.
std::vector<Removal> unattended_removals(const StateDir& state);

}  // namespace monarch
