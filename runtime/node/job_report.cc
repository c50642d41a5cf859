// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_report.h"

#include <algorithm>
#include <sstream>

#include "build_config.h"
#include "runtime/base/os.h"
#include "runtime/metadata/board.h"
#include "runtime/node/nodes_report.h"
#include "runtime/node/open_times.h"

namespace monarch {
namespace {

Json task_counters(const NodeCounts& counts) {
  Json tasks;
#define X(name, doc) tasks[#name] = counts[TaskCounter::name];
  MONARCH_TASK_COUNTERS(X)
#undef X
  return tasks;
}

Json agent_counters(const NodeCounts& counts) {
  Json agent;
#define X(name, doc) agent[#name] = counts[AgentCounter::name];
  MONARCH_AGENT_COUNTERS(X)
#undef X
  return agent;
}

NodeCounts own_counts(const JobCounters& c, const std::vector<TierInReport>& tiers) {
  NodeCounts own = monarch::own_counts(c);
  for (size_t i = 0; i < std::min<size_t>(tiers.size(), kMaxTiers); ++i)
    own.placed_bytes[static_cast<uint32_t>(tiers[i].medium)] += c.placed_bytes[i];
  return own;
}

// What is said of a node and of a job alike.
Json opens_of(const NodeCounts& counts) {
  const uint64_t hits = counts.opens_tier, opens = hits + counts[TaskCounter::opens_pfs];
  return {{"opens", opens},
          {"opens_tier", hits},
          {"hit", opens ? static_cast<double>(hits) / static_cast<double>(opens) : 0.0}};
}

Json job_of(const JobCounters& counters, NodeCounts counts) {
  add(&counts, counters.others);
  const uint64_t nodes = std::max<uint64_t>(counters.nodes, 1);
  Json job = {{"nodes", nodes}, {"nodes_told", std::min(1 + counters.ended, nodes)}};
  job.update(opens_of(counts));
  job["read_calls_tier"] = counts.read_calls_tier;
  job["read_bytes_tier"] = counts.read_bytes_tier;
  job["placed_bytes"] = placed_json(counts.placed_bytes);
  job["open_times"] = open_times_json(counts.open_times);
  job["tasks"] = task_counters(counts);
  job["agent"] = agent_counters(counts);
  return job;
}

// Null: it has not come to that.
Json seconds_of(uint64_t ms) { return ms == 0 ? Json() : Json(static_cast<double>(ms) / 1000); }

Json series_of(const Series& series, size_t tiers) {
  const auto column = [&](const auto& value) {
    Json values = Json::array();
    for (uint64_t i = 0; i < series.count; ++i) values.push_back(value(series.samples[i]));
    return values;
  };
  Json placed = Json::array();
  for (size_t t = 0; t < std::min<size_t>(tiers, kMaxTiers); ++t)
    placed.push_back(column([&](const Sample& s) { return s.placed_bytes[t]; }));
  Json all = {{"began", series.began},
              {"settled_seconds", seconds_of(series.settled_ms)},
              {"staged_seconds", seconds_of(series.whole_ms)}};
  for (const SeriesColumn& c : kSeriesColumns)
    all[c.name] = column([&](const Sample& s) { return s.*c.value; });
  all["placed"] = placed;
  return all;
}

}  // namespace

bool is_first_of_several(const JobRecord& record) { return record.peers && record.first_node; }

Result<JobAccount> read_account(const std::string& run_dir) {
  const Result<std::unique_ptr<Board>> board = read_board(run_dir);
  if (!board.ok()) return board.error();
  JobAccount account{counters_of(**board), {}};
  if (const Result<Series> series = read_series(run_dir); series.ok()) {
    account.series = *series;
    close_series(**board, &account.series);
  }
  return account;
}

void drop_implausible(Series* series) {
  if (!plausible(*series)) *series = Series();
}

Json report(const JobCounters& counters, const std::vector<TierInReport>& tiers, Reports what,
            const NodesTold* nodes) {
  Json levels = Json::array();
  for (size_t i = 0; i < std::min<size_t>(tiers.size(), kMaxTiers); ++i)
    levels.push_back({{"name", tiers[i].name},
                      {"opens", counters.opens_tier[i]},
                      {"read_calls", counters.read_calls_tier[i]},
                      {"read_bytes", counters.read_bytes_tier[i]},
                      {"placed_bytes", counters.placed_bytes[i]},
                      {"granted", tiers[i].granted}});
  const NodeCounts counts = own_counts(counters, tiers);
  Json all = {{"version", PACKAGE_VERSION}};
  all.update(opens_of(counts));
  all["open_times"] = open_times_json(counters.open_times);
  all["tiers"] = levels;
  all["tasks"] = task_counters(counts);
  all["agent"] = agent_counters(counts);
  if (what == Reports::kJob) {
    all["job"] = job_of(counters, counts);
    all["job"]["by_node"] = nodes ? by_node(node_lines(*nodes, counts)) : Json();
  }
  return all;
}

std::string report_text(const Json& report, size_t tiers, const Series& series) {
  std::string text = report.dump(2);
  if (series.count > 0) {
    std::string columns;
    const Json all = series_of(series, tiers);
    for (const auto& [name, values] : all.members())
      columns += (columns.empty() ? "\n    \"" : ",\n    \"") + name + "\": " + values.dump();
    text.insert(text.size() - 2, ",\n  \"series\": {" + columns + "\n  }");
  }
  return text + "\n";
}

void add_about(Json* report, uid_t uid, const std::vector<std::string>& datasets) {
  (*report)["uid"] = uid;
  (*report)["datasets"] = datasets;
}

std::string ended_report(const JobRecord& record, const JobAccount& account, const NodesTold* nodes,
                         AgentEnd agent, const std::string& datasets) {
  std::vector<TierInReport> tiers;
  for (const TierRecord& tier : record.tiers) {
    const Result<Medium> medium = parse_name<Medium>(tier.medium);
    tiers.push_back({tier.name, medium.ok() ? *medium : Medium::kSsd, tier.quota});
  }
  Json json =
      report(account.counters, tiers, is_first_of_several(record) ? Reports::kJob : Reports::kNode, nodes);
  std::vector<std::string> each;
  std::istringstream in(datasets);
  for (std::string dataset; std::getline(in, dataset, ':');) each.push_back(dataset);
  add_about(&json, record.user.uid, each);
  json["ended"] = {{"job", record.job.job},        {"cluster", record.job.cluster}, {"node", record.job.node},
                   {"restart", record.restart},    {"nodes", record.nodes},         {"at", os::realtime_s()},
                   {"agent_died", has_died(agent)}};
  return report_text(json, tiers.size(), account.series);
}

}  // namespace monarch
