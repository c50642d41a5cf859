// SPDX-License-Identifier: Apache-2.0
// monarchctl's subcommands, a file each. Each adds its options to the given CLI11 subcommand and sets
// *status, the exit status, when it ran.
#pragma once

#include <CLI/CLI.hpp>

namespace monarch::admin {

void add_clean(CLI::App* app, int* status);           // clean.cc
void add_config(CLI::App* app, int* status);          // config.cc
void add_container_args(CLI::App* app, int* status);  // container.cc
void add_doctor(CLI::App* app, int* status);          // doctor.cc
void add_flush(CLI::App* app, int* status);           // flush.cc
void add_metrics(CLI::App* app, int* status);         // metrics.cc
void add_plan(CLI::App* app, int* status);            // plan.cc
void add_report(CLI::App* app, int* status);          // report.cc
void add_run(CLI::App* app, int* status);             // run.cc
void add_status(CLI::App* app, int* status);          // status.cc
void add_tiers(CLI::App* app, int* status);           // tiers.cc
void add_top(CLI::App* app, int* status);             // top.cc
void add_version(CLI::App* app, int* status);         // version.cc

}  // namespace monarch::admin
