// SPDX-License-Identifier: Apache-2.0
// monarchctl report: what a job read from where, what that spared the PFS, and one line of advice.
#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "admin/advice.h"
#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/job_text.h"
#include "admin/jobs.h"
#include "admin/output.h"
#include "admin/page.h"
#include "admin/reports.h"
#include "admin/slurm_facts.h"
#include "admin/timeline.h"
#include "build_config.h"
#include "runtime/base/escape.h"
#include "runtime/base/fd.h"
#include "runtime/base/replace_file.h"
#include "runtime/base/size.h"

namespace monarch::admin {
namespace {
using Rows = std::vector<std::vector<std::string>>;

struct ReportOptions {
  std::string what, state_dir, html, save;
  std::vector<std::string> all;  // several files, the first of which is `what`
  bool as_json = false;
};

// ---- what is printed

struct Source {
  const char* kind;  // file, job, kept or sacct
  std::string name, state;
  std::string cluster = {};  // empty: not known, or of none
};

std::string title_of(const Source& source) {
  return source.name + (source.cluster.empty() ? "" : " of cluster " + source.cluster) +
         (source.state.empty() ? "" : " (" + source.state + ")");
}

// What is known of a job.
struct Shown : Told {
  Source source;
  std::vector<Told> reports = {};  // of several nodes, if these were named: `counts` is their sum
};

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole);
}
// How much less than without Monarch; below 0: more.
double spared(uint64_t with_monarch, uint64_t without) {
  return without == 0 ? 0 : 100 - share(with_monarch, without);
}

// How often the dataset was read, and what can be spared at most of f of it that is placed, in percent: all
// but the first time. Nothing: how large it is, is not known, as of several nodes, of which each counts it.
struct Bound {
  double epochs, percent;
};
std::optional<Bound> bound_of(const Counts& c) {
  const uint64_t all = c.dataset().bytes;
  if (c.nodes > 1 || all == 0 || c.bytes_read() == 0) return {};
  const double epochs = static_cast<double>(c.bytes_read()) / static_cast<double>(all);
  const double placed = std::min(1.0, static_cast<double>(c.placed()) / static_cast<double>(all));
  return Bound{epochs, epochs > 1 ? 100 * placed * (epochs - 1) / epochs : 0};
}

Json seconds_or_null(uint64_t ms) { return ms == 0 ? Json() : Json(static_cast<double>(ms) / 1000); }

// Opens on the PFS by why.
Json fallbacks_of(const Counts& c) {
  Json all = Json::object();
  for (const Fallback& f : kFallbacks) all[f.name] = c[f.counter];
  return all;
}

uint64_t all_nodes(const Shown& told) {
  return told.reports.empty() ? told.counts.nodes : told.reports[0].counts.nodes;
}

// Of how many nodes the numbers are. Of a job of several the first one alone knows the others'.
uint64_t nodes_told(const Shown& told) {
  if (!told.reports.empty()) return told.reports.size();
  if (!told.nodes.empty()) return told_count(told.nodes);
  const Counts &all = told.counts, &own = told.own;
  return all.opens == own.opens && all.placed() == own.placed() ? 1 : all.nodes;
}

// "": of the one that there is.
std::string nodes_text(const Shown& told) {
  const uint64_t all = all_nodes(told), some = nodes_told(told);
  if (all <= 1) return "";
  if (some == 1 && told.reports.empty())
    return (told.node.empty() ? "this node" : told.node) + " only, of " + std::to_string(all) + " nodes";
  return (some < all ? std::to_string(some) + " of " : "") + std::to_string(all) + " nodes";
}

// With the files that were listed and not looked at, as staging_text() has them.
Counts::Dataset dataset_of(const Shown& told) {
  Counts::Dataset all = told.counts.dataset();
  const Series& series = told.timeline.series;
  const uint64_t listed = series.count > 0 ? series.samples[series.count - 1].dataset_bytes : 0;
  if (all_nodes(told) <= 1 && listed > all.bytes) all = {listed, all.no_room, true};
  return all;
}

