// SPDX-License-Identifier: Apache-2.0
// monarchctl config: whether monarch.conf is right, and what it means.
#include <grp.h>
#include <pwd.h>
#include <strings.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/output.h"
#include "admin/tiers.h"
#include "build_config.h"
#include "runtime/base/escape.h"
#include "runtime/config/show.h"
#include "runtime/node/job_facts.h"

namespace monarch::admin {
namespace {

constexpr size_t kMostLine = 198;  // bytes, monarch.conf(5)

struct ConfigOptions {
  std::string file;
  bool is_named = false;  // the file, in the command
  // Of the plugin's line in `plugstack`, where no file is named; those of --set go before them.
  std::vector<std::string> line_words;
  std::string plugstack;
  std::vector<std::string> words;  // of --set
  bool json = false;
};

// Whether the word sets SECTION.KEY.
bool sets(const std::string& word, const std::string& name) {
  return word.find('=') == name.size() && ::strncasecmp(word.c_str(), name.c_str(), name.size()) == 0;
}
bool any_sets(const std::vector<std::string>& words, const std::string& name) {
  return std::any_of(words.begin(), words.end(), [&](const std::string& word) { return sets(word, name); });
}

std::string section_of(const std::string& name) { return name.substr(0, name.rfind('.')); }
std::string key_of(const std::string& name) { return name.substr(name.rfind('.') + 1); }

void doubt_names(const PolicySection& section, std::vector<std::string>* doubts) {
  const auto look = [&](const char* key, const PolicyKeys::List& names, const char* what, auto known) {
    for (const std::string& name : names.value_or(std::vector<std::string>()))
      if (!is_number(name) && !known(name.c_str()))
        doubts->push_back("[" + section.title() + "] " + key + ": this node knows no " + what + " " + name);
  };
  const PolicyKeys& keys = section.keys;
  look("allow_users", keys.allow_users, "user", ::getpwnam);
  look("deny_users", keys.deny_users, "user", ::getpwnam);
  look("allow_groups", keys.allow_groups, "group", ::getgrnam);
  look("deny_groups", keys.deny_groups, "group", ::getgrnam);
}

// What is not an error of the file's, but will be one for a job.
std::vector<std::string> doubts_of(const Config& config, const std::string& file) {
  std::vector<std::string> doubts;
  struct stat st;
  if (::stat(file.c_str(), &st) == 0 && S_ISREG(st.st_mode) && st.st_uid != 0)
    doubts.push_back(file + " is user " + std::to_string(st.st_uid) +
                     "'s: jobs of Slurm, for which root reads it, go without Monarch; run chown root " +
                     file);
  const Result<std::vector<Candidate>> found = look_at_tiers(config.tiers);
  if (!found.ok()) doubts.push_back(found.error().text);
  for (size_t i = 0; i < config.tiers.size(); ++i) {
    const TierConfig& tier = config.tiers[i];
    const std::string name = "tier " + tier.name + ": ";
    if (found.ok() && (!(*found)[i].chosen || !(*found)[i].remedy.empty()))
      doubts.push_back(name + tier.path + ": " + (*found)[i].reason +
                       ((*found)[i].remedy.empty() ? "" : "; " + (*found)[i].remedy));
    if (tier.share == TierConfig::Share::kEqual)
      doubts.push_back(name +
                       "share = equal is as cpus, since nobody knows at a job's start how many others will "
                       "begin; write share = cpus");
    if (const std::string disk = doubt_of_disk(tier); !disk.empty()) doubts.push_back(disk);
  }
  for (const std::string& unknown : unknown_users(config)) doubts.push_back(unknown);
  return doubts;
}

Json json_of(const ConfigError& error) {
  const auto of_key = [&](const std::string& text) { return error.key.empty() ? Json() : Json(text); };
  return {{"line", error.line > 0 ? Json(error.line) : Json()},
          {"section", of_key(section_of(error.key))},
          {"key", of_key(key_of(error.key))},
          {"error", error.error.text}};
}

// Of the plugin's line; else it is of --set, or of the file.
bool is_of_line(const ConfigOptions& options, const ConfigError& error) {
  return is_of_word(error.error) &&
         std::any_of(options.line_words.begin(), options.line_words.end(), [&](const std::string& word) {
           return error.error.text.find(": " + word + ": ") != std::string::npos;
         });
}

std::string remedy_for(const ConfigOptions& options, const ConfigError& error) {
  if (is_of_line(options, error)) return "; mend the word in " + options.plugstack;
  if (!error.key.empty() && error.key[0] != '.')  // of a section
    return "; mend " + key_of(error.key) + " in [" + section_of(error.key) + "], see monarch.conf(5)";
  switch (error.error.code) {
    case ENOENT:
      return options.is_named ? "; name a file that is there"
                              : "; make it (it may be empty), or name another one";
    case EACCES:
      return "; ask root";
    case EISDIR:
      return "; name a file";
    case EPERM:  // it has one
      return "";
    default:
      return "; see monarch.conf(5)";
  }
}

int refused(const char* command, const ConfigOptions& options, const std::vector<ConfigError>& errors) {
  if (options.json) {
    Json list = Json::array();
    for (const ConfigError& error : errors) list.push_back(json_of(error));
    print_json({{"version", PACKAGE_VERSION},
                {"file", options.file},
                {"words", options.line_words},
                {"valid", false},
                {"errors", list}});
  }
  for (const ConfigError& error : errors) {
    const std::string& text = error.error.text;
    const bool is_of_set = is_of_word(error.error) && !is_of_line(options, error);
    (void)fail(command,
               (is_of_set ? "--set" + text.substr(text.find(':')) : text) + remedy_for(options, error));
  }
  return kFailure;
}

// `use`: prints what is to be printed of a configuration that is right.
template <typename Use>
int with_config(const char* command, const ConfigOptions& options, const Use& use) {
  ConfigTrace trace;
  std::vector<std::string> words = options.line_words;
  words.insert(words.end(), options.words.begin(), options.words.end());
  const Result<Config> config = load_config(with_words(options.file, words), &trace);
  if (!config.ok()) return refused(command, options, trace.errors);
  use(*config, trace);
  return 0;
}

int check(const ConfigOptions& options) {
  return with_config("config check", options, [&](const Config& config, const ConfigTrace&) {
    const std::vector<std::string> doubts = doubts_of(config, options.file);
    if (options.json) {
      print_json({{"version", PACKAGE_VERSION},
                  {"file", options.file},
                  {"words", options.line_words},
                  {"valid", true},
                  {"tiers", config.tiers.size()},
                  {"policies", config.policies.size()},
                  {"warnings", doubts}});
      return;
    }
    const size_t words = options.line_words.size();
    const std::string with =
        words > 0 ? ", with " + counted(words, "word") + " of " + options.plugstack : std::string();
    std::printf("%s%s: %s: %s%s, %s\n", escaped(options.file).c_str(), escaped(with).c_str(),
                paint(Colour::kGood, "valid").c_str(), counted(config.tiers.size(), "tier").c_str(),
                config.tiers.empty() ? " (those that 'monarchctl tiers' chooses are used)" : "",
                counted(config.policies.size(), "section of policy", "sections of policy").c_str());
    for (const std::string& doubt : doubts)
      std::printf("%s: %s\n", paint(Colour::kDoubtful, "warning").c_str(), escaped(doubt).c_str());
  });
}

// The line; nothing: it is not in the file.
std::optional<int> line_of(const ConfigTrace& trace, const ConfigValue& value) {
  const auto at = trace.lines.find(value.section + "." + value.key);
  if (at == trace.lines.end()) return {};
  return at->second;
}

const char* source_of(const ConfigOptions& options, const ConfigValue& value,
                      const std::optional<int>& line) {
  if (!line) return "default";
  if (*line > 0) return "file";
  return any_sets(options.words, value.section + "." + value.key) ? "--set" : "plugstack.conf";
}

void show_json(const ConfigOptions& options, const std::vector<ConfigValue>& values,
               const ConfigTrace& trace) {
  Json list = Json::array();
  for (const ConfigValue& v : values) {
    const std::optional<int> line = line_of(trace, v);
    Json value;
    if (v.values && v.kind == ConfigValue::Kind::kSingle) value = v.values->front();
    if (v.values && v.kind == ConfigValue::Kind::kList) {
      value = Json::array();
      for (const std::string& text : *v.values)
        if (!text.empty()) value.push_back(text);
    }
    list.push_back({{"section", v.section},
                    {"key", v.key},
                    {"value", value},
                    {"source", source_of(options, v, line)},
                    {"line", line && *line > 0 ? Json(*line) : Json()}});
  }
  print_json({{"version", PACKAGE_VERSION},
              {"file", options.file},
              {"words", options.line_words},
              {"values", list}});
}

// As a file that means the same: what is not said in it is a comment.
void show_text(const ConfigOptions& options, const std::vector<ConfigValue>& values,
               const ConfigTrace& trace) {
  std::string section;
  for (const ConfigValue& v : values) {
    if (v.section != section)
      std::printf("%s%s\n", section.empty() ? "" : "\n",
                  paint(Colour::kHeading, "[" + v.section + "]").c_str());
    section = v.section;
    const std::optional<int> line = line_of(trace, v);
    std::string from = source_of(options, v, line);
    if (from == "file") from = options.file + ":" + std::to_string(*line);
    if (from == "plugstack.conf") from = options.plugstack;
    if (!v.values) {
      std::printf("# %s is not set\n", v.key.c_str());
      continue;
    }
    for (const std::string& value : *v.values) {
      std::string text = v.key + " = " + value;
      text += std::string(text.size() < 32 ? 32 - text.size() : 1, ' ') + "; " + escaped(from);
      if (text.size() > kMostLine) text = v.key + " = " + value;
      std::puts(text.c_str());
    }
  }
}

int show(const ConfigOptions& options) {
  return with_config("config show", options, [&](const Config& config, const ConfigTrace& trace) {
    const std::vector<ConfigValue> values = values_of(config);
    options.json ? show_json(options, values, trace) : show_text(options, values, trace);
  });
}

void use_plugin_line(ConfigOptions* options) {
  options->file = default_config();
  const std::optional<PluginLine> line = default_plugin_line();
  if (!line) return;
  options->plugstack = line->file;
  for (const std::string& word : line->settings())
    if (!any_sets(options->words, word.substr(0, word.find('=')))) options->line_words.push_back(word);
}

void add_verb(CommandLine app, const char* name, const char* text, int (*run)(const ConfigOptions&),
              int* status) {
  auto options = std::make_shared<ConfigOptions>();
  CommandLine verb = app.add_subcommand(name, text);
  verb.add_option("FILE", options->file, default_text(kDefaultConfig));
  verb.add_flag("--json", options->json, "print as JSON");
  verb.add_option("--set", options->words,
                  "SECTION.KEY=VALUE, which goes before what the file says, as in plugstack.conf")
      .takes_one();
  verb.footer("Exit status: 0 if the configuration is valid, 1 if it is not, 2 for wrong usage.");
  verb.callback([options, run, status] {
    options->is_named = !options->file.empty();
    if (!options->is_named) use_plugin_line(options.get());
    *status = run(*options);
  });
}

}  // namespace

std::vector<std::string> unknown_users(const Config& config) {
  std::vector<std::string> unknown;
  for (const PolicySection& section : config.policies) doubt_names(section, &unknown);
  return unknown;
}

void add_config(CommandLine app, int* status) {
  app.require_subcommand();
  add_verb(app, "check", "read the configuration as monarchd does, and say what is wrong with it", check,
           status);
  add_verb(app, "show", "print every key with its value, and where that comes from", show, status);
}

}  // namespace monarch::admin
