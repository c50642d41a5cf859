// SPDX-License-Identifier: Apache-2.0
#include "admin/job_text.h"

#include <unistd.h>

#include <algorithm>

#include "runtime/base/escape.h"
#include "runtime/base/size.h"
#include "runtime/metadata/board.h"

namespace monarch::admin {
namespace {

Json tiers_of(const JobStatus& status) {
  Json tiers = Json::array();
  const JobCounters& c = status.counters;
  for (uint32_t i = 0; i < status.tiers; ++i)
    tiers.push_back({{"name", status.names[i]},
                     {"granted", status.granted[i]},
                     {"placed_bytes", c.placed_bytes[i]},
                     {"opens", c.opens_tier[i]},
                     {"read_calls", c.read_calls_tier[i]},
                     {"read_bytes", c.read_bytes_tier[i]}});
  return tiers;
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
  const auto text = [](const std::string& t) { return t.empty() ? Json() : Json(t); };
  const Progress p = progress_of(job);
  Json out = {{"job", job.id},
              {"cluster", text(job.cluster)},
              {"node", text(job.node)},
              {"nodes", nodes_in(job)},
              {"restart", job.restart},
              {"user", is_users(job) ? Json(user_name(job.uid)) : Json()},
              {"run_dir", text(job.run_dir)},
              {"state", state_name(job.state)},
              {"reason", text(job.reason)}};
  if (!job.status) return out;
  const JobCounters& c = job.status->counters;
  const Opens opens = opens_of(c);
  out["dataset"] = text(job.status->dataset);
  out["datasets"] = job.status->datasets;
  out["files"] = {{"staged", p.files}, {"all", p.all_files}, {"percent", percent(p.files, p.all_files)}};
  out["bytes"] = {
      {"staged", p.bytes}, {"all", p.all_bytes}, {"estimated", p.estimated}, {"percent", staged_percent(p)}};
  out["bytes_per_second"] = job.bytes_per_second;
  out["eta_seconds"] = p.eta_seconds;
  out["full"] = job.status->full == 1;
  out["opens"] = opens.all;
  out["opens_tier"] = opens.tier;
  out["hit"] = opens.all ? static_cast<double>(opens.tier) / static_cast<double>(opens.all) : 0.0;
  out["pfs_bytes"] = pfs_bytes(c);
  out["hinted_files"] = c[AgentCounter::hinted_files];
  out["fallbacks"] = Json::object();
  for (const Fallback& f : kFallbacks) out["fallbacks"][f.name] = c[f.counter];
  out["tiers"] = tiers_of(*job.status);
  return out;
}

std::string no_job_text(const std::string& name) {
  return "no job " + (name.empty() ? "" : name + " ") + "with Monarch on this node" +
         (::geteuid() == 0 ? "" : " that is user " + user_name(::geteuid()) + "'s");
}

Colour colour_of(JobState state) {
  switch (state) {
    case JobState::kStagedIn:
    case JobState::kRunning:
      return Colour::kGood;
    case JobState::kFailed:
    case JobState::kAgentDied:
    case JobState::kUnknown:
      return Colour::kBad;
    default:
      return Colour::kDoubtful;
  }
}

std::string percent_text(const std::optional<double>& value, bool estimated) {
  if (!value) return "-";
  return (estimated ? "~" : "") + whole_percent(*value);
}

std::string rate_text(const Job& job) {
  return job.bytes_per_second ? format_size(*job.bytes_per_second) + "/s" : "-";
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

}  // namespace monarch::admin
