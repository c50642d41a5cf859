// SPDX-License-Identifier: Apache-2.0
// What root reads of a job's files in its run directory, in a child that has become their owner.
#pragma once

#include <memory>
#include <string>

#include "runtime/metadata/nodes_told.h"
#include "runtime/node/job_report.h"
#include "runtime/node/state.h"

namespace monarch {

// read_account(); the series is plausible() or empty. False: it did not come within `patience_ms`, or its
// counters are none of an agent's.
bool read_account_as(const User& owner, int patience_ms, const std::string& run_dir, JobAccount* account);

// read_nodes_told(); nullptr: there is nothing, or it is none of an agent's.
std::unique_ptr<NodesTold> read_nodes_told_as(const User& owner, int patience_ms, const std::string& run_dir);

}  // namespace monarch
