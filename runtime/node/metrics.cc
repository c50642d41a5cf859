// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/metrics.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "build_config.h"
#include "runtime/base/json.h"
#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/node/identity.h"
#include "runtime/node/owners_files.h"

namespace monarch {
namespace {

using T = TaskCounter;
using A = AgentCounter;

constexpr char kFile[] = "metrics", kLock[] = "metrics.lock", kEnded[] = "monarch_jobs_ended_total",
               kDied[] = "monarch_agents_died_total";
// What no count of a job can exceed for each second since it began, be it bytes that all cores of a node read
// from its memory, or nanoseconds that two thousand threads wait. An owner who writes more is not believed.
constexpr double kMostPerSecond = 0x1p41;
constexpr uint64_t kMostSum = uint64_t{1} << 63;

// ---- what is counted

struct Source {
  MetricLabels labels;
  std::vector<T> task;
  std::vector<A> agent = {};
};
// Of which there is one for each tier too, with its name, if `of_tiers` is.
struct Counter {
  const char *name, *help;
  std::vector<Source> sources;
  uint64_t (JobCounters::*of_tiers)[kMaxTiers] = nullptr;
  Metric::Unit unit = Metric::Unit::kOne;
};

MetricLabels pfs() { return {{"source", "pfs"}, {"tier", ""}}; }
MetricLabels of_tier(const std::string& name) { return {{"source", "tier"}, {"tier", name}}; }

std::vector<Source> fallbacks() {
  std::vector<Source> sources;
  for (const Fallback& f : kFallbacks) sources.push_back({{{"reason", f.name}}, {f.counter}});
  return sources;
}

const std::vector<Counter>& counters() {
  static const std::vector<Counter> all = {
      {"monarch_read_bytes_total",
       "Bytes that jobs have read of their datasets by read(2) and kin.",
       {{pfs(), {T::read_bytes_pfs}}},
       &JobCounters::read_bytes_tier},
      {"monarch_reads_total",
       "Calls of read(2) and kin by jobs on files of their datasets.",
       {{pfs(), {T::read_calls_pfs}}},
       &JobCounters::read_calls_tier},
      {"monarch_opens_total",
       "Opens by jobs of files of their datasets.",
       {{pfs(), {T::opens_pfs}}},
       &JobCounters::opens_tier},
      {"monarch_open_fallbacks_total",
       "Opens that went to the PFS, by why. Not every such open has a reason.", fallbacks()},
      {"monarch_open_waits_total",
       "Opens that waited until the agent had staged the file.",
       {{{}, {T::waits}}}},
      {"monarch_open_wait_seconds_total",
       "Time that opens waited until the agent had staged the file.",
       {{{}, {T::wait_ns}}},
       nullptr,
       Metric::Unit::kNanoseconds},
      {"monarch_metadata_calls_total",
       "Metadata calls by jobs below their datasets.",
       {{{{"source", "pfs"}}, {T::meta_pfs}}, {{{"source", "catalog"}}, {T::meta_served}}}},
      {"monarch_staging_bytes_total",
       "Bytes that agents have read to stage them.",
       {{{{"source", "pfs"}}, {}, {A::agent_bytes_pfs}}, {{{"source", "peer"}}, {}, {A::peer_bytes}}}},
      {"monarch_staging_seconds_total",
       "Time that copy threads, all together, took for these bytes.",
       {{{{"source", "pfs"}}, {}, {A::pfs_ns}}, {{{"source", "peer"}}, {}, {A::peer_ns}}},
       nullptr,
       Metric::Unit::kNanoseconds},
      {"monarch_staging_operations_total",
       "Operations of agents on the PFS.",
       {{{{"operation", "list"}}, {}, {A::walk_dirs}},
        {{{"operation", "open"}}, {}, {A::agent_opens_pfs}},
        {{{"operation", "read"}}, {}, {A::agent_reads_pfs}}}},
      {"monarch_staged_bytes_total",
       "Bytes of files that were placed on tiers.",
       {{{}, {}, {A::staged_bytes}}}},
      {"monarch_staged_files_total", "Files that were placed on tiers.", {{{}, {}, {A::staged_files}}}},
      {"monarch_unstaged_files_total",
       "Files that no tier took, or that were removed from one, by why.",
       {{{{"reason", "no_room"}}, {}, {A::no_fit_files}},
        {{{"reason", "changed"}}, {}, {A::dropped_files}},
        {{{"reason", "quota_lowered"}}, {}, {A::evicted_files}}}},
      {"monarch_late_agents_total",
       "Agents that were ready only after tasks of their jobs had begun, whose reads until then are not "
       "counted.",
       {{{}, {}, {A::late_nodes}}}},
      {"monarch_served_bytes_total",
       "Bytes that this node has given to other nodes of its jobs.",
       {{{}, {}, {A::served_bytes}}}},
      {"monarch_errors_total",
       "Failures that agents met. The PFS served what they did not.",
       {{{{"where", "pfs"}}, {}, {A::source_errors}},
        {{{"where", "tier"}}, {}, {A::tier_errors}},
        {{{"where", "peer"}}, {}, {A::peer_errors, A::peer_timeouts, A::peer_bad}}}},
  };
  return all;
}

// A series by its metric's name and its labels.
using SeriesId = std::pair<std::string, MetricLabels>;
using Counts = std::map<SeriesId, uint64_t>;

Counts counts_of(const JobRecord& record, const JobCounters& c) {
  Counts counts;
  for (const Counter& counter : counters()) {
    for (const Source& source : counter.sources) {
      uint64_t& sum = counts[{counter.name, source.labels}];
      for (const T of : source.task) sum += c[of];
      for (const A of : source.agent) sum += c[of];
    }
    for (size_t i = 0; counter.of_tiers && i < std::min<size_t>(record.tiers.size(), kMaxTiers); ++i)
      counts[{counter.name, of_tier(record.tiers[i].name)}] += (c.*counter.of_tiers)[i];
  }
  return counts;
}

void add(Counts* sums, const SeriesId& id, uint64_t value) {
  uint64_t& sum = (*sums)[id];
  sum = value > kMostSum - sum ? kMostSum : sum + value;
}

// ---- what is kept

struct JobCounts {
  std::string key;       // as JobOnNode's
  bool counted = false;  // its epilog had its last counts
  Counts counts;
};
struct Kept {
  Counts ended;
  std::map<std::string, JobCounts> jobs;  // by JobRecord::removal()
};

Json to_json(const Counts& counts) {
  Json list = Json::array();
  for (const auto& [id, value] : counts) {
    Json labels = Json::object();
    for (const auto& [label, text] : id.second) labels[label] = text;
    list.push_back(Json::array({id.first, labels, value}));
  }
  return list;
}

bool read_counts(const Json& list, Counts* counts) {
  for (const Json& one : list.elements()) {
    SeriesId id;
    uint64_t value = 0;
    if (!one.at(0).read(&id.first) || !one.at(1).is_object() || !one.at(2).read(&value)) return false;
    for (const auto& [label, text] : one.at(1).members())
      if (!text.read(&id.second[label])) return false;
    (*counts)[id] = std::min(value, kMostSum);
  }
  return list.is_array();
}

std::string text_of(const Kept& kept) {
  Json jobs = Json::array();
  for (const auto& [name, job] : kept.jobs)
    jobs.push_back(
        {{"name", name}, {"key", job.key}, {"counted", job.counted}, {"counts", to_json(job.counts)}});
  return Json({{"ended", to_json(kept.ended)}, {"jobs", jobs}}).dump() + "\n";
}

bool read_job(const Json& json, Kept* kept) {
  std::string name;
  JobCounts job;
  JsonReader members(json);
  members.need("name", &name);
  members.need("key", &job.key);
  members.need("counted", &job.counted);
  if (!members.fault().empty() || !read_counts(json["counts"], &job.counts)) return false;
  kept->jobs[name] = std::move(job);
  return true;
}

// Under the lock. What a disk has spoilt counts from 0 again, as after a boot.
Kept kept_in(const StateDir& state) {
  const Result<std::string> text = state.read(kFile);
  const std::optional<Json> json = text.ok() ? Json::parse(*text) : std::nullopt;
  if (!json) return {};
  Kept kept;
  const Json::Array& jobs = (*json)["jobs"].elements();
  const bool valid =
      read_counts((*json)["ended"], &kept.ended) &&
      std::all_of(jobs.begin(), jobs.end(), [&kept](const Json& job) { return read_job(job, &kept); });
  return valid ? kept : Kept();
}

// A record that cannot be read now may be the job's.
bool is_gone(const StateDir& state, const std::string& name, const JobCounts& job) {
  const Result<JobRecord> record = state.read_record(job.key);
  return record.ok() ? record->removal() != name : record.error().code == ENOENT;
}

// Under the lock.
void sum_up_ended(const StateDir& state, Kept* kept) {
  for (auto at = kept->jobs.begin(); at != kept->jobs.end();) {
    const JobCounts& job = at->second;
    if (!is_gone(state, at->first, job)) {
      ++at;
      continue;
    }
    for (const auto& [id, value] : job.counts) add(&kept->ended, id, value);
    add(&kept->ended, {kEnded, {{"counters", job.counted ? "read" : "lost"}}}, 1);
    at = kept->jobs.erase(at);
  }
}

bool could_be(const JobRecord& record, const Counts& counts) {
  const double now = static_cast<double>(os::clock_ns(CLOCK_BOOTTIME)) / 1e9;
  const double began =
      static_cast<double>(record.agent.start_time) / static_cast<double>(::sysconf(_SC_CLK_TCK));
  const double most = kMostPerSecond * (std::max(now - began, 0.0) + 1);
  return std::all_of(counts.begin(), counts.end(),
                     [&](const auto& c) { return static_cast<double>(c.second) <= most; });
}

// False: its numbers are none that a job can have.
bool believe(const JobRecord& record, const JobCounters& counters, Kept* kept) {
  JobCounts& job = kept->jobs[record.removal()];
  job.key = record.job.key();
  if (!plausible(counters)) return false;
  const Counts now = counts_of(record, counters);
  if (!could_be(record, now)) return false;
  for (const auto& [id, value] : now) job.counts[id] = std::max(job.counts[id], value);
  return true;
}

// ---- what is there now

struct Seen {
  JobRecord record;
  std::optional<JobCounters> counters;
};
struct Look {
  std::vector<Seen> seen;  // jobs that had an agent
  std::map<std::string, uint64_t> states = {{"pending", 0}, {"running", 0},  {"agent_died", 0}, {"failed", 0},
                                            {"refused", 0}, {"removing", 0}, {"unknown", 0}};
  std::map<std::string, uint64_t> limits, reserved, placed;  // by tier
  uint64_t unread = 0;
};

void add_tiers(const JobRecord& record, Look* look) {
  for (const TierRecord& tier : record.tiers) {
    look->limits[tier.name] = std::max(look->limits[tier.name], tier.limit);
    look->reserved[tier.name] += tier.charged();
    look->placed[tier.name];  // has a value, if only 0
  }
}

Look look_at_records(const StateDir& state) {
  Look look;
  for (const std::string& key : state.jobs()) {
    Result<JobRecord> record = state.read_record(key);
    if (!record.ok()) {
      const NotedFailure failure = state.read_notes(key).failure;
      const char* without = failure.run.empty() ? "pending" : failure.refused ? "refused" : "failed";
      ++look.states[record.error().code != ENOENT ? "unknown" : without];
      continue;
    }
    add_tiers(*record, &look);
    const bool starts = record->agent.pid == 0;
    ++look.states[starts ? "pending" : is_running(record->agent) ? "running" : "agent_died"];
    if (!starts) look.seen.push_back({record.take(), {}});
  }
  for (const std::string& removal : state.removals()) {
    ++look.states["removing"];
    if (const Result<JobRecord> record = state.read_removal(removal); record.ok()) add_tiers(*record, &look);
  }
  return look;
}

// From another one each time: who keeps root waiting does not keep it from the same ones for ever.
void read_boards(const StateDir& state, std::vector<Seen>* seen) {
  const int64_t begin = state.clock().now_ms();
  for (size_t i = 0; i < seen->size() && state.clock().now_ms() - begin < patience::kStuckMs; ++i) {
    Seen& job = (*seen)[(i + static_cast<size_t>(begin)) % seen->size()];
    JobCounters counters{};
    const bool told =
        read_as_owner(&state, &job.record, patience::kHookWaitMs, &counters, sizeof counters, [&](int fd) {
          const Result<std::unique_ptr<Board>> board = read_board(job.record.run_dir);
          if (!board.ok()) return false;
          const JobCounters c = counters_of(**board);
          return ::write(fd, &c, sizeof c) == sizeof c;
        });
    if (told) job.counters = counters;
  }
}

// Under the lock. Of a job that has ended since it was looked at, the epilog knows more, and it may be in the
// sums already.
void take_over(const StateDir& state, Look* look, Kept* kept) {
  for (const Seen& job : look->seen) {
    const Result<JobRecord> now = state.read_record(job.record.job.key());
    if (!now.ok() || now->removal() != job.record.removal()) continue;
    if (!job.counters || !believe(job.record, *job.counters, kept)) {
      ++look->unread;
      continue;
    }
    for (size_t i = 0; i < std::min<size_t>(job.record.tiers.size(), kMaxTiers); ++i)
      look->placed[job.record.tiers[i].name] +=
          std::min(job.counters->placed_bytes[i], job.record.tiers[i].charged());
  }
}

Result<Counts> look_at_counts(const StateDir& state, Look* look) {
  *look = look_at_records(state);
  read_boards(state, &look->seen);
  const Result<Fd> locked = state.lock_file(kLock, patience::kHookWaitMs);
  if (!locked.ok()) return locked.error();
  Kept kept = kept_in(state);
  take_over(state, look, &kept);
  sum_up_ended(state, &kept);
  if (const Status s = state.write(kFile, text_of(kept)); !s.ok())
    spdlog::warn("counts of jobs are not kept: {}", s.error().text);
  Counts all = kept.ended;
  for (const auto& [name, job] : kept.jobs)
    for (const auto& [id, value] : job.counts) add(&all, id, value);
  return all;
}

// ---- how it is told

Metric counter_of(const Counter& counter, const Counts& counts, const std::vector<std::string>& tiers) {
  Metric metric{counter.name, counter.help, Metric::Type::kCounter, counter.unit, {}};
  std::map<MetricLabels, uint64_t> values;
  for (const Source& source : counter.sources) values[source.labels];
  if (counter.of_tiers)
    for (const std::string& tier : tiers) values[of_tier(tier)];
  for (const auto& [id, value] : counts)
    if (id.first == counter.name) values[id.second] = value;
  for (const auto& [labels, value] : values) metric.samples.push_back({labels, value});
  return metric;
}

Metric gauge_of(const char* name, const char* help, const char* label,
                const std::map<std::string, uint64_t>& values) {
  Metric metric{name, help, Metric::Type::kGauge, Metric::Unit::kOne, {}};
  for (const auto& [of, value] : values) metric.samples.push_back({{{label, of}}, value});
  return metric;
}

Metric gauge_of(const char* name, const char* help, uint64_t value) {
  return {name, help, Metric::Type::kGauge, Metric::Unit::kOne, {{{}, value}}};
}

}  // namespace

Result<std::vector<Metric>> node_metrics(const StateDir* state, const std::vector<std::string>& tiers) {
  Look look;
  Counts counts;
  if (state) {
    Result<Counts> looked = look_at_counts(*state, &look);
    if (!looked.ok()) return looked.error();
    counts = looked.take();
  }
  const Counter ended = {kEnded,
                         "Jobs with Monarch that have ended on this node, by whether their last counts came.",
                         {{{{"counters", "read"}}, {}}, {{{"counters", "lost"}}, {}}}};
  const Counter died = {kDied, "Agents that had died when their jobs ended.", {{{}, {}}}};
  std::vector<Metric> all = {
      gauge_of("monarch_build_info", "1 on each node with Monarch.", "version", {{PACKAGE_VERSION, 1}}),
      gauge_of("monarch_jobs", "Jobs with Monarch on this node, by their state.", "state", look.states),
      gauge_of("monarch_jobs_unread",
               "Jobs whose counters could not be read now. What was read before counts.", look.unread),
      counter_of(ended, counts, {}),
      counter_of(died, counts, {}),
      gauge_of("monarch_tier_limit_bytes", "What all jobs together may have of a tier that some have.",
               "tier", look.limits),
      gauge_of("monarch_tier_reserved_bytes", "What jobs have reserved of a tier, or left there.", "tier",
               look.reserved),
      gauge_of("monarch_tier_placed_bytes", "What running jobs have placed on a tier.", "tier", look.placed),
      gauge_of("monarch_sacct_lines_waiting", "Lines for sacct that wait on this node for slurmdbd.",
               state ? state->spooled().size() : 0)};
  for (const Counter& counter : counters()) all.push_back(counter_of(counter, counts, tiers));
  std::erase_if(all, [](const Metric& metric) { return metric.samples.empty(); });
  return all;
}

Status note_end(const StateDir& state, const JobRecord& record, const JobCounters* counters, AgentEnd agent) {
  const Result<Fd> locked = state.lock_file(kLock, patience::kBriefMs);
  if (!locked.ok()) return locked.error();
  Kept kept = kept_in(state);
  sum_up_ended(state, &kept);
  const bool counted = believe(record, counters ? *counters : JobCounters{}, &kept);
  JobCounts& job = kept.jobs[record.removal()];
  job.counted |= counted;
  if (has_died(agent)) job.counts[{kDied, {}}] = 1;
  return state.write(kFile, text_of(kept));
}

}  // namespace monarch
