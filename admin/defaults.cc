// SPDX-License-Identifier: Apache-2.0
#include "admin/defaults.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "admin/output.h"

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
  const std::optional<PluginLine> line = default_plugin_line();
  const std::string value = line ? line->word(key) : "";
  return value.empty() ? otherwise : value;
}

void option(CommandLine app, const char* name, const std::string& what, const char* otherwise,
            std::string* value) {
  app.add_option(name, *value, what + "; " + default_text(otherwise));
}

// What is wrong with it; "": nothing.
std::string take_state_dir(const CommandLine& app, Missing missing, std::string* state_dir) {
  if (!app.has("--state-dir")) {
    *state_dir = default_state_dir();
    return "";
  }
  struct stat st;
  const int error = ::stat(state_dir->c_str(), &st) != 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
  if (error == 0) return "";
  const std::string text = errno_error("--state-dir " + *state_dir, error).text;
  if (error == ENOTDIR) return text + "; name root's state directory, or leave the option out";
  if (error == ENOENT && missing == Missing::kTold)
    fail(app.name().c_str(), text + ": it counts as empty; check the name if jobs have run since boot");
  return "";
}

}  // namespace

std::string default_text(const std::string& otherwise) {
  return "default: as plugstack.conf names it, else " + otherwise;
}
std::string default_plugstack() {
  const std::string conf = slurm_conf();
  return conf.empty() ? "" : plugstack_of(conf);
}
std::optional<PluginLine> default_plugin_line() {
  const std::string plugstack = default_plugstack();
  if (plugstack.empty()) return {};
  const Result<std::optional<PluginLine>> line = find_plugin_line(plugstack);
  return line.ok() ? *line : std::nullopt;
}
std::string default_state_dir() { return of_plugin_line("state_dir", kDefaultState); }
std::string default_config() { return of_plugin_line("config", kDefaultConfig); }

void add_state_dir(CommandLine app, std::string* state_dir) {
  option(app, "--state-dir", "root's state directory", kDefaultState, state_dir);
  app.check([=] { return take_state_dir(app, Missing::kTold, state_dir); });
}

void add_config_and_state_dir(CommandLine app, const std::string& what, std::string* config,
                              std::string* state_dir, Missing missing) {
  option(app, "--config", what, kDefaultConfig, config);
  option(app, "--state-dir", "root's state directory", kDefaultState, state_dir);
  app.check([=] {
    if (config->empty()) *config = default_config();
    return take_state_dir(app, missing, state_dir);
  });
}

bool is_of_word(const Error& error) { return error.text.starts_with("plugstack.conf: "); }

Error with_config_remedy(const Error& error) {
  if (is_of_word(error)) return error;
  return with_remedy(
      error, std::string(lacks_remedy(error) ? "" : "mend it, or ") + "name another one by --config FILE");
}

Result<Config> load_default_config() {
  const std::optional<PluginLine> line = default_plugin_line();
  Result<Config> read =
      load_config(with_words(default_config(), line ? line->settings() : std::vector<std::string>()));
  if (!read.ok() && line && is_of_word(read.error()))
    return with_remedy(read.error(), "mend the word in " + line->file);
  return read;
}

Result<Config> load_named_config(const std::string& config) {
  const bool is_default = config == default_config();
  Result<Config> read = is_default ? load_default_config() : load_config(config);
  if (read.ok()) return read;
  if (is_default) return Config();
  return with_config_remedy(read.error());
}

}  // namespace monarch::admin
