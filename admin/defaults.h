// SPDX-License-Identifier: Apache-2.0
// What options of several subcommands are if they are not given: as this node's line for the plugin in
// plugstack.conf has it, else as installed. That plugstack.conf is the one of $SLURM_CONF, of /etc/slurm or
// of a configless node's /run/slurm/conf; Slurm's daemons are not asked.
#pragma once

#include <optional>
#include <string>

#include "admin/slurm_facts.h"
#include "runtime/base/command_line.h"
#include "runtime/base/result.h"
#include "runtime/config/config.h"

namespace monarch::admin {

// "default: as plugstack.conf names it, else OTHERWISE", for --help.
std::string default_text(const std::string& otherwise);
// Empty: there is no slurm.conf in these places.
std::string default_plugstack();
// Nothing: there is none, or it cannot be read.
std::optional<PluginLine> default_plugin_line();
std::string default_state_dir();
std::string default_config();

// --state-dir; *state_dir is empty until all options are read. One that is named and is not there counts as
// empty: in memory there is none between a boot and the first job. A person is told, a timer's log is not.
enum class Missing { kTold, kSilent };
void add_state_dir(CommandLine app, std::string* state_dir);
// --config and --state-dir. `what` the configuration is for.
void add_config_and_state_dir(CommandLine app, const std::string& what, std::string* config,
                              std::string* state_dir, Missing missing);

// Whether a configuration is refused for one of the words that go before it.
bool is_of_word(const Error& error);
// Of a configuration that cannot be read.
Error with_config_remedy(const Error& error);
// The default one, with the words of the plugin's line before it, as jobs have it.
Result<Config> load_default_config();
// The defaults where the default configuration cannot be read; of another one that is an error.
Result<Config> load_named_config(const std::string& config);

}  // namespace monarch::admin