// This node's. Nobody counts the processes that read, and reads are not timed: so opens are held against the
// time that there was, threads added up, and of reads it is told when there were any. Nothing: too little is
// known, as where tasks began before they were counted.
struct IoTime {
  double opens, work, pfs_reads;  // seconds
};
std::optional<IoTime> io_time(const Shown& told) {
  const AtWork work = at_work(told.timeline.series);
  if (!told.has_open_times || work.ms == 0 || told.own[AgentCounter::late_nodes] > 0) return {};
  const uint64_t waited = std::min(told.own[TaskCounter::waited_hits], told.own.opens_tier);
  const double ns =
      spent_ns(told.own.open_times, told.own.opens_tier - waited, told.own[TaskCounter::wait_ns]);
  return IoTime{ns / 1e9, static_cast<double>(work.ms) / 1000, static_cast<double>(work.pfs_ms) / 1000};
}

// How much less would have been read from the PFS, at least, had each byte come from there once, and all else
// from tiers. Nothing: as of bound_of().
std::optional<double> perfect_order(const Shown& told) {
  const uint64_t once = dataset_of(told).bytes, pfs = told.counts.bytes_pfs();
  if (all_nodes(told) > 1 || once == 0 || pfs == 0) return {};
  return spared(std::min(once, pfs), pfs);
}

Json to_json(const Shown& told, const Advice& advice) {
  const Source& source = told.source;
  const Counts& c = told.counts;
  const Series& series = told.timeline.series;
  const std::optional<Bound> bound = bound_of(c);
  const Rates most = peaks_of(told.timeline);
  const std::optional<uint64_t> quiet = pfs_quiet_ms(told.timeline);
  const std::optional<IoTime> io = io_time(told);
  const auto rate = [&](double value) {
    return series.count == 0 ? Json() : Json(static_cast<uint64_t>(value));
  };
  return {
      {"version", PACKAGE_VERSION},
      {"source", source.kind},
      {"name", source.name},
      {"cluster", or_null(source.cluster)},
      {"state", or_null(source.state)},
      {"nodes", all_nodes(told)},
      {"nodes_told", nodes_told(told)},
      {"node", or_null(told.node)},
      {"opens", c.opens},
      {"opens_tier", c.opens_tier},
      {"waited_hits", c[TaskCounter::waited_hits]},
      {"hit", share(c.opens_tier, c.opens) / 100},
      {"bytes_read", c.bytes_read()},
      {"bytes_tier", c.read_bytes_tier},
      {"bytes_pfs", c.bytes_pfs()},
      {"bytes_peers", c[AgentCounter::peer_bytes]},
      {"calls", c.calls()},
      {"calls_pfs", c.calls_pfs()},
      {"opens_pfs", c.opens_pfs()},
      {"fallbacks", fallbacks_of(c)},
      {"meta_pfs", c[TaskCounter::meta_pfs]},
      {"meta_served", c[TaskCounter::meta_served]},
      {"dataset_bytes", dataset_of(told).bytes},
      {"dataset_estimated", dataset_of(told).estimated},
      {"placed_bytes", c.placed()},
      {"epochs", bound ? Json(bound->epochs) : Json()},
      {"spared_percent", spared(c.bytes_pfs(), c.bytes_read())},
      {"bound_percent", bound ? Json(bound->percent) : Json()},
      {"perfect_order_percent", perfect_order(told)},
      {"open_seconds", io ? Json(io->opens) : Json()},
      {"pfs_read_seconds", io ? Json(io->pfs_reads) : Json()},
      {"work_seconds", io ? Json(io->work) : Json()},
      {"samples", series.count},
      {"staged_seconds", seconds_or_null(series.whole_ms)},
      {"settled_seconds", seconds_or_null(series.settled_ms)},
      {"pfs_quiet_seconds", quiet ? Json(static_cast<double>(*quiet) / 1000) : Json()},
      {"open_times", told.has_open_times ? open_times_told(c.open_times) : Json()},
      {"by_node", told.nodes.empty() ? Json() : by_node(told.nodes)},
      {"most_per_second",
       {{"from_pfs", rate(most.pfs)}, {"from_tiers", rate(most.tiers)}, {"from_peers", rate(most.peers)}}},
      {"rule", advice.rule},
      {"advice", advice.text}};
}

std::string rounded(double value) { return fmt::format("{:.1f}", value); }

