// SPDX-License-Identifier: Apache-2.0
#include "admin/timeline.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>

#include "runtime/node/job_report.h"
#include "runtime/node/owners_files.h"

namespace monarch::admin {
namespace {

constexpr int kReadPatienceMs = 1000;
constexpr double kLeastSeconds = 0.1;

// False: it is no column of `count` whole numbers.
bool take_column(const Json& values, uint64_t count, const std::function<void(uint64_t, uint64_t)>& take) {
  if (!values.is_array() || values.size() != count) return false;
  for (uint64_t i = 0; i < count; ++i) {
    if (!values.at(i).is_number_unsigned()) return false;
    take(i, values.at(i).number());
  }
  return true;
}

// Of seconds; 0: it is not known.
bool take_time(const Json& of, const char* name, uint64_t* ms) {
  if (of[name].is_null()) return true;
  if (!of[name].is_number()) return false;
  const double seconds = of[name].real();
  if (!(seconds >= 0) || seconds > 1e12) return false;
  *ms = std::max<uint64_t>(static_cast<uint64_t>(std::llround(seconds * 1000)), 1);
  return true;
}

bool take_series(const Json& from, size_t tiers, Series* series) {
  const Json& times = from["milliseconds"];
  if (!times.is_array() || times.size() == 0 || times.size() > kSamples) return false;
  series->magic = kSeriesMagic;
  series->count = times.size();
  series->began = from["began"].number();
  if (!take_time(from, "settled_seconds", &series->settled_ms) ||
      !take_time(from, "staged_seconds", &series->whole_ms))
    return false;
  for (const SeriesColumn& column : kSeriesColumns) {
    if (!take_column(from[column.name], series->count,
                     [&](uint64_t i, uint64_t value) { series->samples[i].*column.value = value; }))
      return false;
  }
  const Json& placed = from["placed"];
  if (!placed.is_array() || placed.size() != std::min<size_t>(tiers, kMaxTiers)) return false;
  for (size_t t = 0; t < placed.size(); ++t)
    if (!take_column(placed.at(t), series->count,
                     [&](uint64_t i, uint64_t value) { series->samples[i].placed_bytes[t] = value; }))
      return false;
  return plausible(*series);
}

Json microseconds(const std::optional<uint64_t>& ns) {
  if (!ns) return {};
  return *ns % 1000 == 0 ? Json(*ns / 1000) : Json(static_cast<double>(*ns) / 1000);
}

bool any_in(const OpenTimes& times, uint32_t bucket) {
  return std::any_of(std::begin(kAllOpenKinds), std::end(kAllOpenKinds),
                     [&](OpenKind kind) { return times.of(kind)[bucket] != 0; });
}

uint64_t since(uint64_t now, uint64_t before) { return now - std::min(now, before); }

uint64_t from_pfs(const Sample& s) { return s.read_bytes_pfs + s.agent_bytes_pfs; }

}  // namespace

Result<Timeline> timeline_of(const Json& report) {
  Timeline t;
  const Error bad = bad_input("its series is none of Monarch's");
  for (const Json& tier : report["tiers"].elements()) {
    if (!tier.is_object()) return bad;
    t.tiers.push_back({tier["name"].is_string() ? tier["name"].text() : "?", tier["granted"].number()});
  }
  const Json* series = report.find("series");
  if (series && !take_series(*series, t.tiers.size(), &t.series)) return bad;
  return t;
}

Series series_of(const Job& job) {
  const auto account = std::make_unique<JobAccount>();
  if (::geteuid() == 0 && job.uid != 0) {
    JobRecord record = owners_part(job);
    return read_account_as(nullptr, &record, kReadPatienceMs, account.get()) ? account->series : Series();
  }
  if (const Result<JobAccount> read = read_account(job.run_dir); read.ok()) *account = *read;
  drop_implausible(&account->series);
  return account->series;
}

Rates rates_at(const Timeline& timeline, uint64_t i) {
  if (i == 0 || i >= timeline.series.count) return {};
  const Sample &now = timeline.at(i), &before = timeline.at(i - 1);
  // The last sample may come right after the one before it.
  const double seconds = std::max(static_cast<double>(now.ms - before.ms) / 1000, kLeastSeconds);
  const auto rate = [&](uint64_t a, uint64_t b) { return static_cast<double>(since(a, b)) / seconds; };
  return {rate(from_pfs(now), from_pfs(before)), rate(now.read_bytes_tier, before.read_bytes_tier),
          rate(now.peer_bytes, before.peer_bytes)};
}

Rates peaks_of(const Timeline& timeline) {
  Rates most;
  for (uint64_t i = 1; i < timeline.series.count; ++i) {
    const Rates r = rates_at(timeline, i);
    most = {std::max(most.pfs, r.pfs), std::max(most.tiers, r.tiers), std::max(most.peers, r.peers)};
  }
  return most;
}

double staging_rate(const Timeline& timeline) {
  if (timeline.series.count == 0) return 0;
  uint64_t i = timeline.series.count - 1;
  const uint64_t bytes = timeline.at(i).agent_bytes_pfs;
  while (i > 0 && timeline.at(i - 1).agent_bytes_pfs == bytes) --i;
  return static_cast<double>(bytes) / std::max(static_cast<double>(timeline.at(i).ms) / 1000, kLeastSeconds);
}

std::optional<double> staged_at(const Timeline& timeline, uint64_t i) {
  if (timeline.series.count == 0) return {};
  const uint64_t all = timeline.at(timeline.series.count - 1).dataset_bytes;
  if (all == 0) return {};
  return percent(timeline.at(i).staged_bytes, all);
}

std::optional<uint64_t> pfs_quiet_ms(const Timeline& timeline) {
  const uint64_t n = timeline.series.count;
  if (n == 0 || from_pfs(timeline.at(n - 1)) == 0) return {};
  uint64_t i = n - 1;
  while (i > 0 && from_pfs(timeline.at(i - 1)) == from_pfs(timeline.at(n - 1))) --i;
  if (i == n - 1) return {};
  return timeline.at(i).ms;
}

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
  return fmt::format("{}{:.3g}{}", std::abs(rounded - value) < 1e-6 ? "" : "~", rounded, kUnits[unit]);
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
