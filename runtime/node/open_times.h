// SPDX-License-Identifier: Apache-2.0
// How long a job's opens took (layout/board_layout.h), as reports have it: "open_times" in monarchctl(1).
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/layout/board_layout.h"

namespace monarch {

inline constexpr OpenKind kAllOpenKinds[] = {OpenKind::kTier, OpenKind::kWaited, OpenKind::kPfs};
const char* name_of(OpenKind kind);

// Of each kind those of its buckets that are not empty, by their bounds in microseconds.
Json open_times_json(const OpenTimes& times);
// The other way round, whoever wrote the JSON. EINVAL: it is not what open_times_json() makes.
Result<OpenTimes> open_times_of(const Json& json);

void add(OpenTimes* sum, const OpenTimes& more);

// How many were timed. Of kTier that is one of about kOneTimedOf.
uint64_t timed(const OpenTimes& times, OpenKind kind);
// The bound of the bucket by which `percent` of them, at least, had taken less. Nothing: there are none, or
// it is the last one, which has no bound.
std::optional<uint64_t> within_ns(const OpenTimes& times, OpenKind kind, uint64_t percent);

// About how many nanoseconds all opens took, the times of all threads added up. An open is taken for one of
// the middle of its bucket, and of kTier those that were timed for all `tier` of them; of kWaited, the wait
// is known (TaskCounter::wait_ns).
double spent_ns(const OpenTimes& times, uint64_t tier, uint64_t wait_ns);

}  // namespace monarch
