// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/command_line.h"

#include <CLI/CLI.hpp>

namespace monarch {

CommandLine::Option& CommandLine::Option::required() {
  option_->required();
  return *this;
}
CommandLine::Option& CommandLine::Option::takes_one() {
  option_->allow_extra_args(false);
  return *this;
}
CommandLine::Option& CommandLine::Option::group(const char* heading) {
  option_->group(heading);
  return *this;
}
CommandLine::Option& CommandLine::Option::option_text(const char* instead) {
  option_->option_text(instead);
  return *this;
}
CommandLine::Option& CommandLine::Option::default_val(const std::string& value) {
  option_->default_val(value);
  return *this;
}
CommandLine::Option& CommandLine::Option::capture_default_str() {
  option_->capture_default_str();
  return *this;
}
CommandLine::Option& CommandLine::Option::check(std::function<std::string(const std::string&)> fault_of) {
  option_->check(std::move(fault_of));
  return *this;
}
CommandLine::Option& CommandLine::Option::one_of(const std::vector<std::string>& values) {
  option_->check(CLI::IsMember(values));
  return *this;
}
CommandLine::Option& CommandLine::Option::range(int least, int most) {
  option_->check(CLI::Range(least, most).description(""));  // which its text tells
  return *this;
}
CommandLine::Option& CommandLine::Option::needs(const Option& other) {
  option_->needs(other.option_);
  return *this;
}
CommandLine::Option& CommandLine::Option::excludes(const Option& other) {
  option_->excludes(other.option_);
  return *this;
}

CommandLine::CommandLine(const char* text, const char* program, const std::string& version)
    : app_(std::make_shared<CLI::App>(text, program)) {
  app_->set_version_flag("--version", version);
}
CommandLine::CommandLine(CLI::App* subcommand) : app_(subcommand, [](CLI::App*) {}) {}

CommandLine::Option CommandLine::add_flag(const char* name, bool& value, const std::string& text) {
  return Option(app_->add_flag(name, value, text));
}
CommandLine::Option CommandLine::add_option(const char* name, std::string& value, const std::string& text) {
  return Option(app_->add_option(name, value, text));
}
CommandLine::Option CommandLine::add_option(const char* name, std::vector<std::string>& values,
                                            const std::string& text) {
  return Option(app_->add_option(name, values, text));
}
CommandLine::Option CommandLine::add_option(const char* name, int& value, const std::string& text) {
  return Option(app_->add_option(name, value, text)->type_name("N"));
}
CommandLine::Option CommandLine::add_option(const char* name, uint32_t& value, const std::string& text) {
  return Option(app_->add_option(name, value, text)->type_name("N"));
}
CommandLine::Option CommandLine::add_option(const char* name, uint64_t& value, const std::string& text) {
  return Option(app_->add_option(name, value, text)->type_name("N"));
}
CommandLine::Option CommandLine::add_option(const char* name, double& value, const std::string& text) {
  return Option(app_->add_option(name, value, text)->type_name("N"));
}

CommandLine CommandLine::add_subcommand(const char* name, const char* text) {
  return CommandLine(app_->add_subcommand(name, text));
}
void CommandLine::require_subcommand() { app_->require_subcommand(1); }
void CommandLine::footer(const char* text) { app_->footer(text); }
void CommandLine::callback(std::function<void()> run) { app_->callback(std::move(run)); }
void CommandLine::check(std::function<std::string()> fault) {
  app_->parse_complete_callback([fault = std::move(fault)] {
    if (const std::string text = fault(); !text.empty()) throw CLI::ValidationError(text);
  });
}

std::string CommandLine::name() const { return app_->get_name(); }
bool CommandLine::has(const char* option) const { return app_->count(option) > 0; }

std::optional<int> CommandLine::parse(int argc, char** argv, int wrong) {
  try {
    app_->parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app_->exit(e) == 0 ? 0 : wrong;
  }
  return {};
}

}  // namespace monarch
