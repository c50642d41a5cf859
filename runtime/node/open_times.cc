// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/open_times.h"

#include <algorithm>
#include <iterator>
#include <string>

namespace monarch {
namespace {
constexpr char kLast[] = "more";

// The bound in microseconds.
std::string key_of(uint32_t bucket) {
  if (bucket == kOpenBuckets - 1) return kLast;
  const uint64_t ns = bound_ns(bucket);
  return std::to_string(ns / 1000) + (ns % 1000 == 0 ? "" : "." + std::to_string(ns % 1000 / 100));
}

bool read_buckets(const Json& from, uint64_t* counts) {
  if (!from.is_object()) return false;
  size_t known = 0;
  for (uint32_t b = 0; b < kOpenBuckets; ++b) {
    const Json* at = from.find(key_of(b));
    if (!at) continue;
    if (!at->is_number_unsigned() || at->number() > kMostCount) return false;
    counts[b] = at->number();
    ++known;
  }
  return known == from.size();
}

double timed_ns(const OpenTimes& times, OpenKind kind) {
  double ns = 0;
  for (uint32_t b = 0; b < kOpenBuckets; ++b) {
    const uint64_t least = b == 0 ? 0 : bound_ns(b - 1), bound = b + 1 < kOpenBuckets ? bound_ns(b) : least;
    ns += static_cast<double>(times.of(kind)[b]) * static_cast<double>(least + bound) / 2;
  }
  return ns;
}

}  // namespace

const char* name_of(OpenKind kind) {
  constexpr const char* kNames[] = {"tier", "waited", "pfs"};
  static_assert(std::size(kNames) == kOpenKinds);
  return kNames[static_cast<uint32_t>(kind)];
}

Json open_times_json(const OpenTimes& times) {
  Json all;
  for (const OpenKind kind : kAllOpenKinds) {
    Json& buckets = all[name_of(kind)] = Json::object();
    for (uint32_t b = 0; b < kOpenBuckets; ++b)
      if (times.of(kind)[b] != 0) buckets[key_of(b)] = std::min(times.of(kind)[b], kMostCount);
  }
  return all;
}

Result<OpenTimes> open_times_of(const Json& json) {
  const Error none = bad_input("open_times is none of Monarch's");
  if (!json.is_object() || json.size() != kOpenKinds) return none;
  OpenTimes times;
  for (const OpenKind kind : kAllOpenKinds)
    if (!read_buckets(json[name_of(kind)], times.of(kind))) return none;
  return times;
}

void add(OpenTimes* sum, const OpenTimes& more) {
  for (const OpenKind kind : kAllOpenKinds)
    for (uint32_t b = 0; b < kOpenBuckets; ++b)
      sum->of(kind)[b] = sum_of_counts(sum->of(kind)[b], more.of(kind)[b]);
}

uint64_t timed(const OpenTimes& times, OpenKind kind) {
  uint64_t all = 0;
  for (uint32_t b = 0; b < kOpenBuckets; ++b) all = sum_of_counts(all, times.of(kind)[b]);
  return all;
}

std::optional<uint64_t> within_ns(const OpenTimes& times, OpenKind kind, uint64_t percent) {
  const uint64_t all = timed(times, kind);
  const uint64_t enough = all / 100 * percent + (all % 100 * percent + 99) / 100;
  uint64_t so_far = 0;
  for (uint32_t b = 0; b + 1 < kOpenBuckets; ++b) {
    so_far = sum_of_counts(so_far, times.of(kind)[b]);
    if (all != 0 && so_far >= enough) return bound_ns(b);
  }
  return {};
}

double spent_ns(const OpenTimes& times, uint64_t tier, uint64_t wait_ns) {
  const double samples = static_cast<double>(std::max<uint64_t>(timed(times, OpenKind::kTier), 1));
  return timed_ns(times, OpenKind::kTier) / samples * static_cast<double>(tier) +
         static_cast<double>(wait_ns) + timed_ns(times, OpenKind::kPfs);
}

}  // namespace monarch