// "1.2G instead of 3.6G: 66.7% less"
std::string instead(const std::string& now, const std::string& else_, double percent) {
  if (else_ == "0") return now + "; nothing was read through Monarch";
  return fmt::format("{} instead of {}: {:.1f}% {}", now, else_, std::abs(percent),
                     percent < 0 ? "more" : "less");
}
std::string instead(uint64_t now, uint64_t else_) {
  return instead(std::to_string(now), std::to_string(else_), spared(now, else_));
}

// How long it took until the dataset was staged.
std::string staging_text(const Timeline& timeline) {
  const Series& s = timeline.series;
  if (s.whole_ms > 0) return "fully staged after " + time_text(s.whole_ms / 1000);
  const std::optional<double> staged = s.count > 0 ? staged_at(timeline, s.count - 1) : std::nullopt;
  // Of a file that could not be read nobody knows the size.
  const std::string part = staged ? rounded(std::min(*staged, 99.9)) + "% staged" : "";
  if (s.settled_ms > 0)
    return "nothing was left to stage ahead after " + time_text(s.settled_ms / 1000) +
           (part.empty() ? "" : ", " + part);
  if (staged && *staged >= 100) return "fully staged by the end";
  return "not fully staged" + (part.empty() ? "" : ", " + part);
}

void print_times(const Timeline& timeline) {
  if (timeline.series.count == 0) return;
  print_fact("Staging", staging_text(timeline));
  const Rates most = peaks_of(timeline);
  const auto rate = [](double value) { return format_size(static_cast<uint64_t>(value)) + "/s"; };
  print_fact("Peak rates", rate(most.pfs) + " from the PFS, " + rate(most.tiers) + " from tiers" +
                               (most.peers > 0 ? ", " + rate(most.peers) + " from other nodes" : ""));
  if (const std::optional<uint64_t> quiet = pfs_quiet_ms(timeline))
    print_fact("", "the PFS was read for " + time_text(*quiet / 1000) + " of " +
                       time_text(timeline.end_ms() / 1000));
}

void print_open_times(const OpenTimes& times) {
  const char* what = "Open times";
  for (const OpenKind kind : kAllOpenKinds) {
    if (timed(times, kind) == 0) continue;
    print_fact(
        what,
        std::string(kind_text(kind)) + ": " + opens_took(times, kind) +
            (kind == OpenKind::kTier ? " (about one of " + std::to_string(kOneTimedOf) + " was timed)" : ""));
    what = "";
  }
}

std::string about_percent(double part, double whole) { return "~" + rounded(100 * part / whole) + "%"; }

std::string io_text(const Shown& told) {
  const std::optional<IoTime> io = io_time(told);
  const double less = perfect_order(told).value_or(0);
  std::string time, spare;
  if (io)
    time = fmt::format("{} of {}{} in opens, all threads together; programs read from the PFS in {} at most",
                       about_percent(io->opens, io->work), span_text(static_cast<uint64_t>(1000 * io->work)),
                       told.counts.nodes > 1 ? " on this node" : "", about_percent(io->pfs_reads, io->work));
  if (less >= 0.1)
    spare = fmt::format("each byte once from the PFS would be {}{:.1f}% less",
                        dataset_of(told).estimated ? "~" : "", less);
  return time + (time.empty() || spare.empty() ? "" : "; ") + spare;
}

std::vector<std::string> row_of(const std::string& name, const Counts& c) {
  return {name,
          std::to_string(c.opens),
          rounded(share(c.opens_tier, c.opens)) + "%",
          format_size(c.bytes_pfs()),
          format_size(c.read_bytes_tier),
          format_size(c[AgentCounter::peer_bytes]),
          format_size(c.placed())};
}

Rows headings() { return {{"", "Opens", "of copies", "from the PFS", "from tiers", "from nodes", "Placed"}}; }

Rows rows_of(const std::vector<Told>& reports, const Counts& all) {
  Rows rows = headings();
  for (const Told& one : reports) rows.push_back(row_of(one.node, one.own));
  rows.push_back(row_of("all", all));
  return rows;
}

