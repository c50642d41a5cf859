// SPDX-License-Identifier: Apache-2.0
// Reports of jobs that have ended on this node, for their owners.
//
//   STATE/reports/UID/NAME.json   of the job CLUSTER.JOB.RESTART.NODE
//
// The files are root's, in a directory of root's that its user may list and enter, and nobody else: what was
// the user's own could be made to grow until the node's /run is full.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/node/state.h"

namespace monarch {

// Keeps it, and gives up others that are too old, or, the oldest first, too many. `config.size` 0: keeps
// nothing, and gives up all.
Status keep_report(const StateDir& state, const JobRecord& record, const std::string& text,
                   const ReportsConfig& config);

struct KeptReport {
  std::string below;  // reports/UID/NAME.json
  int64_t at = 0;     // seconds of CLOCK_REALTIME
  uint64_t bytes = 0;
};
// Those to give up.
std::vector<KeptReport> excess(std::vector<KeptReport> kept, const ReportsConfig& config, int64_t now);

}  // namespace monarch
