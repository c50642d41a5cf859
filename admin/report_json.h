// SPDX-License-Identifier: Apache-2.0
// What stands in a report's JSON, whoever wrote that.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "admin/advice.h"
#include "admin/timeline.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/node/nodes_report.h"
#include "runtime/node/open_times.h"

namespace monarch::admin {

enum class Whose { kAll, kNode };  // of all nodes, if they are known, or of the one that wrote the report

// All of them fail with EINVAL where it is no report. `name`: for errors.
Result<Counts> counts_of(const Json& report, const std::string& name, Whose whose);
// None: it is not in the report.
Result<std::vector<NodeLine>> nodes_in(const Json& report);
// Nothing: it is not in the report, which an older release has made.
Result<std::optional<OpenTimes>> open_times_in(const Json& report, Whose whose);

// Whose job it is, and what it reads; nothing: it is not in the report.
struct About {
  std::optional<uint64_t> uid;
  std::vector<std::string> datasets;
};
About about_of(const Json& report);

// A report that one of a job's nodes has kept.
struct NodeReport {
  About about;
  std::string job, cluster, node;
  uint64_t restart = 0, nodes = 1;  // of the job
  Counts counts;
  Timeline timeline;
  std::optional<OpenTimes> open_times = {};
};
// Of files that `monarchctl report --save` has written, by the nodes' names. EINVAL: one is none, or is of
// another run, or its node has been named before.
Result<std::vector<NodeReport>> node_reports(const std::vector<std::string>& files);

}  // namespace monarch::admin
