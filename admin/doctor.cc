// SPDX-License-Identifier: Apache-2.0
// monarchctl doctor: what this node lacks for jobs to have Monarch, and how to mend it.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "admin/bounded.h"
#include "admin/commands.h"
#include "admin/defaults.h"
#include "admin/output.h"
#include "admin/slurm_facts.h"
#include "admin/tiers.h"
#include "build_config.h"
#include "runtime/base/escape.h"
#include "runtime/base/nearest.h"
#include "runtime/base/paths.h"
#include "runtime/base/uring.h"
#include "runtime/config/config.h"
#include "runtime/config/show.h"
#include "runtime/node/cgroup.h"
#include "runtime/node/job_memory.h"
#include "runtime/node/state.h"

namespace monarch::admin {
namespace {

constexpr int kPatienceMs = 5000;
constexpr char kReadme[] = "see \"Install\" in Monarch's doc/admin-guide.md";

enum class Level { kOk, kSkip, kWarn, kFail };
constexpr const char* kLevels[] = {"ok", "skip", "warn", "FAIL"};

struct Finding {
  Level level;
  std::string text;
  std::string remedy = {};
};
using Findings = std::vector<Finding>;

struct Place {
  std::string config = kDefaultConfig;  // as load_config() takes it
  std::string state_dir = kDefaultState;
  std::optional<PluginLine> line;            // of the plugin
  std::string plugstack;                     // the file; empty: there is no Slurm
  std::string plugin_dir;                    // Slurm's; empty: slurmctld does not tell
  std::map<std::string, std::string> slurm;  // as scontrol shows it; empty: it cannot be asked
};

// With the remedy that the text ends with, if there is one.
Finding failure(const Error& error, const std::string& otherwise) {
  const size_t at = error.text.rfind("; ");
  if (at == std::string::npos) return {Level::kFail, error.text, otherwise};
  return {Level::kFail, error.text.substr(0, at), error.text.substr(at + 2)};
}

std::string shared(const char* name) { return part_of_monarch(name, "share/monarch", PKGDATADIR); }

bool is_root() { return ::geteuid() == 0; }

// monarch.conf, without the plugin's words.
std::string file_of(const Place& place) { return place.config.substr(0, place.config.find('\n')); }

// In a Question: it may be on a file system that hangs. The defaults, if it is not valid.
Config config_of(const Place& place) { return load_config_or_defaults(place.config); }

// As scontrol shows it; nothing: it does not.
std::optional<std::string> slurm_value(const Place& place, const char* key) {
  const auto at = place.slurm.find(key);
  if (at == place.slurm.end()) return {};
  return at->second;
}

// As a line shows it.
std::string setting_text(const std::string& key, const std::string& value) {
  return value == "(null)" ? key + " is not set" : key + " = " + value;
}

// Whether one of the words, after commas, is one of these.
bool has_word(const std::string& value, const std::vector<const char*>& good) {
  std::istringstream words(value);
  for (std::string word; std::getline(words, word, ',');)
    if (std::any_of(good.begin(), good.end(), [&](const char* g) { return word == g; })) return true;
  return false;
}

// ---- Monarch's own parts

Findings check_monarchd(const Place& place) {
  const std::string named = place.line ? place.line->word("monarchd") : "";
  const std::string path = named.empty() ? part_of_monarch("monarchd", "sbin", SBINDIR) : named;
  int status;
  const std::string said = run_program({path, "--version"}, &status);
  if (status != 0)
    return {{Level::kFail, path + " does not run: " + said,
             named.empty() ? "install Monarch whole: make install, or its package"
                           : "mend monarchd= in " + place.line->file + ", or leave it out"}};
  if (said != "monarchd " PACKAGE_VERSION "\n")
    return {{Level::kFail, path + " is " + said + ", this is monarchctl " PACKAGE_VERSION,
             "install one version of both"}};
  return {{Level::kOk, path + ", version " PACKAGE_VERSION}};
}

// What asks Slurm of a job and its nodes, and writes its line. Without words it tells how it is used.
Findings check_account(const Place& place) {
  if (place.plugstack.empty()) return {{Level::kSkip, "there is no Slurm here"}};
  const std::string path = part_of_monarch("monarch_account", "libexec/monarch", PKGLIBEXECDIR);
  int status;
  const std::string said = run_program({path}, &status);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kUsage) return {{Level::kOk, path}};
  return {{Level::kFail, path + " does not run: " + said,
           "install Monarch whole, built for this Slurm: configure --with-slurm=PREFIX"}};
}

// Bound at once, in a program that does nothing.
Findings check_library(const Place&) {
  const std::string path = part_of_monarch("libmonarch_preload.so", "lib/monarch", PKGLIBDIR);
  struct stat st;
  if (::stat(path.c_str(), &st) != 0)
    return {{Level::kFail, path + ": " + std::strerror(errno),
             "install Monarch whole: make install, or its package"}};
  if ((st.st_mode & S_IROTH) == 0)
    return {{Level::kFail, path + ": not all users can read it", "chmod 755 " + path}};
  int status;
  const std::string said =
      run_program({"/usr/bin/env", "LD_BIND_NOW=1", "LD_PRELOAD=" + path, "/bin/true"}, &status);
  if (status != 0 || !said.empty())
    return {{Level::kFail, path + " cannot be loaded: " + said,
             "install Monarch built for this system: its glibc is older, or the file is damaged"}};
  return {{Level::kOk, path}};
}

Findings check_peers(const Place& place) {
  const std::string path = part_of_monarch("libmonarch_peers.so", "lib/monarch", PKGLIBDIR);
  const bool needed = config_of(place).peer.enabled;
  const Level bad = needed ? Level::kFail : Level::kOk;
  const std::string why = needed ? "" : "; not needed: [peer] enabled = off";
  const std::string remedy =
      needed ? "install it, and OpenSSL 3 and libevent with it, or write enabled = off in [peer]" : "";
  if (::access(path.c_str(), R_OK) != 0) return {{bad, path + ": " + std::strerror(errno) + why, remedy}};
  int status;
  const std::string said = run_program({"/usr/bin/ldd", path}, &status);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return {{Level::kSkip, path + ": there is no ldd to tell what it lacks"}};
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);)
    if (line.find("not found") != std::string::npos || status != 0)
      return {{bad, path + ": " + line.substr(std::min(line.size(), line.find_first_not_of(" \t"))) + why,
               remedy}};
  return {{Level::kOk, path}};
}

