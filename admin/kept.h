// SPDX-License-Identifier: Apache-2.0
// Reports of jobs, as `monarchctl run --report` writes them and root's epilog keeps them.
#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/result.h"

namespace monarch::admin {

// Behind an error of read_report(), for a user.
inline constexpr char kNameAReport[] =
    "; name a file that 'monarchctl run --report' has written, or a job's number";

// Whether that is a job's name (jobs.h, is_named()), or an element of an array's; else it is a file's.
bool names_job(const std::string& what);

// What is in the file; "-" is standard input.
Result<std::string> read_report(const std::string& file);
// `name`: for errors.
Result<Json> parse_report(const std::string& text, const std::string& name);

// One of root's epilog (runtime/node/reports.h).
struct Kept {
  std::string path, id, cluster;
  std::filesystem::file_time_type when;
};
// Of the jobs of that name, or of all if it is empty, as far as the caller may look; the last one first.
std::vector<Kept> kept_reports(const std::string& state_dir, const std::string& name);

// An error, with the names that are none: several clusters have a job of that name.
Status check_one(const std::string& name, const std::set<std::string>& clusters);

}  // namespace monarch::admin
