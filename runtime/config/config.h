// SPDX-License-Identifier: Apache-2.0
// What the admin (monarch.conf) or the user (monarchctl run) asked for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace monarch {

enum class Medium { kNvme, kSsd, kHdd, kRam };

// A number of bytes, or a share of a file system's size.
struct Quota {
  uint64_t bytes = 0;
  double percent = -1;  // >= 0: of the file system's size; `bytes` is then unused
  uint64_t of(uint64_t file_system_bytes) const {
    return percent < 0 ? bytes
                       : static_cast<uint64_t>(static_cast<double>(file_system_bytes) * percent / 100);
  }
};
Result<Quota> parse_quota(const std::string& text);

struct TierConfig {
  std::string name;
  std::string path;  // absolute, clean
  Quota quota;
  Medium medium = Medium::kSsd;
  // kDirectory: directories below `path`. kTmpfs: for each job of Slurm's, root mounts a tmpfs of the job's
  // quota there, which nobody can overfill; `quota` is then a share of the node's memory.
  enum class Kind { kDirectory, kTmpfs } kind = Kind::kDirectory;
  // kJob, of a tmpfs: a job's copies there and its own memory are together within what Slurm allocated to it.
  enum class Charge { kNode, kJob } charge = Charge::kNode;
  Quota min_free{0, 5};  // space that is left free on the tier's file system for others
  // A job's part of the quota in Slurm: as its part of the node's cores or memory is, or all. kEqual is as
  // kCpus.
  enum class Share { kCpus, kMemory, kEqual, kWhole } share = Share::kCpus;
  Quota job_capacity{0, 100};  // the most that one job of Slurm's gets; a share of the quota
};

struct AgentConfig {
  int threads = 8;       // copy threads
  int walk_threads = 4;  // threads that list the dataset's directories
  // Directories of the dataset that are watched for changes by programs without the library; 0: none.
  int watch_directories = 8192;
  uint64_t stage_wait_max = 64 << 20;  // an open waits for files up to this size
  // Seconds that mmap(2) and fopen(3) of a larger file wait, if it is expected to be whole by then; 0: none.
  int stage_wait = 1;
  // Seconds for which a file that the job wrote is left alone before it is staged again; 0: never.
  int stage_again = 5;
  // Stage what nothing has asked for yet, and list the dataset to know it. kAuto: no more than
  // runtime/placement/credit.h allows, and unless the job has several nodes that do not know of each other,
  // each of which would then read the whole dataset where sharded training reads it once in all.
  enum class Prefetch { kAuto, kOn, kOff } prefetch = Prefetch::kAuto;
  // Bytes that kAuto may read before the job has read anything.
  static constexpr uint64_t kBurstAuto = UINT64_MAX;
  static constexpr uint64_t kBurstAll = uint64_t{1} << 62;  // no bound, and is the same for each node
  uint64_t prefetch_burst = kBurstAuto;
  // Seconds after the job's first task began: with nothing of the dataset used by then, prefetch rests until
  // something is. 0: it does not.
  int prefetch_patience = 30;
  std::string exclude;  // globs, with colons, of files that are never staged; not configured
  uint32_t nodes = 1;   // of the job, among which what kBurstAuto stands for is divided; not configured
  // When an open checks that a placed file is still the one that was copied: never, since nobody changes a
  // dataset in use; or at each open, for one metadata call to the PFS.
  enum class Consistency { kJob, kOpen } consistency = Consistency::kJob;
  // Who answers stat(2), readdir(3) and kin of what the catalog knows: tasks from there, or the PFS.
  enum class Metadata { kServe, kPass } metadata = Metadata::kServe;
  // Rates that prefetch and what else nobody waits for keep to; 0: none. For the job, so each of its nodes
  // gets its part (see divide_rates). What is waited for counts, but is not held up.
  uint64_t pfs_bandwidth = 0;   // bytes per second read from the PFS
  uint64_t pfs_opens = 0;       // opens per second
  uint64_t pfs_stats = 0;       // directories listed and files examined per second
  uint64_t tier_bandwidth = 0;  // bytes per second written to the tiers of one node
  // The I/O scheduling class of what nobody waits for (ioprio_set(2)).
  enum class Io { kNormal, kLow, kIdle } background_io = Io::kLow;
  // What the agent of a job of Slurm's may use, with its copies in memory; 0: no limit. kMemoryAuto: as much
  // as these and its own data take.
  static constexpr uint64_t kMemoryAuto = UINT64_MAX;
  uint64_t memory_max = kMemoryAuto;
  // In Slurm, the job's run directory, with catalog and board, is a tmpfs of its own of at most this size; 0:
  // a plain directory.
  uint64_t run_size = 512 << 20;
  uint64_t max_files = 0;  // what the catalog has at most, directories and links included; 0: no limit
  std::string log;         // file; empty: monarchd.log in the run directory
  std::string log_level = "info";

