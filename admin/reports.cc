// SPDX-License-Identifier: Apache-2.0
#include "admin/reports.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <iostream>
#include <system_error>

#include "admin/jobs.h"
#include "runtime/base/escape.h"

namespace monarch::admin {
namespace {

constexpr size_t kMostFile = 16 << 20;
constexpr uint64_t kMost = uint64_t{1} << 60;  // that a counter can be
constexpr char kNameASaved[] = "; name files that 'monarchctl report JOBID --save DIRECTORY' has written";

enum class Whose { kAll, kNode };  // of all nodes, if they are known, or of the one that wrote the report

Error no_report() { return bad_input("not a report of 'monarchctl run --report'"); }

// Only whole numbers from 0 to kMost; `good` becomes false for anything else. One that is missing is 0.
uint64_t number(const Json& object, const char* name, bool* good) {
  const Json* at = object.find(name);
  if (!at) return 0;
  if (at->is_number_unsigned() && at->number() <= kMost) return at->number();
  *good = false;
  return 0;
}

Result<Counts> counts_of(const Json& report, Whose whose) {
  const bool all = whose == Whose::kAll && report.find("job");
  const Json &of = all ? report["job"] : report, &tasks = of["tasks"], &agent = of["agent"];
  if (!tasks.is_object() || !agent.is_object()) return no_report();
  bool good = true;
  Counts c;
#define X(name, doc) c.task[static_cast<uint32_t>(TaskCounter::name)] = number(tasks, #name, &good);
  MONARCH_TASK_COUNTERS(X)
#undef X
#define X(name, doc) c.agent[static_cast<uint32_t>(AgentCounter::name)] = number(agent, #name, &good);
  MONARCH_AGENT_COUNTERS(X)
#undef X
  c.opens = number(of, "opens", &good);
  c.opens_tier = number(of, "opens_tier", &good);
  const Json& ended = report["ended"];
  c.of_run = ended.is_null();
  c.agent_died = ended["agent_died"].boolean();
  if (whose == Whose::kAll) c.nodes = std::max<uint64_t>(number(all ? of : ended, "nodes", &good), 1);
  if (all) {
    c.read_calls_tier = number(of, "read_calls_tier", &good);
    c.read_bytes_tier = number(of, "read_bytes_tier", &good);
    for (const auto& [medium, bytes] : of["placed_bytes"].members())
      c.placed_bytes[0] += number(of["placed_bytes"], medium.c_str(), &good);
  } else {
    for (const Json& tier : report["tiers"].elements()) {
      if (!tier.is_object()) return no_report();
      c.read_calls_tier += number(tier, "read_calls", &good);
      c.read_bytes_tier += number(tier, "read_bytes", &good);
      c.placed_bytes[0] += number(tier, "placed_bytes", &good);
    }
  }
  if (!good) return no_report();
  if (const Json* times = of.find("open_times")) {
    const Result<OpenTimes> read = open_times_of(*times);
    if (!read.ok()) return read.error();
    c.open_times = *read;
  }
  return c;
}

}  // namespace

Result<Told> told_by(const Json& report) {
  Told told;
  Error fault;
  const auto take = [&](auto read, auto* to) {
    if (read.ok())
      *to = read.take();
    else if (fault.code == 0)
      fault = read.error();
  };
  take(counts_of(report, Whose::kAll), &told.counts);
  take(counts_of(report, Whose::kNode), &told.own);
  take(timeline_of(report), &told.timeline);
  if (const Json& nodes = report["job"]["by_node"]; !nodes.is_null()) take(node_lines_of(nodes), &told.nodes);
  if (fault.code != 0) return fault;
  told.has_open_times = report.find("open_times");
  if (report["uid"].is_number_unsigned()) told.uid = report["uid"].number();
  for (const Json& dataset : report["datasets"].elements())
    if (dataset.is_string()) told.datasets.push_back(dataset.text());
  const Json& ended = report["ended"];
  told.node = ended["node"].text();
  told.cluster = ended["cluster"].text();
  told.job = ended["job"].number();
  told.restart = ended["restart"].number();
  return told;
}

bool names_job(const std::string& what) {
  const std::string id = what.substr(0, what.find('@'));
  const std::string number = is_run(id) ? id.substr(4) : id;
  return !number.empty() && number.find_first_not_of("0123456789_+") == std::string::npos;
}

Result<std::string> read_text(const std::string& name) {
  std::string text;
  std::ifstream file;
  if (name != "-") file.open(name, std::ios::binary);
  if (!file) return errno_error("read " + name);
  std::error_code error;
  if (name != "-" && std::filesystem::is_directory(name, error)) return errno_error("read " + name, EISDIR);
  std::istream& in = name == "-" ? std::cin : file;
  text.resize(kMostFile);
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) return errno_error("read " + name, EIO);
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

Result<Told> told_by(const std::string& text, const std::string& name, const char* remedy) {
  const std::optional<Json> report = Json::parse(text);
  Result<Told> told = report && (*report)["tiers"].is_array() ? told_by(*report) : no_report();
  if (told.ok()) return told;
  return Error{told.error().code, name + ": " + told.error().text + remedy};
}

std::vector<Kept> kept_reports(const std::string& state_dir, const std::string& name) {
  const std::string all = state_dir + "/reports", ending = ".json";
  const uid_t self = ::geteuid();
  std::vector<Kept> kept;
  for (const std::string& user : self == 0 ? names_in(all) : std::vector<std::string>{std::to_string(self)})
    for (const std::string& file : names_in(all + "/" + user)) {
      Job of;
      if (!file.ends_with(ending) || !name_slurm(file.substr(0, file.size() - ending.size()), &of) ||
          (!name.empty() && !is_named(of, name)))
        continue;
      std::error_code error;
      const std::string path = all + "/" + user + "/" + file;
      const auto written = std::filesystem::last_write_time(path, error);
      if (!error) kept.push_back({path, of.id, of.cluster, written});
    }
  std::sort(kept.begin(), kept.end(), [](const Kept& a, const Kept& b) { return a.when > b.when; });
  return kept;
}

Status check_one(const std::string& name, const std::set<std::string>& clusters) {
  if (clusters.size() < 2) return {};
  std::string names;
  for (const std::string& cluster : clusters) names += (names.empty() ? "" : " or ") + name + "@" + cluster;
  return bad_input(std::to_string(clusters.size()) + " clusters have or had a job " + name +
                   " on this node; name " + names);
}

Result<std::vector<Told>> told_by_nodes(const std::vector<std::string>& files) {
  std::vector<Told> all;
  for (const std::string& file : files) {
    const Result<std::string> text = read_text(file);
    if (!text.ok()) return Error{text.error().code, text.error().text + kNameASaved};
    Result<Told> read = told_by(*text, file, kNameASaved);
    if (!read.ok()) return read.error();
    if (read->node.empty()) return bad_input(file + ": it names no node" + kNameASaved);
    for (const Told& other : all) {
      if (other.job != read->job || other.cluster != read->cluster || other.restart != read->restart)
        return bad_input(file + " is of another job, or of another run of it, than " + files.front());
      if (other.node == read->node)
        return bad_input(file + ": node " + escaped(other.node) + " has been named before");
    }
    all.push_back(read.take());
  }
  std::sort(all.begin(), all.end(),
            [](const Told& a, const Told& b) { return ::strverscmp(a.node.c_str(), b.node.c_str()) < 0; });
  return all;
}

}  // namespace monarch::admin