void print(const Shown& told, const Advice& advice) {
  const Source& source = told.source;
  const Counts& c = told.counts;
  const std::string nodes = nodes_text(told);
  print_fact("Job", escaped(title_of(source) + (nodes.empty() ? "" : ", " + nodes)));
  print_fact("Opens", fmt::format("{}, of a tier's copy {} ({:.1f}%){}", c.opens, c.opens_tier,
                                  share(c.opens_tier, c.opens),
                                  c[TaskCounter::waited_hits] > 0 ? fmt::format(", of which {} waited for it",
                                                                                c[TaskCounter::waited_hits])
                                                                  : ""));
  print_fact("Read", format_size(c.bytes_read()) + ": " + format_size(c.read_bytes_tier) + " from tiers, " +
                         format_size(c[TaskCounter::read_bytes_pfs]) + " from the PFS");
  const Counts::Dataset all = dataset_of(told);
  print_fact("Staged", format_size(c.placed()) + " placed" +
                           (all.bytes == 0 ? ""
                                           : " of " + (all.estimated ? "about " + format_size(all.bytes)
                                                                     : format_size(all.bytes) + " known")) +
                           "; " + format_size(c[AgentCounter::agent_bytes_pfs]) + " from the PFS" +
                           (c[AgentCounter::peer_bytes] > 0
                                ? ", " + format_size(c[AgentCounter::peer_bytes]) + " from other nodes"
                                : ""));
  print_fact("PFS bytes", instead(format_size(c.bytes_pfs()), format_size(c.bytes_read()),
                                  spared(c.bytes_pfs(), c.bytes_read())));
  if (const std::optional<Bound> bound = bound_of(c))
    print_fact("",
               fmt::format(
                   "the dataset was read {:.1f} times; with what is placed, f(E-1)/E = {:.1f}% can be spared",
                   bound->epochs, bound->percent));
  if (const uint64_t late = c[AgentCounter::late_nodes]; late > 0)
    print_fact(
        "", "what tasks of " + counted(late, "node") + " read before their agent was ready is not counted");
  print_fact("PFS reads", instead(c.calls_pfs(), c.calls()));
  print_fact("PFS opens", instead(c.opens_pfs(), c.opens) + ", listings included");
  const uint64_t meta = c[TaskCounter::meta_served] + c[TaskCounter::meta_pfs];
  if (meta > 0) print_fact("PFS stats", instead(c[TaskCounter::meta_pfs], meta));
  print_times(told.timeline);
  print_open_times(c.open_times);
  if (const std::string io = io_text(told); !io.empty()) print_fact("I/O", io);
  if (!advice.text.empty()) print_fact("Advice", paint(Colour::kDoubtful, escaped(advice.text)));
  if (told.nodes.empty() && told.reports.empty()) return;
  std::puts("");
  print_table(told.reports.empty() ? node_rows(told.nodes, c.nodes) : rows_of(told.reports, c));
}

// ---- the page

Counts without(const Counts& all, const Counts& node) {
  Counts rest;
  for (uint32_t i = 0; i < kTaskCounters; ++i) rest.task[i] = sub_sat(all.task[i], node.task[i]);
  for (uint32_t i = 0; i < kAgentCounters; ++i) rest.agent[i] = sub_sat(all.agent[i], node.agent[i]);
  rest.opens = sub_sat(all.opens, node.opens);
  rest.opens_tier = sub_sat(all.opens_tier, node.opens_tier);
  rest.read_bytes_tier = sub_sat(all.read_bytes_tier, node.read_bytes_tier);
  rest.placed_bytes[0] = sub_sat(all.placed(), node.placed());
  return rest;
}

// "/lustre/x, 2 nodes, of ada, 2026-05-01 12:00, 0:10:00 long": what is known of it.
std::string about_text(const Shown& told) {
  const Timeline& timeline = told.reports.empty() ? told.timeline : told.reports[0].timeline;
  std::vector<std::string> parts = told.datasets;
  const std::string nodes = nodes_text(told);
  parts.push_back(nodes.empty() ? "1 node" : nodes);
  if (told.uid) parts.push_back("of " + user_name(static_cast<uid_t>(*told.uid)));
  const auto began = static_cast<time_t>(timeline.series.began);
  tm local = {};
  char date[32];
  if (began > 0 && ::localtime_r(&began, &local) && std::strftime(date, sizeof date, "%F %H:%M", &local) > 0)
    parts.push_back(date);
  uint64_t end_ms = timeline.end_ms();
  for (const Told& one : told.reports) end_ms = std::max(end_ms, one.timeline.end_ms());
  if (timeline.series.count > 0) parts.push_back(span_text(end_ms) + " long");
  if (told.source.state.empty()) parts.push_back("ended");
  if (told.counts[AgentCounter::late_nodes] > 0) parts.push_back("not all of it counted");
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ", ") + part;
  return text;
}

