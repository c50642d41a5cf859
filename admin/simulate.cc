// SPDX-License-Identifier: Apache-2.0
// monarchctl simulate: how long a training job takes with each policy of reading, by a model of the machine.
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "admin/commands.h"
#include "admin/jobs.h"
#include "admin/reports.h"
#include "admin/output.h"
#include "admin/page.h"
#include "build_config.h"
#include "runtime/base/paths.h"
#include "runtime/base/size.h"
#include "runtime/config/values.h"
#include "simulate/accesses.h"
#include "simulate/run.h"
#include "simulate/settings.h"

namespace monarch::admin {
namespace {

using simulate::Outcome;
using simulate::Policy;
using simulate::Settings;

struct SimulateOptions {
  std::string machine, dataset, compat = "none", svg;
  std::vector<std::string> policies, sweeps;
  bool json = false;
};

struct Sweep {
  std::string key;
  std::vector<std::string> values;
};

// All policies with one value of each sweep.
struct Runs {
  std::vector<std::string> values;  // of the sweeps, in their order
  std::vector<std::string> sources;
  double bound = 0;  // seconds in which no sample is waited for
  std::vector<std::pair<const Policy*, Outcome>> outcomes;
};

// The samples' names, for a kind of them ("machines").
std::string known_samples(const std::string& dir) {
  std::string text;
  for (const std::string& name : names_in(dir))
    if (name.ends_with(".ini")) text += (text.empty() ? "" : ", ") + name.substr(0, name.size() - 4);
  return text.empty() ? "name an INI file" : "name an INI file, or one of " + text;
}

Status load(const std::string& name, const std::string& kind, Settings* settings) {
  std::string file = name;
  if (name.find('/') == std::string::npos && !name.ends_with(".ini")) {
    const std::string dir = part_of_monarch(("simulate/" + kind).c_str(), "share/monarch", PKGDATADIR);
    file = dir + "/" + name + ".ini";
    if (::access(file.c_str(), F_OK) != 0)
      return bad_input("there is no '" + name + "' in " + dir + "; " + known_samples(dir));
  }
  const Result<std::string> text = read_text(file);
  if (!text.ok()) return with_remedy(text.error(), "name an INI file that you can read");
  return simulate::read_settings(file, *text, settings);
}

Result<std::vector<Sweep>> parse_sweeps(const std::vector<std::string>& words) {
  std::vector<Sweep> sweeps;
  for (const std::string& word : words) {
    const size_t is = std::min(word.find('='), word.size());
    Sweep sweep = {word.substr(0, is), split_list(word.substr(std::min(is + 1, word.size())), ',')};
    if (sweep.values.empty())
      return bad_input("--sweep " + word +
                       " is not SECTION.KEY=VALUE,...; write for example machine.nodes=2,4,8");
    sweeps.push_back(std::move(sweep));
  }
  return sweeps;
}

std::vector<std::string> policy_names() {
  std::vector<std::string> names;
  for (const Policy& policy : simulate::policies()) names.emplace_back(policy.name);
  return names;
}

Result<Runs> run_once(Settings settings, const std::vector<Sweep>& sweeps, const std::vector<size_t>& at,
                      const SimulateOptions& options) {
  const auto compat = options.compat == "nopfs" ? simulate::Compat::kNopfs : simulate::Compat::kNone;
  Runs runs;
  for (size_t i = 0; i < sweeps.size(); ++i) {
    runs.values.push_back(sweeps[i].values[at[i]]);
    const Status changed = simulate::change_setting(sweeps[i].key, runs.values[i], &settings);
    if (!changed.ok()) return bad_input("--sweep " + sweeps[i].key + ": " + changed.error().text);
  }
  MONARCH_TRY(simulate::complete(&settings));
  const simulate::Machine& machine = settings.machine;
  for (const simulate::Tier& tier : machine.tiers) runs.sources.push_back(tier.name);
  runs.sources.insert(runs.sources.end(), {"peers", "pfs"});
  const simulate::Accesses accesses(settings.dataset, machine.nodes);
  runs.bound = simulate::run(machine, accesses, *simulate::find_policy("perfect"), compat).seconds;
  for (const std::string& name : options.policies.empty() ? policy_names() : options.policies) {
    const Policy* policy = simulate::find_policy(name);
    runs.outcomes.emplace_back(policy, simulate::run(machine, accesses, *policy, compat));
  }
  return runs;
}

// Each combination of the sweeps' values, the last sweep's first.
Result<std::vector<Runs>> run_all(const SimulateOptions& options, const Settings& settings,
                                  const std::vector<Sweep>& sweeps) {
  std::vector<Runs> all;
  std::vector<size_t> at(sweeps.size());
  for (;;) {
    Result<Runs> runs = run_once(settings, sweeps, at, options);
    if (!runs.ok()) return runs.error();
    all.push_back(runs.take());
    size_t i = sweeps.size();
    while (i > 0 && ++at[i - 1] == sweeps[i - 1].values.size()) at[--i] = 0;
    if (i == 0) return all;
  }
}

std::string text_of(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }
std::string seconds_text(double seconds) { return text_of(seconds, seconds < 100 ? 2 : 0); }

double sum(const std::vector<double>& values) {
  double all = 0;
  for (const double value : values) all += value;
  return all;
}

std::string note_on(const Outcome& outcome) {
  if (!outcome.refusal.empty()) return outcome.refusal;
  return outcome.coverage < 0.9995 ? "reads " + text_of(100 * outcome.coverage, 1) + "% of the samples" : "-";
}

std::vector<std::string> row_of(const Runs& runs, const Policy& policy, const Outcome& outcome) {
  std::vector<std::string> row = runs.values;
  row.emplace_back(policy.name);
  if (!outcome.refusal.empty()) {
    row.resize(row.size() + 8, "-");
  } else {
    const double read = sum(outcome.read), peers = outcome.read[outcome.read.size() - 2],
                 pfs = outcome.read.back();
    row.push_back(seconds_text(outcome.seconds));
    row.push_back(text_of(outcome.seconds / runs.bound, 3));
    row.push_back(seconds_text(outcome.staging));
    row.push_back(seconds_text(sum(outcome.waiting)));
    for (const double part : {read - peers - pfs, peers, pfs})
      row.push_back(read > 0 ? text_of(100 * part / read, 1) + "%" : "-");
    row.push_back(format_size(static_cast<uint64_t>(outcome.pfs * 1e6)));
  }
  row.push_back(note_on(outcome));
  return row;
}

void print(const std::vector<Sweep>& sweeps, const std::vector<Runs>& all) {
  std::vector<std::vector<std::string>> rows(1);
  for (const Sweep& sweep : sweeps) rows[0].push_back(sweep.key);
  rows[0].insert(rows[0].end(), {"POLICY", "SECONDS", "OF-BOUND", "STAGING", "WAITING", "OWN", "PEERS", "PFS",
                                 "PFS-BYTES", "NOTE"});
  for (const Runs& runs : all)
    for (const auto& [policy, outcome] : runs.outcomes) rows.push_back(row_of(runs, *policy, outcome));
  print_table(rows);
}

Json by_source(const std::vector<std::string>& sources, const std::vector<double>& values) {
  Json object = Json::object();
  for (size_t i = 0; i < values.size(); ++i) object[sources[i]] = values[i];
  return object;
}

Json json_of(const Runs& runs, const Policy& policy, const Outcome& outcome) {
  if (!outcome.refusal.empty()) return {{"policy", policy.name}, {"refused", outcome.refusal}};
  return {{"policy", policy.name},
          {"refused", Json()},
          {"seconds", outcome.seconds},
          {"staging_seconds", outcome.staging},
          {"computing_seconds", outcome.computing},
          {"waiting_seconds", by_source(runs.sources, outcome.waiting)},
          {"read_mb", by_source(runs.sources, outcome.read)},
          {"pfs_mb", outcome.pfs},
          {"coverage", outcome.coverage}};
}

void print_json_of(const SimulateOptions& options, const std::vector<Sweep>& sweeps,
                   const std::vector<Runs>& all) {
  Json told = Json::array();
  for (const Runs& runs : all) {
    Json settings = Json::object(), policies = Json::array();
    for (size_t i = 0; i < sweeps.size(); ++i) settings[sweeps[i].key] = runs.values[i];
    for (const auto& [policy, outcome] : runs.outcomes) policies.push_back(json_of(runs, *policy, outcome));
    told.push_back({{"settings", settings}, {"bound_seconds", runs.bound}, {"policies", policies}});
  }
  print_json({{"version", PACKAGE_VERSION},
              {"machine", options.machine},
              {"dataset", options.dataset},
              {"compat", options.compat},
              {"runs", told}});
}

// ---- a chart: runs as bars, with the parts of the time

constexpr int kLeft = 300, kWidth = 380, kRow = 24, kAll = 820;
constexpr const char* kColours[] = {"#9aa0a6", "#34a853", "#fbbc04", "#ff8f00", "#a142f4", "#24c1e0"};
constexpr char kOfPeers[] = "#1a73e8", kOfPfs[] = "#d93025";

std::string text_at(double x, int y, const std::string& text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{}\"{}>{}</text>\n", x, y, more, in_markup(text));
}

std::string box(double x, int y, double width, const char* colour) {
  return fmt::format("<rect x=\"{:.1f}\" y=\"{}\" width=\"{:.1f}\" height=\"17\" fill=\"{}\"/>\n", x, y,
                     width, colour);
}

struct Part {
  std::string name;
  const char* colour;
};

// As seconds_of() has their seconds.
std::vector<Part> parts_of(const std::vector<std::string>& sources) {
  constexpr size_t kTierColours = std::size(kColours) - 2;
  std::vector<Part> parts = {{"computing", kColours[0]}, {"staging", kColours[1]}};
  for (size_t i = 0; i < sources.size(); ++i)
    parts.push_back({"waiting for " + sources[i], kColours[2 + i % kTierColours]});
  parts[parts.size() - 2].colour = kOfPeers;
  parts.back().colour = kOfPfs;
  return parts;
}
std::vector<double> seconds_of(const Outcome& outcome) {
  std::vector<double> seconds = {outcome.computing, outcome.staging};
  seconds.insert(seconds.end(), outcome.waiting.begin(), outcome.waiting.end());
  return seconds;
}

std::string bar_at(int y, const std::string& label, const Outcome& outcome, const std::vector<Part>& parts,
                   double scale) {
  std::string drawn = text_at(kLeft - 10, y + 13, label, " text-anchor=\"end\"");
  if (!outcome.refusal.empty()) return drawn + text_at(kLeft, y + 13, outcome.refusal);
  const std::vector<double> seconds = seconds_of(outcome);
  double x = kLeft;
  for (size_t i = 0; i < seconds.size(); x += seconds[i++] * scale)
    if (seconds[i] > 0) drawn += box(x, y, seconds[i] * scale, parts[i].colour);
  return drawn + text_at(x + 6, y + 13, text_of(outcome.seconds, 1) + " s");
}

// An SVG file. Whatever stands in the texts is shown, and does nothing.
std::string chart(const SimulateOptions& options, const std::vector<Runs>& all) {
  double longest = 1e-9;
  for (const Runs& runs : all)
    for (const auto& [policy, outcome] : runs.outcomes) longest = std::max(longest, outcome.seconds);
  const std::string title = options.dataset + " on " + options.machine;
  const std::vector<Part> parts = parts_of(all[0].sources);
  std::string drawn = text_at(10, 24, title, " class=\"title\"");
  int y = 40;
  for (const Part& part : parts) {
    drawn += box(kLeft, y, 17, part.colour) + text_at(kLeft + 26, y + 13, part.name);
    y += kRow;
  }
  y += kRow / 2;
  for (const Runs& runs : all)
    for (const auto& [policy, outcome] : runs.outcomes) {
      std::string label;
      for (const std::string& value : runs.values) label += value + " ";
      drawn += bar_at(y, label + policy->name, outcome, parts, kWidth / longest);
      y += kRow;
    }
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" height=\"{1}\" "
      "role=\"img\">\n"
      "<title>{2}</title>\n"
      "<style>text{{font:13px sans-serif;fill:#202124}}.title{{font-weight:bold}}.page{{fill:#fff}}"
      "@media(prefers-color-scheme:dark){{text{{fill:#e8eaed}}.page{{fill:#202124}}}}</style>\n"
      "<rect class=\"page\" width=\"100%\" height=\"100%\"/>\n{3}</svg>\n",
      kAll, y + 10, in_markup(title), drawn);
}

