// SPDX-License-Identifier: Apache-2.0
// How status and top show a job.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "admin/jobs.h"
#include "admin/output.h"

namespace monarch::admin {

struct Fallback {
  const char* name;
  TaskCounter counter;
};
// In the words of the manual, without "fallback_".
inline constexpr Fallback kFallbacks[] = {
    {"no_agent", TaskCounter::fallback_no_agent},   {"timeout", TaskCounter::fallback_timeout},
    {"ring_full", TaskCounter::fallback_ring_full}, {"no_fit", TaskCounter::fallback_no_fit},
    {"pass", TaskCounter::fallback_pass},           {"large", TaskCounter::fallback_large},
    {"dropped", TaskCounter::fallback_dropped},     {"invalid", TaskCounter::fallback_invalid},
    {"absent", TaskCounter::fallback_absent},       {"excluded", TaskCounter::fallback_excluded},
    {"mount", TaskCounter::fallback_mount},         {"tier_error", TaskCounter::fallback_tier_error}};

struct Opens {
  uint64_t tier = 0, all = 0;
};
Opens opens_of(const JobCounters& counters);
// Bytes that this node's programs and its agent have read from the PFS.
uint64_t pfs_bytes(const JobCounters& counters);

// Of the job, as far as is known here.
uint64_t nodes_in(const Job& job);

// An element of `jobs` of `monarchctl status --json`, without what other nodes have told.
nlohmann::ordered_json job_json(const Job& job);

Colour colour_of(JobState state);
// "-": it is not known.
std::string user_text(const Job& job);
std::string percent_text(const std::optional<double>& value, bool estimated);
std::string rate_text(const Job& job);
std::string hit_text(const Job& job);

}  // namespace monarch::admin
