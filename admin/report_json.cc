// SPDX-License-Identifier: Apache-2.0
#include "admin/report_json.h"

#include <algorithm>
#include <map>

#include "admin/kept.h"
#include "runtime/base/escape.h"

namespace monarch::admin {
namespace {

constexpr uint64_t kMost = uint64_t{1} << 60;  // that a counter can be
constexpr char kNameASaved[] = "; name files that 'monarchctl report JOBID --save DIRECTORY' has written";

// Only whole numbers from 0 to kMost; `good` becomes false for anything else. One that is missing is 0.
uint64_t number(const Json& object, const char* name, bool* good) {
  const Json* at = object.find(name);
  if (!at) return 0;
  if (at->is_number_unsigned() && at->number() <= kMost) return at->number();
  *good = false;
  return 0;
}

std::map<std::string, uint64_t> numbers(const Json& object, const char* name, bool* good) {
  std::map<std::string, uint64_t> all;
  const Json& of = object[name];
  *good &= of.is_object();
  if (!*good) return all;
  for (const auto& [key, value] : of.members()) all[key] = number(of, key.c_str(), good);
  return all;
}

}  // namespace

Result<Counts> counts_of(const Json& report, const std::string& name, Whose whose) {
  const Error bad =
      bad_input(name + ": not a report of 'monarchctl run --report'; name its FILE, or a job's number");
  const bool all = whose == Whose::kAll && report.find("job");
  const Json& of = all ? report["job"] : report;
  if (!of.is_object()) return bad;
  bool good = true;
  Counts c;
  c.tasks = numbers(of, "tasks", &good);
  c.agent = numbers(of, "agent", &good);
  c.opens = number(of, "opens", &good);
  c.opens_tier = number(of, "opens_tier", &good);
  const Json* ended = report.find("ended");
  c.of_run = !ended;
  if (ended) c.agent_died = (*ended)["agent_died"].boolean();
  if (ended && whose == Whose::kAll) c.nodes = std::max<uint64_t>(number(*ended, "nodes", &good), 1);
  if (all) {
    c.nodes = number(of, "nodes", &good);
    c.read_calls_tier = number(of, "read_calls_tier", &good);
    c.read_bytes_tier = number(of, "read_bytes_tier", &good);
    for (const auto& [medium, bytes] : numbers(of, "placed_bytes", &good)) c.placed_bytes += bytes;
  } else {
    for (const Json& tier : report["tiers"].elements()) {
      if (!tier.is_object()) return bad;
      c.read_calls_tier += number(tier, "read_calls", &good);
      c.read_bytes_tier += number(tier, "read_bytes", &good);
      c.placed_bytes += number(tier, "placed_bytes", &good);
    }
  }
  if (!good) return bad;
  return c;
}

Result<std::vector<NodeLine>> nodes_in(const Json& report) {
  const Json& nodes = report["job"]["by_node"];
  return nodes.is_null() ? std::vector<NodeLine>() : node_lines_of(nodes);
}

Result<std::optional<OpenTimes>> open_times_in(const Json& report, Whose whose) {
  const bool all = whose == Whose::kAll && report["job"].is_object();
  const Json* times = (all ? report["job"] : report).find("open_times");
  if (!times) return std::optional<OpenTimes>();
  const Result<OpenTimes> read = open_times_of(*times);
  if (!read.ok()) return read.error();
  return std::optional<OpenTimes>(*read);
}

About about_of(const Json& report) {
  About about;
  if (report["uid"].is_number_unsigned()) about.uid = report["uid"].number();
  for (const Json& dataset : report["datasets"].elements())
    if (dataset.is_string()) about.datasets.push_back(dataset.text());
  return about;
}

namespace {

Result<NodeReport> node_report(const std::string& file) {
  const Result<std::string> text = read_report(file);
  if (!text.ok()) return Error{text.error().code, text.error().text + kNameASaved};
  const Result<Json> report = parse_report(*text, file);
  if (!report.ok()) return report.error();
  NodeReport one;
  bool good = true;
  const Json& ended = (*report)["ended"];
  const auto word = [&](const char* name) {
    good &= ended[name].is_string();
    return ended[name].text();
  };
  if (!ended.find("job")) return bad_input(file + ": it names no node" + kNameASaved);
  one.job = std::to_string(number(ended, "job", &good));
  one.restart = number(ended, "restart", &good);
  one.nodes = number(ended, "nodes", &good);
  one.cluster = word("cluster");
  one.node = word("node");
  if (!good) return bad_input(file + ": it names no node" + kNameASaved);
  Result<Counts> counts = counts_of(*report, file, Whose::kNode);
  if (!counts.ok()) return counts.error();
  one.counts = counts.take();
  one.about = about_of(*report);
  Result<Timeline> timeline = timeline_of(*report);
  if (!timeline.ok()) return bad_input(file + ": " + timeline.error().text + kNameASaved);
  one.timeline = timeline.take();
  const Result<std::optional<OpenTimes>> times = open_times_in(*report, Whose::kNode);
  if (!times.ok()) return bad_input(file + ": " + times.error().text + kNameASaved);
  one.open_times = *times;
  return one;
}

}  // namespace

Result<std::vector<NodeReport>> node_reports(const std::vector<std::string>& files) {
  std::vector<NodeReport> all;
  for (const std::string& file : files) {
    Result<NodeReport> read = node_report(file);
    if (!read.ok()) return read.error();
    for (const NodeReport& other : all) {
      if (other.job != read->job || other.cluster != read->cluster || other.restart != read->restart)
        return bad_input(file + " is of another job, or of another run of it, than " + files.front());
      if (other.node == read->node)
        return bad_input(file + ": node " + escaped(other.node) + " has been named before");
    }
    all.push_back(read.take());
  }
  std::sort(all.begin(), all.end(), [](const NodeReport& a, const NodeReport& b) {
    return ::strverscmp(a.node.c_str(), b.node.c_str()) < 0;
  });
  return all;
}

}  // namespace monarch::admin
