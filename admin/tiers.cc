// SPDX-License-Identifier: Apache-2.0
// monarchctl tiers: which directories of this node are tiers, which are not, and why.
#include <fmt/core.h>
#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/output.h"
#include "admin/tiers.h"
#include "build_config.h"
#include "runtime/base/escape.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/discovery.h"

namespace monarch::admin {
namespace {

constexpr int kPartial = 4;

struct TiersOptions {
  std::string config;
  bool json = false;
};

Json to_json(const Candidate& c) {
  const bool asked = c.size > 0;
  Json tier;
  if (c.chosen)
    tier = {
        {"name", c.tier.name}, {"quota", c.tier.quota.of(c.size)}, {"min_free", c.tier.min_free.of(c.size)}};
  return {{"path", or_null(c.path)},
          {"mount_point", or_null(c.mount_point)},
          {"device", or_null(c.device)},
          {"device_number", or_null(c.device_number)},
          {"fstype", or_null(c.fstype)},
          {"disks", c.disks},
          {"transport", or_null(c.transport)},
          {"medium", c.medium ? Json(name_of(*c.medium)) : Json()},
          {"size", asked ? Json(c.size) : Json()},
          {"free", asked && !c.mount_point.empty() ? Json(c.free) : Json()},
          {"numa_node", c.numa_node >= 0 ? Json(c.numa_node) : Json()},
          {"chosen", c.chosen},
          {"reason", c.reason},
          {"tier", tier}};
}

void print_all(const std::vector<Candidate>& candidates, const std::string& config) {
  Json list = Json::array();
  for (const Candidate& c : candidates) list.push_back(to_json(c));
  print_json({{"version", PACKAGE_VERSION}, {"config", or_null(config)}, {"tiers", list}});
}

// Refuses what no job would have.
void look_closer(std::vector<Candidate>* found) {
  std::vector<TierConfig> before;
  for (Candidate& c : *found) {
    if (!c.chosen) continue;
    const TierConfig* same = same_directory(before, c.tier);
    Status jobs = check_tier_jobs(c.path);
    if (jobs.ok()) jobs = check_keeps_copies(c.tier);
    c.chosen = !same && jobs.ok();
    if (!c.chosen) c.remedy.clear();
    if (same) {
      c.reason = "configured, but it is the directory of tier " + same->name;
      c.remedy = "name another directory, or remove [tier." + c.tier.name + "]";
    } else if (!jobs.ok()) {
      c.reason = "no job can use it: " + jobs.error().text;
    } else {
      before.push_back(c.tier);
    }
  }
}

void print_candidates(const std::vector<Candidate>& candidates) {
  std::vector<std::vector<std::string>> rows = {
      {"PATH", "DEVICE", "MEDIUM", "FSTYPE", "SIZE", "FREE", "NUMA", "CHOSEN", "REASON"}};
  for (const Candidate& c : candidates)
    rows.push_back(
        {word(c.path), word(c.device), c.medium ? name_of(*c.medium) : "-", word(c.fstype),
         c.size ? format_size(c.size) : "-", c.size && !c.mount_point.empty() ? format_size(c.free) : "-",
         c.numa_node >= 0 ? std::to_string(c.numa_node) : "-", c.chosen ? "yes" : "no", escaped(c.reason)});
  print_table(rows);
}

int tiers(TiersOptions options) {
  const std::string otherwise = default_config();
  struct stat st;
  if (options.config.empty() && (::stat(otherwise.c_str(), &st) == 0 || errno != ENOENT))
    options.config = otherwise;
  std::vector<TierConfig> configured;
  if (!options.config.empty()) {
    Result<Config> config = options.config == otherwise ? load_default_config() : load_config(options.config);
    if (!config.ok()) return fail("tiers", with_config_remedy(config.error()));
    configured = config->tiers;
  }
  Result<std::vector<Candidate>> found = look_at_tiers(configured);
  if (!found.ok()) return fail("tiers", found.error());
  options.json ? print_all(*found, options.config) : print_candidates(*found);
  const size_t usable = chosen(*found).size();
  const std::string& file = options.config.empty() ? otherwise : options.config;
  if (usable == 0)
    return fail(
        "tiers",
        configured.empty()
            ? "this node has no tier; name one in " + file + ", as [tier.NAME]"
            : "none of the tiers that " + file +
                  " names can be used on this node, for the reasons above; mend that, or name others");
  if (usable >= configured.size()) return 0;
  fail("tiers",
       fmt::format("{} of the {} tiers that {} names cannot be used on this node, for the reasons above; "
                   "'monarchctl doctor' tells how to mend that",
                   configured.size() - usable, configured.size(), file));
  return kPartial;
}

}  // namespace

Result<std::vector<Candidate>> look_at_tiers(const std::vector<TierConfig>& configured) {
  Result<std::vector<Candidate>> found = discover({}, configured);
  if (found.ok()) look_closer(&*found);
  return found;
}

std::string doubt_of_disk(const TierConfig& tier) {
  struct stat st, root;
  const bool on_root = tier.kind == TierConfig::Kind::kDirectory && ::stat(tier.path.c_str(), &st) == 0 &&
                       S_ISDIR(st.st_mode) && ::stat("/", &root) == 0 && st.st_dev == root.st_dev;
  if (!on_root) return "";
  return "tier " + tier.name + ": " + tier.path + " is on the root file system; is its disk mounted?";
}

Status check_apart(const TierConfig& tier, const std::vector<std::string>& datasets) {
  Config alone;
  alone.tiers = {tier};
  const Result<std::vector<std::string>> apart = check_paths(alone, datasets);
  return apart.ok() ? Status() : Status(apart.error());
}

void add_tiers(CommandLine app, int* status) {
  auto options = std::make_shared<TiersOptions>();
  app.add_flag("--json", options->json, "print every field as JSON; sizes in bytes");
  app.add_option("--config", options->config,
                 "configuration, monarch.conf(5); " + default_text(kDefaultConfig) + ", if it is there");
  app.footer(
      "Where the configuration names no tier, those that are chosen here are used.\n"
      "Exit status: 0 if there is a tier, 1 if there is none or on a failure, 2 for wrong usage,\n"
      "4 if some of the configured tiers cannot be used.");
  app.callback([options, status] { *status = tiers(*options); });
}

}  // namespace monarch::admin
