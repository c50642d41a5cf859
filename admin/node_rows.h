// SPDX-License-Identifier: Apache-2.0
// The nodes of a job as a table, of `monarchctl status` and `report`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/node/nodes_report.h"

namespace monarch::admin {

// Rows of the same width: headings, a line for each node, and one for all; a column for each medium. `nodes`:
// of the job.
std::vector<std::vector<std::string>> node_rows(const std::vector<NodeLine>& lines, uint64_t nodes);

// Those that have told something, the first one included.
uint64_t told_count(const std::vector<NodeLine>& lines);

}  // namespace monarch::admin