int simulate_jobs(const SimulateOptions& options) {
  const Result<std::vector<Sweep>> sweeps = parse_sweeps(options.sweeps);
  if (!sweeps.ok()) return fail("simulate", sweeps.error()), kUsage;
  Settings settings;
  for (const auto& [name, kind] :
       {std::pair(options.machine, "machines"), std::pair(options.dataset, "datasets")})
    if (const Status loaded = load(name, kind, &settings); !loaded.ok())
      return fail("simulate", loaded.error());
  const Result<std::vector<Runs>> all = run_all(options, settings, *sweeps);
  if (!all.ok()) return fail("simulate", all.error());
  if (!options.svg.empty()) {
    if (const Status written = write_page(options.svg, chart(options, *all)); !written.ok())
      return fail("simulate", with_remedy(written.error(), "name a file that you can write"));
    if (options.svg == "-") return 0;
  }
  options.json ? print_json_of(options, *sweeps, *all) : print(*sweeps, *all);
  return 0;
}

}  // namespace

void add_simulate(CommandLine app, int* status) {
  auto options = std::make_shared<SimulateOptions>();
  app.add_option("--machine", options->machine, "INI file, or a sample's name, as lassen")
      .required()
      .option_text("NAME|FILE");
  app.add_option("--dataset", options->dataset, "INI file, or a sample's name, as imagenet-1k")
      .required()
      .option_text("NAME|FILE");
  app.add_option("--policy", options->policies,
                 "how samples are read; may be given again; default: all policies")
      .takes_one()
      .one_of(policy_names())
      .option_text("NAME");
  app.add_option("--sweep", options->sweeps,
                 "run once for each value of a key of these files; may be given again")
      .takes_one()
      .option_text("SECTION.KEY=VALUE,...");
  app.add_option("--compat", options->compat,
                 "nopfs: each thread has a node's whole share of the PFS, as in the simulator of NoPFS; "
                 "default: none")
      .one_of({"none", "nopfs"});
  app.add_option("--svg", options->svg,
                 "also write a chart of the parts of the time; -: only this, to standard output")
      .option_text("FILE");
  app.add_flag("--json", options->json, "print every field as JSON; sizes in MB");
  std::string help = "Policies:\n";
  for (const Policy& policy : simulate::policies())
    help += "  " + std::string(policy.name) + ": " + policy.text + "\n";
  app.footer(
      (help + "\nReads the two files only.\nExit status: 0, 1 on a failure, 2 for wrong usage.").c_str());
  app.callback([options, status] { *status = simulate_jobs(*options); });
}

}  // namespace monarch::admin
