// SPDX-License-Identifier: Apache-2.0
// The line with which a job's output ends: what the PFS was spared, or why it was not.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/node/accounting.h"
#include "runtime/node/state.h"

namespace monarch {

struct Closing {
  std::string node = {};                // whose counters they are
  uint32_t nodes = 1;                   // of the job
  AgentEnd agent = AgentEnd::kWithJob;  // kBefore: it does not run any more
  std::string report = {};              // a command that tells more; "": there is none
};
// One line without its end, for the user. Of this node: what others have told is seconds old.
std::string closing_text(const JobCounters& counters, const Closing& of);

// Of a job whose programs have ended on this node, its first. "": nothing is to be said. `config`: as
// load_config() takes it. Reads the owner's files within patience::kHookStepMs, and changes nothing.
std::string closing_of_job(const StateDir& state, const JobOnNode& job, const std::string& config);

}  // namespace monarch
