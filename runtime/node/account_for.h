// SPDX-License-Identifier: Apache-2.0
// What outlives a run of a job on this node: its line for sacct and the log, its report, its last counts in
// the metrics. Whoever takes a run's record out of jobs/ asks for it first: epilog, keeper, sweep, and the
// start of the job's next run.
#pragma once

#include <optional>

#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/node/accounting.h"
#include "runtime/node/child.h"
#include "runtime/node/state.h"

namespace monarch {

struct AccountPatience {
  int read_ms;    // for what the job's owner has
  int report_ms;  // for the report, which users can hold up
};
// Of who has others waiting: a job's start, or a prolog.
inline constexpr AccountPatience kShortPatience = {patience::kLeastMs, patience::kMomentMs};

struct Accounted {
  Status line;                  // an error: none is kept
  std::optional<Child> report;  // writes it,
  int64_t report_until_ms = 0;  // until then at most
};

// `*record` is in jobs/ still, the caller has its lock, and its agent is killed; `agent`: whether it lived
// until then, if that is known. Asks and writes as its `of_cluster` says. A run is accounted for once:
// again is success, and does nothing. Counters that do not come in time are lost, as the line then says.
Accounted account_for(const StateDir& state, JobRecord* record, const AccountPatience& patience,
                      AgentEnd agent = AgentEnd::kWithJob);

// Waits for the report, and tells the log if there is none. Returns what became of the line.
Status finish(const StateDir& state, const JobRecord& record, Accounted accounted);

}  // namespace monarch
