// SPDX-License-Identifier: Apache-2.0
// How status and top show a job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "admin/jobs.h"
#include "admin/output.h"
#include "runtime/base/json.h"
#include "runtime/node/nodes_report.h"

namespace monarch::admin {

struct Opens {
  uint64_t tier = 0, all = 0;
};
Opens opens_of(const JobCounters& counters);
// Bytes that this node's programs and its agent have read from the PFS.
uint64_t pfs_bytes(const JobCounters& counters);

// Of the job, as far as is known here.
uint64_t nodes_in(const Job& job);

// An element of `jobs` of `monarchctl status --json`, without what other nodes have told.
Json job_json(const Job& job);

// As its report would be now, without the series; it has a status.
Json live_report(const Job& job);

// That there is none of that name, "" for any, among those that the caller may see.
std::string no_job_text(const std::string& name);

// Whether it is known whose it is: not of a job that has no record.
bool is_users(const Job& job);
// "-": it is not known.
std::string user_text(const Job& job);
std::string percent_text(const std::optional<double>& value, bool estimated);
std::string rate_text(const Job& job);
// What a copy thread gets in a second from a source, on average; nothing: it was not asked.
std::optional<uint64_t> thread_rate(const JobCounters& counters, AgentCounter bytes, AgentCounter ns);
std::string hit_text(const Job& job);
std::string dataset_text(const Job& job);

// A job's nodes as a table: rows of the same width: headings, a line for each node, and one for all; a column
// for each medium. `nodes`: of the job.
std::vector<std::vector<std::string>> node_rows(const std::vector<NodeLine>& lines, uint64_t nodes);

// Those that have told something, the first one included.
uint64_t told_count(const std::vector<NodeLine>& lines);

}  // namespace monarch::admin
