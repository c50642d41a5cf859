// SPDX-License-Identifier: Apache-2.0
// How a job went on one node over time, and how long its opens took, as `monarchctl report` tells and draws
// it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "admin/jobs.h"
#include "runtime/base/json.h"
#include "runtime/metadata/series.h"
#include "runtime/node/open_times.h"

namespace monarch::admin {

struct Timeline {
  struct Tier {
    std::string name;
    uint64_t granted = 0;
  };
  Series series;  // plausible(); `count` is 0 if nothing is known
  std::vector<Tier> tiers;

  const Sample& at(uint64_t i) const { return series.samples[i]; }
  uint64_t end_ms() const { return series.count == 0 ? 0 : at(series.count - 1).ms; }
};

// Of a report's JSON, whoever wrote that. Without a series in it: an empty one. EINVAL: it is none.
Result<Timeline> timeline_of(const Json& report);
// Of a job that is there, with the identity of its owner; nothing is in it if it cannot be read in time.
Series series_of(const Job& job);

// In bytes per second, between a sample and the one before it.
struct Rates {
  double pfs = 0, tiers = 0, peers = 0;  // read from there, by the programs and by the agent
};
Rates rates_at(const Timeline& timeline, uint64_t sample);
Rates peaks_of(const Timeline& timeline);

// Of the bytes that the agent read from the PFS, in bytes per second until it had read the last; 0: not
// known.
double staging_rate(const Timeline& timeline);

// Percent of the dataset, as it is known at the end; nothing: nothing is known of it.
std::optional<double> staged_at(const Timeline& timeline, uint64_t sample);

// After which the PFS was not read any more; nothing: it was read to the end, or never.
std::optional<uint64_t> pfs_quiet_ms(const Timeline& timeline);

// ---- how long its opens took

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
