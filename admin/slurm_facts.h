// SPDX-License-Identifier: Apache-2.0
// What this node's Slurm says of itself and of jobs, and how Monarch's plugin is set up in it.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace monarch::admin {

// "KEY = VALUE" lines of `scontrol show config`.
std::map<std::string, std::string> parse_show_config(const std::string& text);

// A line for spank_monarch.so in plugstack.conf or a file that it includes.
struct PluginLine {
  std::string file;                // where the line is
  std::string plugin;              // as written
  std::vector<std::string> words;  // its arguments
  std::string again;               // where there is another such line, which Slurm loads, too; "": nowhere
  // That of KEY=VALUE, the last one, as the plugin takes it; empty: it has none.
  std::string word(const std::string& key) const;
  std::vector<std::string> settings() const;  // SECTION.KEY=VALUE
  std::vector<std::string> unknown() const;   // what the plugin does not know
};
// Where the plugins are named, by that slurm.conf: its PlugStackConfig, else plugstack.conf beside it.
std::string plugstack_of(const std::string& slurm_conf);
// Nothing: there is none. An error if the file is there and cannot be read.
Result<std::optional<PluginLine>> find_plugin_line(const std::string& plugstack);

// The number in the ELF object's exported variable of that name, 4 bytes; an error says what is wrong with
// the file. Nothing of it is executed.
Result<uint32_t> number_in(const std::string& file, const std::string& symbol);

// When the first slurmd of root's that runs on this node began, in seconds of CLOCK_REALTIME; nothing: none
// is seen.
std::optional<int64_t> oldest_slurmd();

// 0x160508 and "22.05.8-2" as 22.05: plugins fit all releases with the same.
std::string release_of(uint32_t version_number);
std::string release_of(const std::string& version);

// ---- jobs of several names: elements of an array (4711_3) and components of a heterogeneous job (4711+1),
// each of which has a number of its own, by which all of Monarch knows it

// What sacct prints of a job, NUMBER or NUMBER@CLUSTER.
Result<std::string> ask_sacct(const std::string& name, const char* fields);

struct JobPart {
  std::string name, number;  // "4711_3", "4712"
};
// Those of a job that squeue knows, or else sacct; none: it has none, or neither tells within seconds.
std::vector<JobPart> parts_of(const std::string& name);

// "4711_1, 4711_2 ..."
std::string names_of(const std::vector<JobPart>& parts);

// The name by the part's own number; as it is where it names no part, or nobody tells.
std::string by_own_number(const std::string& name);

}  // namespace monarch::admin
