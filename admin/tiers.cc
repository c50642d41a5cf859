// SPDX-License-Identifier: Apache-2.0
// monarchctl tiers: which directories of this node are tiers, which are not, and why.
#include <sys/stat.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "admin/commands.h"
#include "build_config.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/discovery.h"

namespace monarch::admin {
namespace {

using nlohmann::ordered_json;

constexpr int kFailure = 1, kPartial = 4;
constexpr char kDefaultConfig[] = SYSCONFDIR "/monarch/monarch.conf";

struct TiersOptions {
  std::string config;
  bool json = false;
};

ordered_json to_json(const Candidate& c) {
  const auto text_or_null = [](const std::string& text) {
    return text.empty() ? ordered_json() : ordered_json(text);
  };
  const bool asked = c.size > 0;
  ordered_json tier;
  if (c.chosen)
    tier = {
        {"name", c.tier.name}, {"quota", c.tier.quota.of(c.size)}, {"min_free", c.tier.min_free.of(c.size)}};
  return {{"path", text_or_null(c.path)},
          {"mount_point", text_or_null(c.mount_point)},
          {"device", text_or_null(c.device)},
          {"device_number", text_or_null(c.device_number)},
          {"fstype", text_or_null(c.fstype)},
          {"disks", c.disks},
          {"transport", text_or_null(c.transport)},
          {"medium", c.medium ? ordered_json(medium_name(*c.medium)) : ordered_json()},
          {"size", asked ? ordered_json(c.size) : ordered_json()},
          {"free", asked && !c.mount_point.empty() ? ordered_json(c.free) : ordered_json()},
          {"numa_node", c.numa_node >= 0 ? ordered_json(c.numa_node) : ordered_json()},
          {"chosen", c.chosen},
          {"reason", c.reason},
          {"tier", tier}};
}

void print_json(const std::vector<Candidate>& candidates, const std::string& config) {
  ordered_json list = ordered_json::array();
  for (const Candidate& c : candidates) list.push_back(to_json(c));
  const ordered_json all = {{"version", PACKAGE_VERSION},
                            {"config", config.empty() ? ordered_json() : ordered_json(config)},
                            {"tiers", list}};
  // A mount point may hold any bytes.
  std::puts(all.dump(2, ' ', false, ordered_json::error_handler_t::replace).c_str());
}

// One word in a line of a table: blanks and control characters as \ooo, as in the mount table.
std::string cell(const std::string& text, char from) {
  std::string out;
  for (const char c : text) {
    char octal[8];
    std::snprintf(octal, sizeof octal, "\\%03o", static_cast<unsigned>(static_cast<unsigned char>(c)));
    if (static_cast<unsigned char>(c) < static_cast<unsigned char>(from) || c == 0x7f)
      out += octal;
    else
      out += c;
  }
  return out.empty() ? "-" : out;
}

void print_table(const std::vector<Candidate>& candidates) {
  constexpr char kBlank = ' ' + 1, kControl = ' ';
  std::vector<std::vector<std::string>> rows = {
      {"PATH", "DEVICE", "MEDIUM", "FSTYPE", "SIZE", "FREE", "NUMA", "CHOSEN", "REASON"}};
  for (const Candidate& c : candidates)
    rows.push_back({cell(c.path, kBlank), cell(c.device, kBlank), c.medium ? medium_name(*c.medium) : "-",
                    cell(c.fstype, kBlank), c.size ? format_size(c.size) : "-",
                    c.size && !c.mount_point.empty() ? format_size(c.free) : "-",
                    c.numa_node >= 0 ? std::to_string(c.numa_node) : "-", c.chosen ? "yes" : "no",
                    cell(c.reason, kControl)});
  std::vector<size_t> widths(rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i + 1 < row.size(); ++i)
      line += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    std::puts((line + row.back()).c_str());
  }
}

int tiers(TiersOptions options) {
  const auto fail = [](const Error& error) {
    std::fprintf(stderr, "monarchctl tiers: %s\n", error.text.c_str());
    return kFailure;
  };
  struct stat st;
  if (options.config.empty() && (::stat(kDefaultConfig, &st) == 0 || errno != ENOENT))
    options.config = kDefaultConfig;
  std::vector<TierConfig> configured;
  if (!options.config.empty()) {
    Result<Config> config = load_config(options.config);
    if (!config.ok()) return fail(config.error());
    configured = config->tiers;
  }
  const Result<std::vector<Candidate>> found = discover({}, configured);
  if (!found.ok()) return fail(found.error());
  options.json ? print_json(*found, options.config) : print_table(*found);
  const size_t usable = chosen(*found).size();
  if (usable == 0) {
    std::fprintf(stderr, "monarchctl tiers: this node has no tier; name one in %s, as [tier.NAME]\n",
                 options.config.empty() ? kDefaultConfig : options.config.c_str());
    return kFailure;
  }
  return usable < configured.size() ? kPartial : 0;
}

}  // namespace

void add_tiers(CLI::App* app, int* status) {
  auto options = std::make_shared<TiersOptions>();
  app->add_flag("--json", options->json, "print every field as JSON; sizes in bytes");
  app->add_option(
      "--config", options->config,
      std::string("configuration, monarch.conf(5); default: ") + kDefaultConfig + ", if it is there");
  app->footer(
      "Where the configuration names no tier, those that are chosen here are used.\n"
      "Exit status: 0 if there is a tier, 1 if there is none or on a failure, 2 for wrong usage,\n"
      "4 if some of the configured tiers cannot be used.");
  app->callback([options, status] { *status = tiers(*options); });
}

}  // namespace monarch::admin