  // The node's part of the rates that are meant for the whole job.
  void divide_rates(uint32_t by) {
    for (uint64_t* rate : {&pfs_bandwidth, &pfs_opens, &pfs_stats})
      if (*rate != 0 && by > 1) *rate = *rate / by != 0 ? *rate / by : 1;
    if (prefetch_burst < kBurstAll && by > 1) prefetch_burst /= by;
  }
};

// Where a job's line goes: into the accounting database, now or when it can be reached; into the spool, for
// `monarchd --flush`; into the log of root's helpers only; nowhere. kAuto: kSacct if Slurm has slurmdbd, else
// kLog.
enum class Accounting { kAuto, kSacct, kSpool, kLog, kOff };

struct SpoolConfig {
  int spool_days = 7;       // for which a line waits at most
  int spool_lines = 10000;  // so many at most; the oldest go first
};

// As the configuration file spells them, in their order.
template <typename E>
inline constexpr int kNames = 0;
template <>
inline constexpr std::array kNames<Medium> = {"nvme", "ssd", "hdd", "ram"};
template <>
inline constexpr std::array kNames<TierConfig::Kind> = {"directory", "tmpfs"};
template <>
inline constexpr std::array kNames<TierConfig::Charge> = {"node", "job"};
template <>
inline constexpr std::array kNames<TierConfig::Share> = {"cpus", "memory", "equal", "whole"};
template <>
inline constexpr std::array kNames<AgentConfig::Prefetch> = {"auto", "on", "off"};
template <>
inline constexpr std::array kNames<AgentConfig::Consistency> = {"job", "open"};
template <>
inline constexpr std::array kNames<AgentConfig::Metadata> = {"serve", "pass"};
template <>
inline constexpr std::array kNames<AgentConfig::Io> = {"normal", "low", "idle"};
template <>
inline constexpr std::array kNames<Accounting> = {"auto", "sacct", "spool", "log", "off"};

template <typename E>
constexpr const char* name_of(E value) {
  return kNames<E>[static_cast<size_t>(value)];
}
template <typename E>
Result<E> parse_name(const std::string& text) {
  std::string known;
  for (size_t i = 0; i < kNames<E>.size(); ++i) {
    if (text == kNames<E>[i]) return static_cast<E>(i);
    known += (i == 0 ? "" : ", ") + std::string(kNames<E>[i]);
  }
  return bad_input("'" + text + "' is none of " + known);
}

// What root keeps of jobs that have ended on the node.
struct ReportsConfig {
  int report_days = 7;                         // for which one is kept at most
  uint64_t report_size = uint64_t{100} << 20;  // of all together; the oldest go first; 0: none is kept
};

// How the agents of a job's nodes reach each other.
struct PeerConfig {
  bool enabled = true;
  std::string
      network;  // ADDRESS/BITS: data goes by the node's address in it; empty: by the one in slurm.conf
  struct Ports {
    uint16_t first = 64000, last = 64999;
  } ports;                 // an agent listens on one of these
  uint64_t bandwidth = 0;  // bytes per second and node of what nobody waits for; 0: no limit
  bool encrypt = false;    // all that is sent, not the handshakes alone
};

