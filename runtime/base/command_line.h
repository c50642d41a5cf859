// SPDX-License-Identifier: Apache-2.0
// A program's command line, read by CLI11, whose header command_line.cc alone includes for all that name
// options: it takes seconds of every file. Names are CLI11's. Values are written while the line is read, and
// must be there as long.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace monarch {

class CommandLine {
 public:
  class Option {
   public:
    explicit Option(CLI::Option* option) : option_(option) {}
    Option& required();
    Option& takes_one();  // word, each time that it is given
    Option& group(const char* heading);
    Option& option_text(const char* instead);  // of the value's type, in --help
    Option& default_val(const std::string& value);
    Option& capture_default_str();  // --help shows the value that is there now
    // `fault_of`: of a value; "": there is none.
    Option& check(std::function<std::string(const std::string&)> fault_of);
    Option& one_of(const std::vector<std::string>& values);
    Option& range(int least, int most);
    Option& needs(const Option& other);
    Option& excludes(const Option& other);

   private:
    CLI::Option* option_;
  };

  // A program's.
  CommandLine(const char* text, const char* program, const std::string& version);
  // A subcommand's, which must be there as long.
  explicit CommandLine(CLI::App* subcommand);

  Option add_flag(const char* name, bool& value, const std::string& text);
  Option add_option(const char* name, std::string& value, const std::string& text);
  Option add_option(const char* name, std::vector<std::string>& values, const std::string& text);
  Option add_option(const char* name, int& value, const std::string& text);
  Option add_option(const char* name, uint32_t& value, const std::string& text);
  Option add_option(const char* name, uint64_t& value, const std::string& text);
  Option add_option(const char* name, double& value, const std::string& text);
  CommandLine add_subcommand(const char* name, const char* text);
  void require_subcommand();
  void footer(const char* text);
  // Called when the line has been read.
  void callback(std::function<void()> run);
  // Called before that. What is wrong with the line; "": nothing.
  void check(std::function<std::string()> fault);

  std::string name() const;
  bool has(const char* option) const;  // it was given

  // What to exit with, where the program is not to go on: 0 after --help and --version, else `wrong`.
  std::optional<int> parse(int argc, char** argv, int wrong);

 private:
  std::shared_ptr<CLI::App> app_;
};

}  // namespace monarch