// As the line names it, which is there. Empty: that is in a directory that is not known.
std::string path_of_plugin(const Place& place) {
  const std::string& named = place.line->plugin;
  if (named[0] == '/') return named;
  return place.plugin_dir.empty() ? "" : place.plugin_dir + "/" + named;
}

Findings unknown_words(const PluginLine& line) {
  Findings all;
  for (const std::string& word : line.unknown())
    all.push_back({Level::kWarn,
                   line.file + " has a word that nobody reads: " + word +
                       did_you_mean(nearest(word.substr(0, std::min(word.find('='), word.size() - 1) + 1),
                                            {"config=", "state_dir=", "monarchd=", "log="})),
                   "known are config= state_dir= monarchd= log= and SECTION.KEY=VALUE of monarch.conf"});
  return all;
}

// slurmd asks plugins which hooks they have on the node once, when it begins. Packages install files with
// older times.
Findings older_slurmd(const PluginLine& line, const std::string& plugin) {
  Findings all;
  const std::optional<int64_t> begin = oldest_slurmd();
  for (const std::string& file : {line.file, plugin})
    if (struct stat st;
        begin && ::stat(file.c_str(), &st) == 0 && std::max(st.st_mtim.tv_sec, st.st_ctim.tv_sec) > *begin)
      all.push_back({Level::kWarn,
                     "slurmd began before " + file +
                         " was written: it may not call the plugin at the end of jobs, which are cleaned up "
                         "later then",
                     "systemctl restart slurmd"});
  return all;
}

