// SPDX-License-Identifier: Apache-2.0
// monarchctl's subcommands, a file each. Each adds its options to the given subcommand and sets
// *status, the exit status, when it ran.
#pragma once

#include <string>
#include <vector>

#include "admin/reports.h"
#include "runtime/base/command_line.h"
#include "runtime/base/json.h"
#include "runtime/base/result.h"
#include "runtime/config/config.h"

namespace monarch::admin {

void add_clean(CommandLine app, int* status);           // clean.cc
void add_config(CommandLine app, int* status);          // config.cc
void add_container_args(CommandLine app, int* status);  // container.cc
void add_doctor(CommandLine app, int* status);          // doctor.cc
void add_flush(CommandLine app, int* status);           // flush.cc
void add_hint(CommandLine app, int* status);            // hint.cc
void add_metrics(CommandLine app, int* status);         // metrics.cc
void add_plan(CommandLine app, int* status);            // plan.cc
void add_report(CommandLine app, int* status);          // report.cc
void add_run(CommandLine app, int* status);             // run.cc
void add_simulate(CommandLine app, int* status);        // simulate.cc
void add_status(CommandLine app, int* status);          // status.cc
void add_tiers(CommandLine app, int* status);           // tiers.cc
void add_top(CommandLine app, int* status);             // top.cc
void add_version(CommandLine app, int* status);         // version.cc

// Users and groups that policy names and this node does not know; numbers need no name.
std::vector<std::string> unknown_users(const Config& config);
// Prints the report that is kept of an ended job. The exit status.
int report_of_kept(const std::string& name, const std::string& state_dir);
// The same for `report --json`.
Result<Json> json_of_kept(const std::string& name, const Kept& kept);

}  // namespace monarch::admin
