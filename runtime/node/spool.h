// SPDX-License-Identifier: Apache-2.0
// STATE/spool: lines for sacct that are not yet written, a file each.
//
//   NAME.SERIAL.TIME.json   TIME: of when it was spooled; its mtime: of when the keeper tries it next
//   NAME.SERIAL.TIME.kept   waits for `monarchd --flush` (account = spool)
//
// and, in a job's directory below STATE/jobs, `times`: the run's serial, and when Slurm says that it was
// submitted and started, by which its row in the database is found whatever else has the same id.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/node/state.h"

namespace monarch {

// Keeps `line` for the row of that run. `accounting` says for whom; nothing is kept with kLog and kOff.
Status spool(const StateDir& state, const JobRecord& record, const std::string& line, Accounting accounting);

// When a line that has waited since `since` is tried again, after a try at `now` in vain: after as long as it
// has waited, at least 1 s, at most 5 minutes. Seconds.
int64_t next_try(int64_t since, int64_t now);

// A file in the spool; times in seconds of the real-time clock.
struct Spooled {
  std::string name;
  int64_t since = 0;
  int64_t next = 0;
};
// Those that are dropped: older than `config` allows; and if there are more than it allows, the oldest until
// a twentieth of the room is free, so that this, which is logged, is rare.
std::vector<Spooled> excess(std::vector<Spooled> lines, const SpoolConfig& config, int64_t now);

// The keeper's: whether a line waits for it at all, and whether one is to be tried, or dropped, now.
bool lines_wait(const StateDir& state);
bool flush_is_due(const StateDir& state);

// Which of the lines flush() tries: those whose time has come, for the keeper; or all, for a person.
enum class Lines { kDue, kAll };

// The accounting helpers: `instead` of a line's own, unless it is empty; `otherwise`, where that cannot be
// executed, after an update for instance.
struct AccountPrograms {
  std::string instead, otherwise;
};

// Drops what is too old or too much, and hands lines to the accounting helpers, one after the other, each for
// at most 20 s; first that whose time came first. When a cluster's slurmdbd cannot be reached, or its helper
// does not answer, it leaves out the others of that cluster, and next time they come first; with kDue, all
// after 30 s. An error says how many wait; ENODATA: with kAll, all for rows that come later. Another flush at
// the same time is waited for, 60 s. A helper that cannot run is logged, with kDue once an hour.
Status flush(const StateDir& state, const AccountPrograms& programs, const SpoolConfig& config, Lines lines);

// The exit status of `monarchd --flush` for ENODATA.
inline constexpr int kExitNoRow = 3;

// The keeper's: whether a job on this node needs its `times`, and asking the job's cluster for them, by the
// job's helper, or `program` where that cannot be executed.
bool times_are_due(const StateDir& state);
void ask_times(const StateDir& state, const std::string& program);

}  // namespace monarch