Findings check_plugin(const Place& place) {
  if (place.plugstack.empty())
    return {{Level::kSkip, "there is no Slurm here: no slurm.conf is found, and scontrol gets no answer"}};
  const std::string installed = part_of_monarch("spank_monarch.so", "lib/slurm", SPANKDIR);
  if (!place.line)
    return {{Level::kFail, place.plugstack + ", with what it includes, has no line for spank_monarch.so",
             "add: optional " + installed + " config=" + kDefaultConfig + "; " + kReadme}};
  const PluginLine& line = *place.line;
  const std::string path = path_of_plugin(place);
  const auto and_words = [&](const Finding& first) {
    Findings all = unknown_words(line);
    all.insert(all.begin(), first);
    if (!line.again.empty())
      all.push_back({Level::kFail,
                     line.again + " has another line for spank_monarch.so than " + line.file +
                         ": Slurm loads both, and jobs go by the words of the last one",
                     "remove one of the lines"});
    for (const Finding& older : older_slurmd(line, path)) all.push_back(older);
    return all;
  };
  if (path.empty())
    return and_words({Level::kSkip, line.file + " names " + line.plugin +
                                        "; slurmctld, which knows PluginDir, does not answer"});
  const Result<uint32_t> built = number_in(path, "plugin_version");
  if (!built.ok())
    return {{Level::kFail, line.file + " names a plugin that cannot be loaded: " + built.error().text,
             "write its path there; 'make install' puts it to " SPANKDIR}};
  const std::optional<std::string> version = slurm_value(place, "SLURM_VERSION");
  if (!version)
    return and_words({Level::kSkip, path + " is built for Slurm " + release_of(*built) +
                                        "; Slurm does not tell which it is"});
  if (release_of(*built) != release_of(*version))
    return {{Level::kFail, path + " is built for Slurm " + release_of(*built) + ", and this is " + *version,
             "build Monarch for it: configure --with-slurm=PREFIX"}};
  return and_words({Level::kOk, path + ", for Slurm " + release_of(*built)});
}

// ---- configuration and state

// What sections of policy are of, and how Slurm tells what it has of that.
struct Named {
  PolicySection::Of of;
  const char* what;
  std::vector<std::string> ask;
  std::string before;  // each name
  const char* remedy;
};
const Named kPartitions = {PolicySection::Of::kPartition,
                           "partition",
                           {"scontrol", "show", "partition", "--oneliner"},
                           "PartitionName=",
                           "name one that 'sinfo' lists"};
const Named kInDatabase[] = {{PolicySection::Of::kAccount,
                              "account",
                              {"sacctmgr", "-nP", "list", "account", "format=account"},
                              "",
                              "name one that 'sacctmgr list account' lists"},
                             {PolicySection::Of::kQos,
                              "QOS",
                              {"sacctmgr", "-nP", "list", "qos", "format=name"},
                              "",
                              "name one that 'sacctmgr list qos' lists"}};

// None: Slurm does not tell.
std::set<std::string> names_of(const Named& named) {
  int status;
  std::istringstream in(run_program(named.ask, &status));
  std::set<std::string> names;
  for (std::string word; status == 0 && in >> word;)
    if (word.starts_with(named.before)) names.insert(word.substr(named.before.size()));
  return names;
}

// Sections of policy that hold for nobody.
Findings unknown_names(const Place& place, const Config& config, const Named& named) {
  Findings all;
  std::optional<std::set<std::string>> known;
  for (const PolicySection& section : config.policies) {
    if (section.of != named.of || place.slurm.empty()) continue;
    if (!known) known = names_of(named);
    if (!known->empty() && known->count(section.name) == 0)
      all.push_back({Level::kWarn,
                     file_of(place) + ": [" + section.title() + "]: Slurm has no such " + named.what,
                     named.remedy});
  }
  return all;
}

// Of jobs, if the file or a word of the plugin's line has said so.
std::optional<Finding> switched_off(const Place& place, const std::string& file, const Config& config,
                                    const ConfigTrace& trace) {
  const auto says = [&](const PolicySection& section, bool enabled) {
    return section.keys.enabled == std::optional<bool>(enabled);
  };
  bool off = false;
  std::string but;
  for (const PolicySection& section : config.policies) {
    off |= section.of == PolicySection::Of::kAll && says(section, false);
    if (section.of != PolicySection::Of::kAll && says(section, true))
      but += (but.empty() ? " but those of [" : " and [") + section.title() + "]";
  }
  if (!off) return {};
  const auto at = trace.lines.find("policy.enabled");
  const int line = at == trace.lines.end() ? 0 : at->second;
  const std::string where =
      line > 0 || !place.line ? file + ":" + std::to_string(line) : "a word in " + place.line->file;
  return Finding{Level::kWarn, "jobs" + but + " go without Monarch: [policy] enabled = off, by " + where,
                 "enabled = on there, if they are to have it"};
}