PageOf::Fact staged_fact(const Shown& told) {
  const Counts::Dataset all = dataset_of(told);
  const uint64_t placed = told.counts.placed();
  if (all.bytes == 0) return {"Dataset staged", format_size(placed), ""};
  return {"Dataset staged", rounded(std::min(share(placed, all.bytes), 100.0)) + "%",
          format_size(placed) + " of " + (all.estimated ? "about " : "") + format_size(all.bytes)};
}

void add_staging_time(const Shown& told, PageOf* page) {
  const Series& s = told.timeline.series;
  const uint64_t ms = s.whole_ms > 0 ? s.whole_ms : s.settled_ms;
  if (ms == 0) return;
  const std::string text = s.whole_ms > 0 ? "until all was staged" : "until nothing was left to stage";
  page->facts.push_back(
      {"Staging time", span_text(ms), text + (page->several_nodes ? ", on this node" : "")});
}

std::string page_text(const Shown& told, const Advice& advice) {
  const Counts& c = told.counts;
  PageOf page;
  page.title = "Job " + title_of(told.source);
  page.about = about_text(told);
  page.advice = advice.text;
  page.several_nodes = c.nodes > 1;
  const double less = spared(c.bytes_pfs(), c.bytes_read());
  const std::optional<IoTime> io = io_time(told);
  page.facts = {
      {less < 0 ? "More than without Monarch" : "Spared the PFS", rounded(less < 0 ? -less : less) + "%",
       "of the bytes read"},
      {"Read from the PFS", format_size(c.bytes_pfs()), "instead of " + format_size(c.bytes_read())},
      staged_fact(told),
      {"Opens of a tier's copy", rounded(share(c.opens_tier, c.opens)) + "%",
       "of " + std::to_string(c.opens) +
           (io && !page.several_nodes ? "; opens took " + about_percent(io->opens, io->work) + " of the time"
                                      : "")}};
  if (told.reports.empty()) add_staging_time(told, &page);
  if (!told.reports.empty()) {
    page.nodes = rows_of(told.reports, c);
    return page_of(page, told.reports);
  }
  if (!told.nodes.empty()) {
    page.nodes = node_rows(told.nodes, c.nodes);
    return page_of(page, {told});
  }
  page.nodes = headings();
  page.nodes.push_back(row_of(c.nodes > 1 ? "this node" : "the node", told.own));
  if (nodes_told(told) > 1) {
    page.nodes.push_back(row_of("the others", without(c, told.own)));
    page.nodes.push_back(row_of("all", c));
  }
  return page_of(page, {told});
}

Advice advise_on(Shown* told) {
  told->counts.running = std::string_view(told->source.kind) == "job";
  told->counts.partial = nodes_told(*told) < all_nodes(*told);
  return advise(told->counts);
}

int tell(const ReportOptions& options, Shown told) {
  const Advice advice = advise_on(&told);
  if (!options.html.empty()) {
    if (const Status written = write_page(options.html, page_text(told, advice)); !written.ok())
      return fail("report", written.error().text + "; name a file that you can write");
    if (options.html == "-") return 0;
  }
  if (options.as_json)
    print_json(to_json(told, advice));
  else
    print(told, advice);
  return 0;
}

int tell_report(const ReportOptions& options, const Source& source, const std::string& text,
                const std::string& name) {
  Result<Told> told = told_by(text, name);
  return told.ok() ? tell(options, {told.take(), source}) : fail("report", told.error());
}

int tell_job(const ReportOptions& options, const Job& job) {
  Result<Told> read = told_by(live_report(job));
  if (!read.ok()) return fail("report", read.error());
  Shown told{read.take(), {"job", job.id, looks_of(job.state).name, job.cluster}};
  told.counts.of_run = is_run(job.id);
  told.counts.nodes = nodes_in(job);
  told.timeline.series = series_of(job);
  told.nodes = nodes_of(job);
  told.node = job.node;
  if (is_users(job)) told.uid = job.uid;
  return tell(options, std::move(told));
}

