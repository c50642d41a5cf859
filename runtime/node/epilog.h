// SPDX-License-Identifier: Apache-2.0
// The root side of a job's end on a node, run by the SPANK plugin as `monarchd --epilog`.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.h"
#include "runtime/node/state.h"

namespace monarch {

struct EpilogRequest {
  std::string state_dir;
  JobOnNode job;
  std::string account_program;  // for the line; empty: none is kept
  std::string config;           // monarch.conf(5), for where the line goes
  // Of the run that is over, and only if none of its slurmstepds runs; 0: whichever run there is.
  uint64_t serial = 0;
  Clock* clock = &system_clock();
};

// Acts on what it finds on the node, not on the job's options: ends the agent, reads the counters through a
// child with the owner's identity, sets everything of the job's aside and removes it, and leaves the line for
// sacct to the keeper. Bounded to about 4 s, and 4.7 s where the agent has peers; what is not removed by then
// goes on being removed by a process of its own. A job that left nothing is success.
Status end_job(const EpilogRequest& request);

}  // namespace monarch