Findings check_config(const Place& place) {
  const std::string file = file_of(place);
  ConfigTrace trace;
  const Result<Config> config = load_config(place.config, &trace);
  if (config.ok()) {
    Findings all = unknown_names(place, *config, kPartitions);
    for (const std::string& doubt : unknown_users(*config))
      all.push_back({Level::kWarn, file + ": " + doubt, "write one that 'getent' knows, or its number"});
    if (const std::optional<Finding> off = switched_off(place, file, *config, trace))
      all.insert(all.begin(), *off);
    all.insert(all.begin(), {Level::kOk, file});
    return all;
  }
  if (is_of_word(config.error()) && place.line)
    return {{Level::kFail, config.error().text, "mend the word in " + place.line->file}};
  if (config.error().code == EACCES && !is_root()) return {{Level::kSkip, file + ": only root can read it"}};
  const bool missing = config.error().code == ENOENT;
  return {{Level::kFail, config.error().text,
           missing ? "copy " + shared("monarch.conf.sample") + " to " + file + " as root"
                   : "monarchctl config check " + file}};
}

// One that only root can write, if it is there.
std::optional<Finding> not_roots(const std::string& path, bool* there) {
  struct stat st;
  *there = ::lstat(path.c_str(), &st) == 0;
  if (!*there && errno == ENOENT) return {};
  if (!*there)
    return Finding{
        is_root() ? Level::kFail : Level::kSkip, path + ": " + std::strerror(errno),
        is_root() ? "look why root cannot see it; or name another one by state_dir= in plugstack.conf" : ""};
  if (!S_ISDIR(st.st_mode))
    return Finding{
        Level::kFail, path + ": not a directory",
        "name root's state directory by state_dir= in plugstack.conf, or by --state-dir; or move " + path +
            " away, if nothing needs it"};
  if (st.st_uid != 0 || (st.st_mode & (S_IWGRP | S_IWOTH)))
    return Finding{Level::kFail, path + ": not only root can write it",
                   "chown root " + path + " && chmod go-w " + path};
  return {};
}

Findings check_state(const Place& place) {
  bool there = false;
  Findings bad;
  for (size_t at = place.state_dir.find('/', 1);; at = place.state_dir.find('/', at + 1)) {
    const std::string path = place.state_dir.substr(0, at);
    struct stat st;
    const bool above = at != std::string::npos;
    // What is above may be sticky, as /tmp is, but then somebody else can be first.
    if (!above || (::stat(path.c_str(), &st) == 0 && !(st.st_mode & S_ISVTX)))
      if (const std::optional<Finding> f = not_roots(path, &there)) bad.push_back(*f);
    if (!above) break;
  }
  if (!bad.empty()) return bad;
  if (const Status room = check_state_room(place.state_dir); !room.ok()) return {failure(room.error(), "")};
  if (!there) return {{Level::kOk, place.state_dir + " is made when the first job starts"}};
  if (!is_root())
    return {{Level::kOk, place.state_dir},
            {Level::kSkip, "only root can see the contents of " + place.state_dir}};
  const Result<StateDir> state = StateDir::open(place.state_dir);
  if (!state.ok())
    return {failure(state.error(),
                    "let root write there, or name another directory by state_dir= in plugstack.conf")};
  Findings found = {{Level::kOk, place.state_dir + ": " + counted(state->jobs().size(), "job") + ", " +
                                     std::to_string(state->removals().size()) + " being removed"}};
  if (const size_t lines = state->spooled().size(); lines > 0)
    found.push_back(
        {Level::kWarn,
         counted(lines, "line waits", "lines wait") + " for sacct in " + place.state_dir + "/spool",
         "is slurmdbd there? then: monarchctl flush"});
  return found;
}