// ---- reports of several nodes

int tell_reports(const ReportOptions& options) {
  Result<std::vector<Told>> reports = told_by_nodes(options.all);
  if (!reports.ok()) return fail("report", reports.error());
  Shown told;
  told.reports = reports.take();
  const Told& first = told.reports[0];
  told.source = {"files", std::to_string(first.job), "ended", first.cluster};
  told.counts.nodes = told.reports.size();
  told.uid = first.uid;
  told.datasets = first.datasets;
  for (const Told& one : told.reports) {
    add(&told.counts, one.own);
    told.counts.opens += one.own.opens;
    told.counts.agent_died |= one.own.agent_died;
    told.has_open_times |= one.has_open_times;
  }
  return tell(options, std::move(told));
}

// A copy in a directory, by the name that it has. Others may write there, and root may be who saves.
int save(const ReportOptions& options, const std::string& path, const std::string& text) {
  std::error_code unknown;
  if (!std::filesystem::is_directory(options.save, unknown))
    return fail("report", "--save " + options.save + ": no directory; make it first");
  const std::string name = path.substr(path.rfind('/') + 1);
  const Fd at(::open(options.save.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Status written = replace_file(at.get(), name, text.data(), text.size(), 0666);
  if (!written.ok())
    return fail("report", "write " + options.save + "/" + written.error().text +
                              "; name a directory that you can write to");
  return 0;
}

// ---- sacct's line

// What monarch(7) documents, by key; empty: it is none.
std::vector<std::pair<std::string, std::string>> parse_comment(const std::string& comment) {
  std::vector<std::pair<std::string, std::string>> fields;
  const size_t at = comment.find("monarch=1");
  if (at == std::string::npos) return fields;
  std::istringstream words(comment.substr(at));
  for (std::string word; words >> word;)
    if (const size_t is = word.find('='); is != std::string::npos)
      fields.emplace_back(word.substr(0, is), word.substr(is + 1));
  return fields;
}

Advice advise_by_line(const std::vector<std::pair<std::string, std::string>>& fields) {
  const auto value = [&](const char* key) {
    for (const auto& [name, text] : fields)
      if (name == key) return text;
    return std::string();
  };
  if (value("agent") == "died") return {"agent-died", kAgentDiedText};
  const bool is_late = !value("late").empty();
  if (value("counters") == "lost" && is_late) return {"late", kLateText};
  if (value("counters") == "lost")
    return {"counters-lost", "its counters were lost: the agent's log and root's helpers' tell"};
  const double hit = std::strtod(value("hit").c_str(), nullptr),
               staged = std::strtod(value("staged").c_str(), nullptr);
  if (!value("err").empty() && value("err") != "0")
    return {"errors", value("err") + (value("err") == "1" ? " error" : " errors") +
                          " inside Monarch, which the job did not see: root's log tells; is a tier's "
                          "device failing?"};
  if (value("pfs").rfind("0/0", 0) == 0)
    return {
        "nothing-attached",
        "no program read a file of the dataset through Monarch: does the job read the path that was given?"};
  const std::string nodes = value("nodes");  // A/B, of which each may hold a part
  const bool is_alone = nodes.empty() || nodes.ends_with("/1");
  if (staged < 100 && is_alone)
    return {"not-staged", "only " + value("staged") + " of the " +
                              (value("files").empty() ? "files were" : "dataset was") +
                              " placed: the tiers were full, or the job was short; "
                              "'monarchctl status' tells which while a job runs"};
  if (hit < 50 && is_late) return {"late", kLateText};
  if (hit < 50)
    return {
        "few-hits",
        "most opens waited or went to the PFS: the files were read about once, or before they were staged"};
  return {"good", ""};
}

int tell_line(const ReportOptions& options, const std::string& state, const std::string& comment) {
  if (!options.html.empty())
    return fail(
        "report",
        "there is no more of job " + options.what +
            " here than its line in sacct, of which no page can be made; its report is kept on the "
            "nodes that it ran on, for report_days (monarch.conf(5)): 'srun -w NODE monarchctl report "
            "--html " +
            options.html + " " + options.what + "'");
  const std::vector<std::pair<std::string, std::string>> fields = parse_comment(comment);
  if (fields.empty())
    return fail("report", "job " + options.what + " (" + state +
                              ") has no line of Monarch's in sacct: it ran without, has not ended, "
                              "or its line waits on the node (monarchctl flush)");
  const Advice advice = advise_by_line(fields);
  if (options.as_json) {
    Json told = Json::object();
    for (const auto& [key, value] : fields) told[key] = value;
    print_json({{"version", PACKAGE_VERSION},
                {"source", "sacct"},
                {"name", options.what},
                {"state", state},
                {"line", told},
                {"rule", advice.rule},
                {"advice", advice.text}});
    return 0;
  }
  print_fact("Job", options.what + " (" + escaped(state) + "), by its line in sacct");
  constexpr struct {
    const char *key, *text;
  } kTexts[] = {{"hit", "Hits"},      {"pfs", "PFS bytes"}, {"ops", "PFS reads"}, {"meta", "PFS opens"},
                {"staged", "Staged"}, {"files", "Files"},   {"peer", "Peers"},    {"nodes", "Nodes"},
                {"err", "Errors"},    {"late", "Late"},     {"dup", "Twice"},     {"agent", "Agent"}};
  for (const auto& [key, value] : fields) {
    const auto* known = std::find_if(std::begin(kTexts), std::end(kTexts),
                                     [&, &k = key](const auto& t) { return k == t.key; });
    if (key != "monarch")
      print_fact(known == std::end(kTexts) ? escaped(key).c_str() : known->text, escaped(value));
  }
  if (!advice.text.empty()) print_fact("Advice", paint(Colour::kDoubtful, escaped(advice.text)));
  return 0;
}

// Slurm numbers the elements of an array, and the components of a heterogeneous job, together too: then there
// is a line of each.
std::vector<std::string> rows_of(const std::string& said, const std::string& number) {
  std::vector<std::string> rows;
  std::istringstream in(said);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(number)) rows.push_back(line);
  return rows;
}

int report_of_sacct(const ReportOptions& options) {
  const auto refuse = [&](const std::string& sacct) {
    return fail("report",
                "job " + options.what + " is not on this node, and sacct " + sacct +
                    "; name a job with Monarch on this node ('monarchctl status'), one that sacct has, or a "
                    "file of 'monarchctl run --report'");
  };
  const Result<std::string> answer = ask_sacct(options.what, "JobID,State,SystemComment");
  if (!answer.ok()) return refuse("failed (" + answer.error().text + ")");
  const std::vector<std::string> rows = rows_of(*answer, options.what.substr(0, options.what.find('@')));
  if (rows.empty()) return refuse("does not know it");
  const size_t name_end = rows[0].find('|'), state_end = rows[0].find('|', name_end + 1);
  if (rows.size() > 1)
    return fail("report",
                "job " + options.what + " has " + std::to_string(rows.size()) +
                    " parts, such as an array's elements; name one: " + rows[0].substr(0, name_end));
  if (state_end == std::string::npos) return refuse("says " + rows[0]);
  return tell_line(options, rows[0].substr(name_end + 1, state_end - name_end - 1),
                   rows[0].substr(state_end + 1));
}

constexpr char kSavesEnded[] =
    ": --save copies what a node keeps of a job that has ended; run it there, as the job's owner or as root";

int report_of_file(const ReportOptions& options) {
  std::error_code unknown;
  for (const std::string& file : options.all)
    if (std::filesystem::equivalent(options.html, file, unknown))
      return fail("report", "--html " + options.html + " would overwrite the report; name another file"),
             kUsage;
  if (!options.save.empty()) return fail("report", options.what + " is a file" + kSavesEnded), kUsage;
  if (options.all.size() > 1) return tell_reports(options);
  if (options.what.empty()) return fail("report", "which one?" + std::string(kNameAReport)), kUsage;
  const Result<std::string> text = read_text(options.what);
  if (!text.ok()) return fail("report", text.error().text + kNameAReport);
  return tell_report(options, {"file", options.what, ""}, *text, options.what);
}

int report_verb(const ReportOptions& options) {
  if (options.all.size() > 1 && std::any_of(options.all.begin(), options.all.end(), names_job))
    return fail("report",
                "name one job, or the files of its nodes that 'monarchctl report JOBID --save "
                "DIRECTORY' has written there"),
           kUsage;
  if (!names_job(options.what)) return report_of_file(options);
  const Result<std::vector<Job>> jobs = find_jobs(options.state_dir);
  if (!jobs.ok()) return fail("report", jobs.error());
  const std::string name = by_own_number(options.what);
  const std::vector<Kept> kept = kept_reports(options.state_dir, name);
  std::set<std::string> clusters;
  for (const Job& job : *jobs)
    if (is_named(job, name)) clusters.insert(job.cluster);
  for (const Kept& one : kept) clusters.insert(one.cluster);
  if (const Status one = check_one(name, clusters); !one.ok()) return fail("report", one.error());
  if (name == options.what && !clusters.empty() && !is_run(name))
    if (const std::vector<JobPart> parts = parts_of(name); parts.size() > 1)
      return fail("report", "job " + name + " has " + std::to_string(parts.size()) +
                                " parts; name one: " + names_of(parts));
  const Job* untold = nullptr;
  for (const Job& job : *jobs) {
    if (!is_named(job, name)) continue;
    untold = &job;
    if (!options.save.empty())
      return fail("report",
                  "job " + options.what + " is " + looks_of(job.state).name + " here" + kSavesEnded);
    if (job.status) return tell_job(options, job);
  }
  if (!kept.empty()) {
    const Result<std::string> text = read_text(kept[0].path);
    if (!text.ok()) return fail("report", with_remedy(text.error(), "run it once more, or as root"));
    const std::string id = options.what.substr(0, options.what.find('@'));
    if (!options.save.empty())
      if (const int status = save(options, kept[0].path, *text); status != 0) return status;
    return tell_report(options, {"kept", id, "ended", kept[0].cluster}, *text, kept[0].path);
  }
  if (untold && untold->state != JobState::kPending && untold->state != JobState::kTeardown)
    return fail("report", "job " + options.what + " is " + looks_of(untold->state).name + " here" +
                              (untold->reason.empty() ? "" : ": " + untold->reason) +
                              "; there is nothing to tell of it yet");
  if (is_run(options.what))
    return fail("report",
                no_job_text(options.what) +
                    "; name one that 'monarchctl status' lists, or a file of 'monarchctl run --report'");
  if (!options.save.empty())
    return fail("report", "job " + options.what + " is not on this node" + kSavesEnded);
  return report_of_sacct(options);
}

}  // namespace

