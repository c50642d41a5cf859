// SPDX-License-Identifier: Apache-2.0
// Reports of jobs, as `monarchctl run --report` writes them and root's epilog keeps them: where they are, and
// what stands in them, whoever wrote that.
#pragma once

#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "admin/advice.h"
#include "admin/timeline.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/node/nodes_report.h"
#include "runtime/node/open_times.h"

namespace monarch::admin {

// Behind an error of what is read here, for a user.
inline constexpr char kNameAReport[] =
    "; name a file that 'monarchctl run --report' has written, or a job's number";

// Whether that is a job's name (jobs.h, is_named()), or an element of an array's; else it is a file's.
bool names_job(const std::string& what);

// What is in the file; "-" is standard input.
Result<std::string> read_text(const std::string& file);

// One of root's epilog (runtime/node/reports.h).
struct Kept {
  std::string path, id, cluster;
  std::filesystem::file_time_type when;
};
// Of the jobs of that name, or of all if it is empty, as far as the caller may look; the last one first.
std::vector<Kept> kept_reports(const std::string& state_dir, const std::string& name);

// An error, with the names that are none: several clusters have a job of that name.
Status check_one(const std::string& name, const std::set<std::string>& clusters);

// What a report tells of a job, as far as it does.
struct Told {
  Counts counts, own;           // of all its nodes, and of the one that wrote it
  bool has_open_times = false;  // an older release's report has none
  Timeline timeline;            // of the one that wrote it
  std::vector<NodeLine> nodes;  // each of them
  std::optional<uint64_t> uid;  // its owner
  std::vector<std::string> datasets;
  // Of a job that has ended: the node that wrote it, and which run this was.
  std::string node, cluster;
  uint64_t job = 0, restart = 0;
};
// EINVAL: it is none of Monarch's. `name`, and `remedy` for a user: for errors.
Result<Told> told_by(const Json& report);
Result<Told> told_by(const std::string& text, const std::string& name, const char* remedy = kNameAReport);
// Of files that `monarchctl report --save` has written, by the nodes' names. EINVAL: one is none, or is of
// another run, or its node has been named before.
Result<std::vector<Told>> told_by_nodes(const std::vector<std::string>& files);

}  // namespace monarch::admin