// Who can list its directory can keep it locked in the kernel.
Findings check_log(const Place& place) {
  const std::string log = place.line ? place.line->word("log") : "";
  if (log.empty() || log == "syslog") return {{Level::kOk, "root's helpers write to syslog"}};
  const std::string dir = log.substr(0, std::max<size_t>(log.rfind('/'), 1));
  struct stat st;
  if (log[0] == '/' && ::stat(dir.c_str(), &st) == 0 && (st.st_mode & S_IROTH))
    return {{Level::kWarn,
             log + ": users can list " + dir +
                 ", and so keep the log of root's helpers from being made and rotated",
             "mkdir -m 711 /var/log/monarch, and log=/var/log/monarch/monarchd.log in plugstack.conf"}};
  return {{Level::kOk, "root's helpers write to " + log}};
}

// Why no control group of Slurm's holds a job's memory; empty: one does, or it is not known.
std::string why_memory_is_free(const Place& place) {
  const auto task = slurm_value(place, "TaskPlugin"), ram = slurm_value(place, "ConstrainRAMSpace");
  if (task && !has_word(*task, {"task/cgroup"})) return setting_text("TaskPlugin", *task);
  if (ram && !has_word(*ram, {"yes"})) return setting_text("ConstrainRAMSpace", *ram);
  return "";
}

// Why no job can be charged for a tier, and what mends it; empty: one can, or it is not known.
std::string why_uncharged(const Place& place) {
  if (const std::string free = why_memory_is_free(place); !free.empty())
    return "Slurm does not constrain the memory of jobs (" + free +
           "); TaskPlugin=task/cgroup in slurm.conf and ConstrainRAMSpace=yes in cgroup.conf";
  const auto select = slurm_value(place, "SelectTypeParameters");
  return why_not_charged(!select || ::strcasestr(select->c_str(), "memory"), Cgroups());
}

Findings check_tiers(const Place& place) {
  const Result<Config> read = load_config(place.config);
  if (!read.ok() && read.error().code != EACCES)
    return {{Level::kSkip, "without a valid configuration jobs have none"}};
  const Config config = read.ok() ? *read : Config();
  const Result<std::vector<Candidate>> found = look_at_tiers(config.tiers);
  if (!found.ok()) return {{Level::kFail, found.error().text, "monarchctl tiers; monarchctl config check"}};
  const size_t configured = config.tiers.size();
  Findings all;
  for (size_t i = 0; i < found->size(); ++i) {
    const Candidate& c = (*found)[i];
    const std::string name = "tier " + c.tier.name + ": ", text = name + c.path + ": " + c.reason;
    const bool to_job = c.chosen && c.tier.charge == TierConfig::Charge::kJob;
    if (const std::string why = to_job ? why_uncharged(place) : ""; !why.empty())
      all.push_back(failure(bad_input(name + "no job can use it: charge = job, but " + why +
                                      ", or charge = node in [tier." + c.tier.name + "]"),
                            ""));
    else if (c.chosen)
      all.push_back({c.remedy.empty() ? Level::kOk : Level::kWarn, text, c.remedy});
    else if (i < configured)
      all.push_back(c.remedy.empty() ? failure(bad_input(text), "monarchctl tiers; monarchctl config check")
                                     : Finding{Level::kFail, text, c.remedy});
    if (const std::string doubt = c.chosen && i < configured ? doubt_of_disk(c.tier) : ""; !doubt.empty())
      all.push_back(
          {Level::kWarn, doubt, "mount the disk there; without one on this node, nothing is to be done"});
  }
  if (configured == 0 && chosen(*found).empty())
    all.push_back(
        {Level::kFail, "this node has no tier",
         "name a directory on a local disk in [tier.NAME]; 'monarchctl tiers' tells why none is chosen"});
  return all;
}

// ---- the kernel

Findings check_io_uring(const Place&) {
  alignas(4096) static char buffer[4096];
  char* const one = buffer;
  if (Uring::create(&one, 1, sizeof buffer)) return {{Level::kOk, "the agent copies by it"}};
  return {{Level::kWarn, "no io_uring: the agent copies by read and write, with more threads at work",
           "sysctl kernel.io_uring_disabled=0, if the site allows it; or a build with liburing"}};
}

// By uname's release, as "5.14.0-427.el9".
Findings check_kernel(const Place&) {
  utsname name{};
  int major = 0, minor = 0;
  ::uname(&name);
  std::sscanf(name.release, "%d.%d", &major, &minor);
  const std::string is = std::string("Linux ") + name.release;
  if (major > 5 || (major == 5 && minor >= 14)) return {{Level::kOk, is}};
  return {{Level::kFail, is + " lacks calls that Monarch makes",
           "Linux 5.14 or newer, as of RHEL 9 and Debian 12"}};
}

