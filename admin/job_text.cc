// SPDX-License-Identifier: Apache-2.0
#include "admin/job_text.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>

#include "runtime/base/escape.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/metadata/board.h"
#include "runtime/node/job_report.h"

namespace monarch::admin {
namespace {

std::string when(const NodeLine& line) {
  if (line.told.ended == 1) return "all";
  return *line.seconds_ago == 0 ? "now" : time_text(*line.seconds_ago) + " ago";
}

void add(NodeTold* sum, const NodeTold& n) {
  sum->files = sum_of_counts(sum->files, n.files);
  for (uint32_t i = 0; i < kMedia; ++i)
    sum->placed_bytes[i] = sum_of_counts(sum->placed_bytes[i], n.placed_bytes[i]);
  sum->opens_tier = sum_of_counts(sum->opens_tier, n.opens_tier);
  sum->opens_pfs = sum_of_counts(sum->opens_pfs, n.opens_pfs);
  sum->pfs_bytes = sum_of_counts(sum->pfs_bytes, n.pfs_bytes);
  sum->peer_bytes = sum_of_counts(sum->peer_bytes, n.peer_bytes);
  sum->served_bytes = sum_of_counts(sum->served_bytes, n.served_bytes);
}

}  // namespace
bool is_users(const Job& job) { return !job.run_dir.empty() || job.uid != 0; }

Opens opens_of(const JobCounters& c) {
  Opens opens;
  for (const uint64_t n : c.opens_tier) opens.tier += n;
  opens.all = opens.tier + c[TaskCounter::opens_pfs];
  return opens;
}

uint64_t pfs_bytes(const JobCounters& counters) { return bytes_from_pfs(own_counts(counters)); }

uint64_t nodes_in(const Job& job) {
  return std::max<uint64_t>(job.nodes, job.status ? job.status->counters.nodes : 0);
}

Json job_json(const Job& job) {
  const Progress p = progress_of(job);
  Json out = {{"job", job.id},
              {"cluster", or_null(job.cluster)},
              {"node", or_null(job.node)},
              {"nodes", nodes_in(job)},
              {"restart", job.restart},
              {"user", is_users(job) ? Json(user_name(job.uid)) : Json()},
              {"run_dir", or_null(job.run_dir)},
              {"state", looks_of(job.state).name},
              {"reason", or_null(job.reason)}};
  if (!job.status) return out;
  const JobCounters& c = job.status->counters;
  const Opens opens = opens_of(c);
  out["dataset"] = or_null(job.status->dataset);
  out["datasets"] = job.status->datasets;
  out["files"] = {{"staged", p.files}, {"all", p.all_files}, {"percent", percent(p.files, p.all_files)}};
  out["bytes"] = {
      {"staged", p.bytes}, {"all", p.all_bytes}, {"estimated", p.estimated}, {"percent", staged_percent(p)}};
  out["bytes_per_second"] = job.bytes_per_second;
  out["eta_seconds"] = p.eta_seconds;
  out["pfs_rate"] = thread_rate(c, AgentCounter::agent_bytes_pfs, AgentCounter::pfs_ns);
  out["peer_rate"] = thread_rate(c, AgentCounter::peer_bytes, AgentCounter::peer_ns);
  out["full"] = job.status->full == 1;
  out["opens"] = opens.all;
  out["opens_tier"] = opens.tier;
  out["hit"] = opens.all ? static_cast<double>(opens.tier) / static_cast<double>(opens.all) : 0.0;
  out["pfs_bytes"] = pfs_bytes(c);
  out["hinted_files"] = c[AgentCounter::hinted_files];
  out["fallbacks"] = Json::object();
  for (const Fallback& f : kFallbacks) out["fallbacks"][f.name] = c[f.counter];
  out["tiers"] = live_report(job)["tiers"];
  return out;
}

Json live_report(const Job& job) {
  std::vector<TierInReport> tiers;
  for (uint32_t i = 0; i < job.status->tiers; ++i)
    tiers.push_back({job.status->names[i], Medium::kSsd, job.status->granted[i]});
  return report(job.status->counters, tiers, Reports::kJob);
}

std::string no_job_text(const std::string& name) {
  return "no job " + (name.empty() ? "" : name + " ") + "with Monarch on this node" +
         (::geteuid() == 0 ? "" : " that is user " + user_name(::geteuid()) + "'s");
}

std::string percent_text(const std::optional<double>& value, bool estimated) {
  if (!value) return "-";
  return (estimated ? "~" : "") + whole_percent(*value);
}

std::string rate_text(const Job& job) {
  return job.bytes_per_second ? format_size(*job.bytes_per_second) + "/s" : "-";
}

std::optional<uint64_t> thread_rate(const JobCounters& counters, AgentCounter bytes, AgentCounter ns) {
  if (counters[ns] == 0) return {};
  return static_cast<uint64_t>(1e9 * static_cast<double>(counters[bytes]) /
                               static_cast<double>(counters[ns]));
}

std::string hit_text(const Job& job) {
  if (!job.status) return "-";
  const Opens opens = opens_of(job.status->counters);
  return percent_text(percent(opens.tier, opens.all), false);
}

std::string dataset_text(const Job& job) {
  const uint64_t all = job.status ? job.status->datasets : 0;
  if (all == 0) return "-";
  return escaped(job.status->dataset) + (all > 1 ? " and " + std::to_string(all - 1) + " more" : "");
}

std::string user_text(const Job& job) { return is_users(job) ? user_name(job.uid) : "-"; }

uint64_t told_count(const std::vector<NodeLine>& lines) {
  return static_cast<uint64_t>(
      std::count_if(lines.begin(), lines.end(), [](const NodeLine& line) { return line.seconds_ago; }));
}

std::vector<std::vector<std::string>> node_rows(const std::vector<NodeLine>& lines, uint64_t nodes) {
  NodeTold sum;
  for (const NodeLine& line : lines) add(&sum, line.told);
  std::vector<uint32_t> media;
  for (uint32_t i = 0; i < kMedia; ++i)
    if (sum.placed_bytes[i] > 0) media.push_back(i);
  std::vector<std::string> heading = {"NODE", "FILES"};
  for (const uint32_t i : media) {
    heading.emplace_back(name_of(static_cast<Medium>(i)));
    for (char& c : heading.back()) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  heading.insert(heading.end(), {"OPENS", "HIT", "PFS", "PEERS", "SERVED", "TOLD"});
  std::vector<std::vector<std::string>> rows = {heading};
  const auto add_row = [&](const std::string& name, const NodeTold& n, const std::string& told) {
    const uint64_t opens = n.opens_tier + n.opens_pfs;
    std::vector<std::string> row = {name, std::to_string(n.files)};
    for (const uint32_t i : media) row.push_back(format_size(n.placed_bytes[i]));
    row.insert(row.end(),
               {std::to_string(opens), percent_text(percent(n.opens_tier, opens), false),
                format_size(n.pfs_bytes), format_size(n.peer_bytes), format_size(n.served_bytes), told});
    rows.push_back(row);
  };
  for (const NodeLine& line : lines) {
    if (line.seconds_ago) {
      add_row(word(line.told.name), line.told, when(line));
      continue;
    }
    rows.emplace_back(heading.size(), "-");
    rows.back()[0] = word(line.told.name);
    rows.back().back() = "nothing yet";
  }
  add_row("all", sum, "nodes=" + std::to_string(told_count(lines)) + "/" + std::to_string(nodes));
  return rows;
}

}  // namespace monarch::admin
