// SPDX-License-Identifier: Apache-2.0
#include "admin/open_times_text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <optional>

namespace monarch::admin {
namespace {

Json microseconds(const std::optional<uint64_t>& ns) {
  if (!ns) return {};
  return *ns % 1000 == 0 ? Json(*ns / 1000) : Json(static_cast<double>(*ns) / 1000);
}

bool any_in(const OpenTimes& times, uint32_t bucket) {
  return std::any_of(std::begin(kAllOpenKinds), std::end(kAllOpenKinds),
                     [&](OpenKind kind) { return times.of(kind)[bucket] != 0; });
}

}  // namespace

const char* kind_text(OpenKind kind) {
  constexpr const char* kTexts[] = {"of tiers' copies", "that waited", "on the PFS"};
  static_assert(std::size(kTexts) == kOpenKinds);
  return kTexts[static_cast<uint32_t>(kind)];
}

std::string duration_text(uint64_t ns) {
  constexpr const char* kUnits[] = {"us", "ms", "s"};
  double value = static_cast<double>(ns) / 1000;
  size_t unit = 0;
  for (; value >= 1000 && unit + 1 < std::size(kUnits); ++unit) value /= 1000;
  const double step = value >= 99.5 ? 10 : value >= 9.95 ? 1 : 0.1;  // two digits
  const double rounded = std::round(value / step) * step;
  char text[32];
  std::snprintf(text, sizeof text, "%s%.3g%s", std::abs(rounded - value) < 1e-6 ? "" : "~", rounded,
                kUnits[unit]);
  return text;
}

std::string opens_took(const OpenTimes& times, OpenKind kind) {
  const std::string longest = duration_text(bound_ns(kOpenBuckets - 2)) + " or more";
  const std::optional<uint64_t> median = within_ns(times, kind, 50), p99 = within_ns(times, kind, 99);
  if (!median) return "more than half took " + longest;
  return "half took less than " + duration_text(*median) + ", " +
         (p99 ? "99% less than " + duration_text(*p99) : "more than 1% took " + longest);
}

Json open_times_told(const OpenTimes& times) {
  Json all;
  const Json buckets = open_times_json(times);
  for (const OpenKind kind : kAllOpenKinds)
    all[name_of(kind)] = {{"one_timed_of", kind == OpenKind::kTier ? kOneTimedOf : 1},
                          {"timed", timed(times, kind)},
                          {"median_below_us", microseconds(within_ns(times, kind, 50))},
                          {"p99_below_us", microseconds(within_ns(times, kind, 99))},
                          {"below_us", buckets[name_of(kind)]}};
  return all;
}

std::vector<std::vector<std::string>> open_time_rows(const OpenTimes& times) {
  uint32_t first = 0, end = kOpenBuckets;
  while (first < end && !any_in(times, first)) ++first;
  while (end > first && !any_in(times, end - 1)) --end;
  std::vector<std::vector<std::string>> rows = {{"Took"}};
  for (const OpenKind kind : kAllOpenKinds) rows[0].push_back(kind_text(kind));
  for (uint32_t b = first; b < end; ++b) {
    rows.push_back({b + 1 < kOpenBuckets ? "less than " + duration_text(bound_ns(b))
                                         : duration_text(bound_ns(b - 1)) + " or more"});
    for (const OpenKind kind : kAllOpenKinds) rows.back().push_back(std::to_string(times.of(kind)[b]));
  }
  return rows;
}

}  // namespace monarch::admin