Findings check_cgroups(const Place&) {
  const Cgroups groups;
  for (const CgroupHierarchy& h : groups.hierarchies()) {
    bool memory = !h.unified && h.has("memory");
    std::ifstream in(h.mount + "/cgroup.controllers");
    for (std::string controller; h.unified && in >> controller;) memory |= controller == "memory";
    if (memory)
      return {{Level::kOk,
               "memory control groups of version " + std::string(h.unified ? "2" : "1") + ", at " + h.mount}};
  }
  return {{Level::kWarn, "no memory control groups: agents are not limited (memory_max)",
           "boot with cgroup_enable=memory, or mount them"}};
}

// Of Monarch's own files, as restorecon(8) would have them.
Findings check_labels(const Place& place) {
  std::vector<std::string> words = {"restorecon", "-nv", part_of_monarch("monarchd", "sbin", SBINDIR),
                                    part_of_monarch("libmonarch_preload.so", "lib/monarch", PKGLIBDIR),
                                    part_of_monarch("libmonarch_peers.so", "lib/monarch", PKGLIBDIR)};
  if (place.line && !path_of_plugin(place).empty()) words.push_back(path_of_plugin(place));
  int status;
  const std::string said = run_program(words, &status);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return {{Level::kSkip, "labels: there is no restorecon"}};
  Findings found;
  std::istringstream lines(said);
  for (std::string line; std::getline(lines, line);) {
    constexpr char kWould[] = "Would relabel ";
    if (line.rfind(kWould, 0) != 0) continue;
    const std::string path = line.substr(sizeof kWould - 1, line.find(" from ") - (sizeof kWould - 1));
    found.push_back({Level::kWarn, "label: " + line.substr(sizeof kWould - 1), "restorecon -v " + path});
  }
  if (found.empty() && status != 0)
    found.push_back({Level::kSkip, "labels: restorecon: " + said.substr(0, said.find('\n'))});
  if (found.empty()) found.push_back({Level::kOk, "the labels of Monarch's files are right"});
  return found;
}

Findings check_selinux(const Place& place) {
  int status;
  std::string mode = run_program({"getenforce"}, &status);
  mode.resize(std::min(mode.find('\n'), mode.size()));
  if (status != 0) return {{Level::kOk, "this node has none"}};
  if (mode == "Disabled") return {{Level::kOk, "Disabled"}};
  Findings found = check_labels(place);
  if (mode == "Enforcing")
    found.push_back(
        {Level::kWarn, "Enforcing: Monarch was not tried with it, and brings no policy",
         "setenforce 0 for a trial on one node; 'ausearch -m avc -c monarchd' lists what would be refused"});
  else
    found.push_back({Level::kOk, mode});
  return found;
}

// ---- containers

// enroot runs the hooks in its configuration for containers of pyxis, too. Other tools need no hook.
Findings check_containers(const Place&) {
  int status;
  run_program({"enroot", "version"}, &status);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 127)
    return {{Level::kOk, "no enroot; other container tools need no hook"}};
  const char* const named = std::getenv("ENROOT_SYSCONF_PATH");
  const std::string hooks = std::string(named && *named ? named : "/etc/enroot") + "/hooks.d",
                    hook = hooks + "/50-monarch.sh";
  if (::access(hook.c_str(), F_OK) != 0)
    return {{Level::kWarn,
             hook + ": " + std::strerror(errno) +
                 ": containers of enroot and pyxis are not served without arguments of their own",
             "install -m 755 " + shared("enroot/50-monarch.sh") + " " + hooks + "/"}};
  if (::access(hook.c_str(), R_OK | X_OK) != 0)
    return {{Level::kWarn, hook + " cannot be run: " + std::strerror(errno), "chmod 755 " + hook}};
  return {{Level::kOk, "enroot's hook " + hook}};
}

// ---- Slurm

