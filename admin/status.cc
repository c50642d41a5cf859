// SPDX-License-Identifier: Apache-2.0
// monarchctl status: the jobs with Monarch on this node, and how far they are.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/job_text.h"
#include "admin/jobs.h"
#include "admin/output.h"
#include "admin/reports.h"
#include "admin/slurm_facts.h"
#include "build_config.h"
#include "runtime/base/escape.h"
#include "runtime/base/size.h"

namespace monarch::admin {
namespace {

struct StatusOptions {
  std::string job, state_dir;
  bool json = false;
};

// A job that has ended here, by the name that it was asked for.
struct Ended {
  std::string name;
  Kept kept;
};

void print_list(const std::vector<Job>& jobs, const std::vector<Ended>& ended) {
  std::vector<std::vector<std::string>> rows = {
      {"JOB", "USER", "STAGED", "BYTES", "RATE", "ETA", "HIT", "PFS-OPENS", "STATE"}};
  for (const Job& job : jobs) {
    const Progress p = progress_of(job);
    const bool told = job.status.has_value();
    rows.push_back({word(job.part.empty() ? name_of(job, jobs) : job.part), word(user_text(job)),
                    percent_text(staged_percent(p), p.estimated), told ? format_size(p.bytes) : "-",
                    rate_text(job), p.eta_seconds ? time_text(*p.eta_seconds) : "-", hit_text(job),
                    told ? std::to_string(job.status->counters[TaskCounter::opens_pfs]) : "-",
                    paint(looks_of(job.state).colour, looks_of(job.state).name) +
                        (job.reason.empty() ? "" : ": " + escaped(job.reason))});
  }
  for (const Ended& one : ended) {
    rows.emplace_back(rows[0].size(), "-");
    rows.back().front() = word(one.name);
    rows.back().back() = "ended";
  }
  print_table(rows);
}

void print_job(const Job& job) {
  print_fact("Job", escaped(job.id) + (job.cluster.empty() ? ""
                                                           : " of cluster " + escaped(job.cluster) +
                                                                 " on node " + escaped(job.node)));
  if (const std::string user = user_text(job); user != "-") print_fact("User", escaped(user));
  print_fact("State", paint(looks_of(job.state).colour, looks_of(job.state).name) +
                          (job.reason.empty() ? "" : ": " + escaped(job.reason)));
  // Without it nobody hears what other nodes change.
  const bool has_peers = job.status && job.status->counters.nodes > 1;
  if (job.state == JobState::kAgentDied)
    print_fact("", std::string("its agent has ended by itself or was killed: ") +
                       (has_peers ? "all is read from the PFS"
                                  : "placed files are read from the tier still, the others from the PFS"));
  if (!job.status) return;
  const JobCounters& c = job.status->counters;
  const Progress p = progress_of(job);
  print_fact("Dataset", dataset_text(job));
  print_fact("Files",
             std::to_string(p.files) +
                 (p.all_files ? " of " + std::to_string(*p.all_files)
                              : " (not all are found yet, or none is listed)") +
                 (p.all_files ? " (" + percent_text(percent(p.files, p.all_files), false) + ")" : ""));
  print_fact("Bytes", format_size(p.bytes) +
                          (p.all_bytes ? std::string(" of ") + (p.estimated ? "about " : "") +
                                             format_size(*p.all_bytes) + " (" +
                                             percent_text(staged_percent(p), p.estimated) + ")"
                                       : "") +
                          (job.status->full ? "; the tiers are full" : ""));
  if (const uint64_t hinted = c[AgentCounter::hinted_files]; hinted > 0)
    print_fact("Order", counted(hinted, "file") + " prefetched as hints told");
  if (job.bytes_per_second)
    print_fact("Rate",
               rate_text(job) + (p.eta_seconds ? ", all staged in " + time_text(*p.eta_seconds) : ""));
  std::string rates;
  const auto add_rate = [&](const char* name, AgentCounter bytes, AgentCounter ns) {
    if (const auto rate = thread_rate(c, bytes, ns))
      rates += (rates.empty() ? "" : ", ") + std::string(name) + " " + format_size(*rate) + "/s";
  };
  add_rate("PFS", AgentCounter::agent_bytes_pfs, AgentCounter::pfs_ns);
  add_rate("other nodes", AgentCounter::peer_bytes, AgentCounter::peer_ns);
  if (!rates.empty()) print_fact("Sources", rates + ", for each thread that copies");
  const Opens opens = opens_of(c);
  print_fact("Opens", std::to_string(opens.all) + ", of a tier's copy " + std::to_string(opens.tier) + " (" +
                          hit_text(job) + ")");
  for (const Fallback& f : kFallbacks)
    if (c[f.counter] > 0) print_fact("", std::to_string(c[f.counter]) + " on the PFS: fallback_" + f.name);
  if (job.status->tiers == 0) return;
  std::puts("");
  std::vector<std::vector<std::string>> rows = {{"TIER", "GRANTED", "PLACED", "USED", "OPENS", "READ"}};
  for (uint32_t i = 0; i < job.status->tiers; ++i)
    rows.push_back({word(job.status->names[i]), format_size(job.status->granted[i]),
                    format_size(c.placed_bytes[i]),
                    percent_text(percent(c.placed_bytes[i], job.status->granted[i]), false),
                    std::to_string(c.opens_tier[i]), format_size(c.read_bytes_tier[i])});
  print_table(rows);
}

// With what the job's nodes have told this one.
Json whole_json(const Job& job) {
  Json out = job_json(job);
  if (!job.status || nodes_in(job) <= 1) return out;
  const std::vector<NodeLine> nodes = nodes_of(job);
  out["nodes_told"] = std::max<uint64_t>(told_count(nodes), 1);
  out["by_node"] = nodes.empty() ? Json() : by_node(nodes);
  return out;
}

void print_others(const Job& job) {
  const uint64_t count = nodes_in(job);
  if (!job.status || count <= 1) return;
  std::puts("");
  if (const std::vector<NodeLine> nodes = nodes_of(job); !nodes.empty())
    return print_table(node_rows(nodes, count));
  print_fact("Nodes", "nodes=1/" + std::to_string(count) +
                          ": these are the numbers of this node; those of the others are not known here" +
                          (job.status->counters.nodes > 1
                               ? ", but on the job's first node"
                               : ": its nodes do not get files from each other, and each tells its own"));
}

// Of a part it notes the name.
bool is_one_of(const std::vector<JobPart>& parts, Job* job) {
  for (const JobPart& part : parts) {
    if (!is_named(*job, part.number)) continue;
    if (parts.size() > 1) job->part = part.name;
    return true;
  }
  return false;
}

// Of each cluster's job the last run, unless the job is there again.
std::vector<Ended> ended_of(const std::vector<JobPart>& parts, const std::vector<Job>& jobs,
                            const std::string& state_dir) {
  std::vector<Ended> ended;
  for (const JobPart& part : parts) {
    std::set<std::string> clusters;
    for (const Job& job : jobs)
      if (is_named(job, part.number)) clusters.insert(job.cluster);
    for (const Kept& kept : kept_reports(state_dir, part.number))
      if (clusters.insert(kept.cluster).second) ended.push_back({part.name, kept});
  }
  return ended;
}

int print_json_of(const std::vector<Job>& jobs, const std::vector<Ended>& ended) {
  Json list = Json::array(), reports = Json::array();
  for (const Job& job : jobs) list.push_back(whole_json(job));
  for (const Ended& one : ended) {
    const Result<Json> report = json_of_kept(one.name, one.kept);
    if (!report.ok()) return fail("status", report.error());
    reports.push_back(*report);
  }
  print_json({{"version", PACKAGE_VERSION}, {"jobs", list}, {"ended", reports}});
  return 0;
}

std::string where_to_ask(const std::string& job) {
  if (is_run(job)) return "a run is on the node where it was started, until its command ends";
  return "'squeue -j " + job.substr(0, job.find('@')) + "' tells the job's nodes";
}

int status(const StatusOptions& options) {
  Result<std::vector<Job>> found = find_jobs(options.state_dir);
  if (!found.ok()) return fail("status", found.error());
  std::vector<Job> jobs = found.take();
  std::vector<JobPart> parts;
  std::vector<Ended> ended;
  if (!options.job.empty()) {
    const std::string name = by_own_number(options.job);
    if (name == options.job && !is_run(name)) parts = parts_of(name);
    if (parts.empty()) parts = {{options.job.substr(0, options.job.find('@')), name}};
    std::erase_if(jobs, [&](Job& job) { return !is_one_of(parts, &job); });
    std::stable_sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) {
      return ::strverscmp(a.part.c_str(), b.part.c_str()) < 0;
    });
    ended = ended_of(parts, jobs, options.state_dir);
    if (jobs.empty() && parts.size() == 1 && !options.json && !ended.empty())
      return report_of_kept(options.job, options.state_dir);
  }
  if (!options.job.empty() && jobs.empty() && ended.empty())
    return fail("status", no_job_text(options.job) +
                              (parts.size() > 1 ? ", nor one of its parts " + names_of(parts) : "") +
                              "; 'monarchctl status' lists those that are, and " + where_to_ask(options.job));
  if (options.json) return print_json_of(jobs, ended);
  if (jobs.empty() && ended.empty()) {
    std::puts(no_job_text("").c_str());
  } else if (options.job.empty() || parts.size() > 1) {
    print_list(jobs, ended);
  } else {
    for (size_t i = 0; i < jobs.size(); ++i) {
      if (i > 0) std::puts("");
      print_job(jobs[i]);
      print_others(jobs[i]);
    }
  }
  return 0;
}

}  // namespace

void add_status(CommandLine app, int* status_of_run) {
  auto options = std::make_shared<StatusOptions>();
  app.add_option(
         "JOBID", options->job,
         "this job only, with its tiers and fallbacks, or the report of one that has ended here: Slurm's "
         "number, NUMBER_INDEX of an array, NUMBER@CLUSTER where two clusters have that, or run.PID")
      .check([](const std::string& id) {
        return names_job(id) ? std::string()
                             : "'" + id +
                                   "' is no job; give its number, as 4711, 4711_3 of an array, 4711@CLUSTER, "
                                   "or run.PID";
      });
  app.add_flag("--json", options->json, "print every field as JSON; sizes in bytes");
  add_state_dir(app, &options->state_dir);
  app.footer(
      "Root sees all jobs with Monarch on this node, others their own.\n"
      "Exit status: 0 if the job is there, or none was named; 1 if it is not; 2 for wrong usage.");
  app.callback([options, status_of_run] { *status_of_run = status(*options); });
}

}  // namespace monarch::admin