// Directories of which datasets may be, and of which not, with what is below: absolute and clean. An empty
// list of allowed ones allows all.
struct DatasetRules {
  std::vector<std::string> allow, deny;
};

// What a section of policy says; nothing: it leaves the key to a more general section.
struct PolicyKeys {
  using List = std::optional<std::vector<std::string>>;
  std::optional<bool> enabled;
  List allow_users, deny_users, allow_groups, deny_groups;  // names or numbers
  List allow_datasets, deny_datasets;
  List tiers;  // names, in the order in which they are filled
  std::optional<Quota> job_capacity;
  std::optional<uint64_t> max_files, pfs_bandwidth, pfs_opens, pfs_stats;
  List default_dataset;                        // of jobs that name none: directories
  std::optional<std::string> default_options;  // KEY=VALUE ..., what jobs ask for unless they ask otherwise
  List deny_options;                           // names of options that jobs cannot use
  std::optional<std::string> max_prefetch;     // "all", "auto" or "off": no more is prefetched than by that
  std::optional<int> max_wait;                 // seconds that a job can wait for staging; 0: it cannot
  std::optional<bool> closing_line;            // whether a job's output ends with what the PFS was spared
};

struct PolicySection {
  // In this order a later one goes before the ones above.
  enum class Of { kAll, kPartition, kAccount, kQos } of = Of::kAll;
  std::string name;  // of the partition, account or QOS; the latter two in lower case, as Slurm compares them
  PolicyKeys keys;
  int tiers_line{};           // where the file names `tiers`
  std::string title() const;  // as in the file, without brackets
};

struct Config {
  AgentConfig agent;
  PeerConfig peer;
  Accounting accounting = Accounting::kAuto;
  SpoolConfig spool;
  ReportsConfig reports;
  std::vector<TierConfig> tiers;  // in the order in which they are filled
  std::vector<PolicySection> policies;
  // Of one job; not configured.
  DatasetRules datasets;
  bool closing_line = true;
};

// Reads an INI file (monarch.conf(5)). An unknown section or key, a bad value, a key or tier given
// twice, a tier without path or quota, a quota with no room for any file, and a file that group or others
// can write, or that is neither root's nor the reader's, are errors that name file and line.
//
// `source` is the file's path, and after it a line for each word SECTION.KEY=VALUE that goes before what the
// file says of that key, as with_words() makes it.
Result<Config> load_config(const std::string& source);
// Where a comment begins that stands behind something in a line of such a file: at a # or ; after a blank.
// npos: there is none.
size_t comment_in(const std::string& text);
// An error in a word names plugstack.conf(5), where words come from.
std::string with_words(const std::string& file, const std::vector<std::string>& words);
// The same for what root wrote for an agent, whose quotas may be 0 until other jobs give something back.
Result<Config> load_agent_conf(const std::string& file);
// The same, or the defaults where it fails: what follows a job is done even so.
Config load_config_or_defaults(const std::string& source);

// That of `tiers` whose directory it is, by whatever path; nullptr: none.
const TierConfig* same_directory(const std::vector<TierConfig>& tiers, const TierConfig& tier);

// NAME:PATH:SIZE, as `monarchctl run --tier` takes it; PATH may hold colons. The medium is ram on a
// tmpfs or ramfs, else ssd.
Result<TierConfig> parse_tier_option(const std::string& text);

// Adds a tier; an error if one of that name is there or there are too many.
Status add_tier(Config* config, TierConfig tier);

// Checks what can be checked before anything is made: each dataset is a directory that can be listed,
// each tier a directory, and none lies inside another's. Returns the clean absolute paths of the datasets.
Result<std::vector<std::string>> check_paths(const Config& config, const std::vector<std::string>& datasets);

// Whether the calling user can make directories on each tier; in a job of Slurm's, root makes them.
Status check_writable(const Config& config);

}  // namespace monarch
