// SPDX-License-Identifier: Apache-2.0
// What options of several subcommands are if they are not given: as this node's line for the plugin in
// plugstack.conf has it, else as installed. That plugstack.conf is the one of $SLURM_CONF, of /etc/slurm or
// of a configless node's /run/slurm/conf; Slurm's daemons are not asked.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace monarch::admin {

// "default: as plugstack.conf names it, else OTHERWISE", for --help.
std::string default_text(const std::string& otherwise);
std::string default_state_dir();
std::string default_config();

// --state-dir; *state_dir is empty until all options are read.
void add_state_dir(CLI::App* app, std::string* state_dir);
// --config and --state-dir. `what` the configuration is for.
void add_config_and_state_dir(CLI::App* app, const std::string& what, std::string* config,
                              std::string* state_dir);

}  // namespace monarch::admin