// How a value of slurm.conf is judged: `good` if one of its words (after commas) is one of these.
struct SlurmRule {
  const char* key;
  std::vector<const char*> good;
  const char* otherwise;
  const char* remedy;
};
// NamespaceType is what Slurm 25.11 calls JobContainerType, and takes either's values.
SlurmRule own_mounts(const char* key) {
  return {
      key,
      {"job_container/none", "(null)", "namespace/none", "N/A"},
      "each job has mounts of its own: a tier must not be below a directory that is private to jobs, as /tmp",
      "a tier outside the directories of job_container.conf, or of namespace.yaml"};
}
const SlurmRule kSlurmRules[] = {
    {"PrologFlags",
     {"Contain", "contain"},
     "the agent starts with the job's first processes, which find nothing staged",
     "PrologFlags=Contain in slurm.conf"},
    {"ProctrackType",
     {"proctrack/cgroup"},
     "a process that leaves its session may outlive the job, and reads the PFS then",
     "ProctrackType=proctrack/cgroup in slurm.conf"},
    {"TaskPlugin",
     {"task/cgroup"},
     "jobs are not held to their memory, so that one may drive out the copies of others",
     "TaskPlugin=task/affinity,task/cgroup in slurm.conf"},
    own_mounts("JobContainerType"),
    own_mounts("NamespaceType"),
    {"AccountingStorageType",
     {"accounting_storage/slurmdbd"},
     "jobs have no line of Monarch's in sacct; it goes to the log",
     "AccountingStorageType=accounting_storage/slurmdbd, if sacct is to have it"},
};

Findings check_slurm(const Place& place) {
  if (place.slurm.empty()) return {{Level::kSkip, "scontrol is not there, or slurmctld does not answer"}};
  Findings all;
  for (const SlurmRule& rule : kSlurmRules) {
    const std::optional<std::string> value = slurm_value(place, rule.key);
    if (!value) continue;  // of another release
    const std::string text = setting_text(rule.key, *value);
    if (has_word(*value, rule.good))
      all.push_back({Level::kOk, text});
    else
      all.push_back({Level::kWarn, text + ": " + rule.otherwise, rule.remedy});
  }
  return all;
}

Findings check_slurmdbd(const Place& place) {
  if (slurm_value(place, "AccountingStorageType") != "accounting_storage/slurmdbd")
    return {{Level::kSkip, "Slurm has none, or does not answer"}};
  int status;
  const std::string said = run_program({"sacctmgr", "-nP", "list", "cluster", "format=cluster"}, &status);
  if (status == 0) {
    Findings all = {{Level::kOk, "it answers"}};
    for (const Named& named : kInDatabase)
      for (const Finding& f : unknown_names(place, config_of(place), named)) all.push_back(f);
    return all;
  }
  return {{Level::kWarn, "slurmdbd does not answer: " + said.substr(0, said.find('\n')),
           "start it; lines for sacct wait meanwhile, and 'monarchctl flush' writes them"}};
}

struct Check {
  const char* name;
  Findings (*run)(const Place&);
};
constexpr Check kChecks[] = {{"agent", check_monarchd},  {"account", check_account},
                             {"library", check_library}, {"peers", check_peers},
                             {"plugin", check_plugin},   {"config", check_config},
                             {"state", check_state},     {"log", check_log},
                             {"tiers", check_tiers},     {"io_uring", check_io_uring},
                             {"kernel", check_kernel},   {"cgroups", check_cgroups},
                             {"selinux", check_selinux}, {"containers", check_containers},
                             {"slurm", check_slurm},     {"slurmdbd", check_slurmdbd}};

// The findings of one, as they are printed.
Json list_of(const char* check, const Findings& findings) {
  Json list = Json::array();
  for (const Finding& f : findings)
    list.push_back({{"check", check},
                    {"level", kLevels[static_cast<size_t>(f.level)]},
                    {"text", f.text},
                    {"remedy", or_null(f.remedy)}});
  return list;
}

Json answer_of(const char* check, Question* question) {
  const Result<std::string> answer = question->answer(kPatienceMs);
  if (answer.ok()) return *Json::parse(*answer);
  return list_of(check, {{Level::kFail, answer.error().text,
                          "does a file system or a daemon hang? 'dmesg' and the logs may tell"}});
}

struct DoctorOptions {
  std::string config, state_dir;
  bool json = false;
};

