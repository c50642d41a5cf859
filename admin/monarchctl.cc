// SPDX-License-Identifier: Apache-2.0
// monarchctl: what users and admins type. This file only dispatches; a file per subcommand stands beside it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "admin/commands.h"
#include "admin/output.h"
#include "build_config.h"
#include "runtime/base/nearest.h"
#include "runtime/base/log.h"

namespace {

constexpr int kRunFailed = 125;  // `monarchctl run`: as env(1) and timeout(1) do

using namespace monarch::admin;
constexpr struct {
  const char *name, *text;
  void (*add)(monarch::CommandLine, int* status);
} kCommands[] = {
    {"run", "run a command with its dataset staged, without Slurm and without root", add_run},
    {"status", "show the jobs with Monarch on this node, and how far they are", add_status},
    {"top", "show the jobs with Monarch on this node, again and again", add_top},
    {"hint", "tell in which order a job will use files, so that they are staged in it", add_hint},
    {"report", "show what a job read from where, and what to do better", add_report},
    {"plan", "tell what of a dataset fits on tiers, and what that spares the PFS", add_plan},
    {"simulate", "tell how long a training job takes with each policy of reading, by a model", add_simulate},
    {"tiers", "show which directories of this node are tiers, and why", add_tiers},
    {"doctor", "check what jobs need on this node, and say how to mend it", add_doctor},
    {"container-args", "print the arguments with which a container tool shows Monarch to a container",
     add_container_args},
    {"config", "check the configuration, or show what it means", add_config},
    {"clean", "remove files that killed runs and jobs left behind", add_clean},
    {"flush", "write the lines that wait for sacct", add_flush},
    {"metrics", "print what jobs do on this node, for Prometheus", add_metrics},
    {"version", "print the version", add_version}};

// What was typed, as far as it was understood.
std::string command_of(const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands()) return app.get_name() + " " + command_of(*sub);
  return app.get_name();
}

const CLI::App& command_in(const CLI::App& app) {
  for (const CLI::App* sub : app.get_subcommands()) return command_in(*sub);
  return app;
}

// Of a word that looks like an option of the command's, and is none: the words that say so; empty: there is
// none. What follows "--" is another program's.
std::string unknown_option(const CLI::App& command, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (word == "--") return "";
    const std::string name = word.substr(0, word.find('='));
    const bool is_option =
        name.size() > 1 && name[0] == '-' && std::isdigit(static_cast<unsigned char>(name[1])) == 0;
    if (!is_option || command.get_option_no_throw(name)) continue;
    std::vector<std::string> known;
    for (const CLI::Option* option : command.get_options())
      for (const std::string& other : option->get_lnames()) known.push_back("--" + other);
    return "there is no option " + name + monarch::did_you_mean(monarch::nearest(name, known));
  }
  return "";
}

// Likewise, of the first word that is none of the command's subcommands.
std::string unknown_subcommand(const CLI::App& command) {
  std::vector<std::string> known;
  for (const CLI::App* sub : command.get_subcommands({})) known.push_back(sub->get_name());
  for (const std::string& word : command.remaining())
    if (!known.empty() && word[0] != '-')
      return "there is no subcommand '" + word + "'" + monarch::did_you_mean(monarch::nearest(word, known));
  return "";
}

// Of a command line of `run`: a word before "--" that is of no option, and so was taken for the command.
std::string misplaced_word(const CLI::App& run, const CLI::ParseError& error) {
  const CLI::Option* command = run.get_option_no_throw("command");
  if (error.get_exit_code() != static_cast<int>(CLI::ExitCodes::ExtrasError) || !command ||
      command->results().empty())
    return "";
  return command->results()[0] +
         " stands before --, and is of no option; give --dataset before each dataset's directory";
}

// What was typed makes no sense. The exit status.
int refuse(const CLI::App& app, const CLI::ParseError& error, const std::vector<std::string>& words) {
  const std::string command = command_of(app);
  std::string unknown = unknown_subcommand(command_in(app));
  if (unknown.empty()) unknown = unknown_option(command_in(app), words);
  const bool is_run = app.got_subcommand("run");
  const bool is_apart = std::find(words.begin(), words.end(), "--") != words.end();
  if (unknown.empty() && is_run && is_apart) unknown = misplaced_word(command_in(app), error);
  std::fprintf(stderr, "%s: %s%s; see '%s --help'\n", command.c_str(),
               unknown.empty() ? error.what() : unknown.c_str(),
               is_run && !is_apart ? "; put -- before the command" : "", command.c_str());
  return is_run ? kRunFailed : kUsage;
}

}  // namespace

int main(int argc, char** argv) {
  monarch::end_without_memory("monarchctl", "monarchctl ends");
  CLI::App app("Monarch: stages a dataset from the parallel file system into this node's own storage.",
               "monarchctl");
  app.require_subcommand(1);
  app.set_version_flag("--version", std::string("monarchctl ") + PACKAGE_VERSION);
  int status = 0;
  for (const auto& [name, text, add] : kCommands)
    add(monarch::CommandLine(app.add_subcommand(name, text)), &status);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) return refuse(app, e, {argv + 1, argv + argc});
    (void)app.exit(e);  // --help, --version
  }
  std::cout << std::flush;
  if (!is_output_written() && status == 0) {
    std::fprintf(stderr, "%s: write to standard output: %s\n", command_of(app).c_str(), std::strerror(errno));
    return app.got_subcommand("run") ? kRunFailed : kFailure;
  }
  return status;
}
