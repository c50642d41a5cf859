// SPDX-License-Identifier: Apache-2.0
// How long a job's opens took, as `monarchctl report` says it.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/node/open_times.h"

namespace monarch::admin {

// "of tiers' copies"
const char* kind_text(OpenKind kind);
// "4us"; "~33ms", where two digits are not all.
std::string duration_text(uint64_t ns);
// Of the opens of a kind that were timed, of which there are some: "half took less than 4us, 99% less than
// 16us".
std::string opens_took(const OpenTimes& times, OpenKind kind);

// The field "open_times" of `monarchctl report --json`.
Json open_times_told(const OpenTimes& times);

// Rows as wide as the first, which has the headings: the buckets between the first and the last one that has
// any, and how many were timed of each kind.
std::vector<std::vector<std::string>> open_time_rows(const OpenTimes& times);

}  // namespace monarch::admin
