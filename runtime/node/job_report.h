// SPDX-License-Identifier: Apache-2.0
// What a job has read from where, as JSON: by `monarchctl run --report`, and kept by root's epilog. Each
// field is documented in monarchctl(1).
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/metadata/nodes_told.h"
#include "runtime/metadata/series.h"
#include "runtime/node/accounting.h"

namespace monarch {

struct TierInReport {
  std::string name;
  Medium medium = Medium::kSsd;
  uint64_t granted = 0;
};
// The fields of a sample by their names in a report; the bytes placed on each tier stand beside them.
struct SeriesColumn {
  const char* name;
  uint64_t Sample::*value;
};
inline constexpr SeriesColumn kSeriesColumns[] = {{"milliseconds", &Sample::ms},
                                                  {"tasks_pfs", &Sample::read_bytes_pfs},
                                                  {"tasks_tier", &Sample::read_bytes_tier},
                                                  {"agent_pfs", &Sample::agent_bytes_pfs},
                                                  {"from_peers", &Sample::peer_bytes},
                                                  {"to_peers", &Sample::served_bytes},
                                                  {"opened_pfs", &Sample::opens_pfs},
                                                  {"opened_tier", &Sample::opens_tier},
                                                  {"waited", &Sample::waits},
                                                  {"waited_ns", &Sample::wait_ns},
                                                  {"staged", &Sample::staged_bytes},
                                                  {"dataset", &Sample::dataset_bytes}};

enum class Reports { kNode, kJob };  // what

// What the child that reads a job's files as the job's owner hands to root: numbers only.
struct JobAccount {
  JobCounters counters;
  Series series;  // with a last sample of now; `count` is 0 if there is none
};
// Run as the job's owner.
Result<JobAccount> read_account(const std::string& run_dir);
// What is not plausible() of a series is no series.
void drop_implausible(Series* series);

// Of one node, and on the first of several those of the whole job. `tiers`: in the hierarchy's order. `what`:
// of the first of several nodes, the job. `nodes`: what each of its nodes has counted; nullptr: not known.
Json report(const JobCounters& counters, const std::vector<TierInReport>& tiers, Reports what,
            const NodesTold* nodes = nullptr);

// The report as text, with the series, unless that is empty, a line for each of its columns.
std::string report_text(const Json& report, size_t tiers, const Series& series);

// Whether this node hears what the job's other nodes have counted.
bool is_first_of_several(const JobRecord& record);

// Adds whose job it is, and what it reads.
void add_about(Json* report, uid_t uid, const std::vector<std::string>& datasets);

// Of a job that has ended here. `nodes`: as for report(); `agent`: as for comment_line(); `datasets`: with
// ':' between them, "" if they are not known.
std::string ended_report(const JobRecord& record, const JobAccount& account, const NodesTold* nodes,
                         AgentEnd agent = AgentEnd::kWithJob, const std::string& datasets = "");

}  // namespace monarch
