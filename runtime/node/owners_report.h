// SPDX-License-Identifier: Apache-2.0
// A job's report in the file that its owner named (--monarch-report).
#pragma once

#include <optional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/node/identity.h"
#include "runtime/node/state.h"

namespace monarch {

// The file that is meant, with the job's number for %j.
std::string owners_report(std::string file, const JobOnNode& job);

// As it ends, unless it has none: another process writes `text`, as the owner. Nobody waits for it, since
// a PFS may hang; it gives up after a minute. The log says why there is no file, also where there is no text,
// as the job's counters are lost.
void write_owners_report(const StateDir& state, const JobRecord& record,
                         const std::optional<std::string>& text);

}  // namespace monarch
