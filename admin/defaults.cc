// SPDX-License-Identifier: Apache-2.0
#include "admin/defaults.h"

#include <unistd.h>

#include <cstdlib>
#include <optional>

#include "admin/output.h"
#include "admin/slurm_facts.h"

namespace monarch::admin {
namespace {

std::string slurm_conf() {
  const char* const named = ::getenv("SLURM_CONF");
  if (named && *named) return named;
  for (const char* path : {"/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf"})
    if (::access(path, R_OK) == 0) return path;
  return "";
}

std::string of_plugin_line(const char* key, const char* otherwise) {
  const std::string conf = slurm_conf();
  if (conf.empty()) return otherwise;
  const Result<std::optional<PluginLine>> line = find_plugin_line(plugstack_of(conf));
  const std::string value = line.ok() && *line ? (*line)->word(key) : "";
  return value.empty() ? otherwise : value;
}

void option(CLI::App* app, const char* name, const std::string& what, const char* otherwise,
            std::string* value) {
  app->add_option(name, *value, what + "; " + default_text(otherwise));
}

}  // namespace

std::string default_text(const std::string& otherwise) {
  return "default: as plugstack.conf names it, else " + otherwise;
}
std::string default_state_dir() { return of_plugin_line("state_dir", kDefaultState); }
std::string default_config() { return of_plugin_line("config", kDefaultConfig); }

void add_state_dir(CLI::App* app, std::string* state_dir) {
  option(app, "--state-dir", "root's state directory", kDefaultState, state_dir);
  app->parse_complete_callback([=] {
    if (state_dir->empty()) *state_dir = default_state_dir();
  });
}

void add_config_and_state_dir(CLI::App* app, const std::string& what, std::string* config,
                              std::string* state_dir) {
  option(app, "--config", what, kDefaultConfig, config);
  option(app, "--state-dir", "root's state directory", kDefaultState, state_dir);
  app->parse_complete_callback([=] {
    if (config->empty()) *config = default_config();
    if (state_dir->empty()) *state_dir = default_state_dir();
  });
}

}  // namespace monarch::admin
