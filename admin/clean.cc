// SPDX-License-Identifier: Apache-2.0
// monarchctl clean: removes files that killed runs and jobs left behind.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/jobs.h"
#include "admin/output.h"
#include "admin/tiers.h"
#include "build_config.h"
#include "runtime/agent/sweep.h"
#include "runtime/base/escape.h"
#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/node/life.h"
#include "runtime/node/state.h"
#include "runtime/node/sweep.h"

namespace monarch::admin {
namespace {

constexpr int kPatienceMs = 10000;  // in which what jobs left should be gone

struct CleanOptions {
  std::vector<std::string> directories;
  std::string state_dir;
  bool dry_run = false, json = false;
};

struct Found {
  const char* kind;   // run, job, removal or cgroup
  std::string name;   // a path, or as root's state directory has it
  std::string error;  // why it is there still
};

// Where `monarchctl run` may have put copies and run directories.
std::set<std::string> places_of_runs(const CleanOptions& options) {
  std::set<std::string> places(options.directories.begin(), options.directories.end());
  for (const std::string& base : run_bases()) places.insert(base);
  const Result<Config> config = load_default_config();
  const Result<std::vector<Candidate>> tiers =
      look_at_tiers(config.ok() ? config->tiers : std::vector<TierConfig>());
  if (tiers.ok())
    for (const TierConfig& tier : chosen(*tiers)) places.insert(tier.path);
  return places;
}

// A directory that is so young that its run may be just beginning stays, and is counted in `young`.
Status clean_runs(const CleanOptions& options, std::vector<Found>* found, int* young) {
  std::set<std::pair<dev_t, ino_t>> seen;  // a directory may have several paths
  for (const std::string& place : places_of_runs(options)) {
    struct stat st;
    if (::stat(place.c_str(), &st) == 0 && !seen.emplace(st.st_dev, st.st_ino).second) continue;
    const Result<int> swept = for_left_overs(place, young, [&](const LeftOver& left) {
      const Status removed = options.dry_run ? Status() : remove_left_over(left);
      found->push_back({"run", place + "/" + left.name, removed.ok() ? "" : removed.error().text});
      return removed.ok();
    });
    const bool named =
        std::find(options.directories.begin(), options.directories.end(), place) != options.directories.end();
    if (!swept.ok() && named) return with_remedy(swept.error(), "name directories that tiers or runs are in");
  }
  return {};
}

// What is there still.
std::set<std::string> rest_of_jobs(const StateDir& state) {
  std::set<std::string> rest;
  for (const std::string& name : state.removals()) rest.insert(name);
  for (const std::string& key : dead_jobs(state)) rest.insert(key);
  return rest;
}

std::vector<Found> left_by_jobs(const StateDir& state) {
  std::vector<Found> left;
  for (const std::string& key : dead_jobs(state)) left.push_back({"job", key, ""});
  for (const std::string& name : state.removals())
    if (lock_if_free(state.path() + "/removing/" + name)) left.push_back({"removal", name, ""});
  for (const std::string& name : stray_cgroups(state)) left.push_back({"cgroup", name, ""});
  return left;
}

// As a job's start does it on the node. What is slow goes on in the background.
Status clean_jobs(const CleanOptions& options, std::vector<Found>* found) {
  if (::access((options.state_dir + "/jobs").c_str(), F_OK) != 0) return {};
  const Result<StateDir> state = StateDir::open(options.state_dir);
  if (!state.ok()) return with_remedy_if_none(state.error(), "see 'monarchctl doctor'");
  std::vector<Found> left = left_by_jobs(*state);
  if (!options.dry_run && !left.empty()) {
    // One sweep takes no more time than a job's start has.
    for (size_t before = SIZE_MAX, dead; (dead = dead_jobs(*state).size()) < before; before = dead)
      sweep(*state, {});
    std::set<std::string> rest = rest_of_jobs(*state);
    for (int waited = 0; waited < kPatienceMs && !rest.empty(); waited += 20) {
      ::usleep(20000);
      rest = rest_of_jobs(*state);
    }
    for (Found& l : left)
      if (rest.count(l.name) > 0)
        l.error =
            "it is not gone in 10 s; the remover goes on, and the log of root's helpers tells what keeps it";
  }
  found->insert(found->end(), left.begin(), left.end());
  return {};
}

int clean(const CleanOptions& options) {
  (void)open_log("stderr", "error").ok();
  std::vector<Found> found;
  int young = 0;
  Status done = clean_runs(options, &found, &young);
  if (done.ok() && ::geteuid() == 0) done = clean_jobs(options, &found);
  if (!done.ok()) return fail("clean", done.error());
  bool kept = false;
  Json list = Json::array();
  for (const Found& left : found) {
    kept |= !left.error.empty();
    list.push_back({{"kind", left.kind},
                    {"name", left.name},
                    {"removed", !options.dry_run && left.error.empty()},
                    {"error", or_null(left.error)}});
    if (options.json) continue;
    if (left.error.empty())
      std::printf("%s %s %s\n", options.dry_run ? "would remove" : "removed", left.kind,
                  escaped(left.name).c_str());
    else
      fail("clean", std::string(left.kind) + " " + left.name + ": " + left.error);
  }
  if (options.json)
    print_json(
        {{"version", PACKAGE_VERSION}, {"dry_run", options.dry_run}, {"young", young}, {"found", list}});
  else if (young > 0)
    std::printf("%s younger than %d s, and left alone: run it again then\n",
                counted(young, "directory of a run is", "directories of runs are").c_str(), kYoungSeconds);
  else if (found.empty())
    std::puts("nothing is left behind");
  return kept && !options.dry_run ? kFailure : 0;
}

}  // namespace

void add_clean(CommandLine app, int* status) {
  auto options = std::make_shared<CleanOptions>();
  app.add_option("DIR", options->directories,
                 "tiers that 'monarchctl run' was given, besides those of the configuration");
  app.add_flag("--dry-run", options->dry_run, "remove nothing, and tell what would be removed");
  app.add_flag("--json", options->json, "print as JSON");
  add_state_dir(app, &options->state_dir);
  app.footer(
      "Exit status: 0 if nothing is left behind, or --dry-run; 1 if something cannot be removed; 2 for wrong "
      "usage.");
  app.callback([options, status] { *status = clean(*options); });
}

}  // namespace monarch::admin