// Where the other subcommands find plugstack.conf, so that all say the same whether slurmctld answers or not;
// else where Slurm says that it is. Slurm's configuration may be on a file system that hangs, too.
void find_line(const std::string& as_slurm_says, Place* place) {
  Question asked([&] {
    std::string plugstack = default_plugstack();
    if (plugstack.empty()) plugstack = as_slurm_says;
    (void)find_plugin_line(plugstack).ok();
    return plugstack;
  });
  const Result<std::string> answer = asked.answer(kPatienceMs);
  place->plugstack = answer.ok() ? *answer : as_slurm_says;
  if (!answer.ok()) return;
  if (Result<std::optional<PluginLine>> line = find_plugin_line(*answer); line.ok())
    place->line = line.take();
}

// What the checks look at, as far as it can be told in time.
Place find_place(const DoctorOptions& options) {
  Place place;
  if (const Result<std::string> shown = ask_program({"scontrol", "show", "config"}, kPatienceMs); shown.ok())
    place.slurm = parse_show_config(*shown);
  const auto value = [&](const char* key) { return slurm_value(place, key).value_or(""); };
  const std::string slurm_conf = value("SLURM_CONF"), named = value("PlugStackConfig");
  place.plugin_dir = value("PluginDir");
  std::string plugstack;
  if (!slurm_conf.empty())
    plugstack =
        named.rfind('/', 0) == 0 ? named : slurm_conf.substr(0, slurm_conf.rfind('/')) + "/plugstack.conf";
  find_line(plugstack, &place);
  if (place.line && !place.line->word("state_dir").empty()) place.state_dir = place.line->word("state_dir");
  if (place.line && !place.line->word("config").empty()) place.config = place.line->word("config");
  if (!options.state_dir.empty()) place.state_dir = options.state_dir;
  if (!options.config.empty()) place.config = options.config;
  if (place.line) place.config = with_words(place.config, place.line->settings());
  return place;
}

int doctor(const DoctorOptions& options) {
  const Place place = find_place(options);
  std::vector<Question> questions;
  questions.reserve(std::size(kChecks));
  for (const Check& check : kChecks)
    questions.emplace_back([&] { return list_of(check.name, check.run(place)).dump(); });
  Json list = Json::array();
  std::map<std::string, size_t> counts;
  const std::map<std::string, Colour> colours = {{"ok", Colour::kGood},
                                                 {"skip", Colour::kDoubtful},
                                                 {"warn", Colour::kDoubtful},
                                                 {"FAIL", Colour::kBad}};
  for (size_t i = 0; i < questions.size(); ++i) {
    const Json found = answer_of(kChecks[i].name, &questions[i]);
    for (const Json& f : found.elements()) {
      const std::string& level = f["level"].text();
      ++counts[level];
      list.push_back(f);
      if (options.json) continue;
      std::printf("%s%s %-10s %s\n", paint(colours.at(level), level).c_str(),
                  std::string(4 - level.size(), ' ').c_str(), kChecks[i].name,
                  escaped(f["text"].text()).c_str());
      if (!f["remedy"].is_null()) std::printf("                -> %s\n", escaped(f["remedy"].text()).c_str());
      std::fflush(stdout);
    }
  }
  if (options.json)
    print_json({{"version", PACKAGE_VERSION}, {"failed", counts["FAIL"]}, {"checks", list}});
  else
    std::printf("%zu failed, %s, %zu skipped%s\n", counts["FAIL"], counted(counts["warn"], "warning").c_str(),
                counts["skip"], is_root() ? "" : "; root sees more");
  return counts["FAIL"] > 0 ? kFailure : 0;
}

}  // namespace

void add_doctor(CommandLine app, int* status) {
  auto options = std::make_shared<DoctorOptions>();
  app.add_flag("--json", options->json, "print as JSON");
  app.add_option("--config", options->config, "configuration; " + default_text(kDefaultConfig));
  app.add_option("--state-dir", options->state_dir, "root's state directory; " + default_text(kDefaultState));
  app.footer(
      "Changes nothing, and takes some 10 seconds at most.\nExit status: 0 if nothing failed, 1 if something "
      "did, 2 for wrong usage.");
  app.callback([options, status] { *status = doctor(*options); });
}

}  // namespace monarch::admin