int report_of_kept(const std::string& name, const std::string& state_dir) {
  ReportOptions options;
  options.what = name;
  options.state_dir = state_dir;
  return report_verb(options);
}

Result<Json> json_of_kept(const std::string& name, const Kept& kept) {
  const Result<std::string> text = read_text(kept.path);
  if (!text.ok()) return text.error();
  Result<Told> read = told_by(*text, kept.path);
  if (!read.ok()) return read.error();
  Shown told{read.take(), {"kept", name, "ended", kept.cluster}};
  const Advice advice = advise_on(&told);
  return to_json(told, advice);
}

void add_report(CommandLine app, int* status) {
  auto options = std::make_shared<ReportOptions>();
  app.add_option("FILE|JOBID", options->all,
                 "a file of 'monarchctl run --report', - for standard input; or a job: on this node, one "
                 "that has ended here, or one that sacct has; a number is a job, ./4711 a file; or files of "
                 "several nodes that --save has written")
      .required();
  app.add_flag("--json", options->as_json, "print every field as JSON; sizes in bytes");
  app.add_option("--html", options->html,
                 "also write a page for a browser, with pictures over time; - for standard output alone")
      .option_text("FILE");
  app.add_option("--save", options->save,
                 "also copy what this node keeps of the job, which has ended, for a page of all nodes")
      .option_text("DIRECTORY");
  add_state_dir(app, &options->state_dir);
  app.footer("Exit status: 0 if there is a report, 1 if there is none, 2 for wrong usage.");
  app.callback([options, status] {
    options->what = options->all[0];
    *status = report_verb(*options);
  });
}

}  // namespace monarch::admin
