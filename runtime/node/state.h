// SPDX-License-Identifier: Apache-2.0
// What root remembers of a job on this node: the state directory, which no user can write, or list.
//
//   STATE/ledger           0600, root's: the lock on what jobs are granted
//   STATE/jobs/            0700, root's
//   STATE/jobs/CLUSTER.JOB.NODE/   one per job: its lock; record.json (JobRecord)
//   STATE/removing/        0700, root's
//   STATE/removing/NAME.SERIAL/    what is being removed: its lock; record.json
//   STATE/grants/          0711, root's
//   STATE/grants/NAME.SERIAL       0644, root's: what is granted to the job, for its agent
//                          (runtime/hierarchy/grant.h)
//   STATE/run/             0711, root's
//   STATE/run/NAME.SERIAL/ root's, and the job owner may enter it (job_dirs.h); in it, of fixed names and the
//                          owner's: catalog, board, log, agent.conf, datasets, peers (run_file.h)
//   STATE/spool/           0700, root's: lines for sacct that are not yet written
//   STATE/reports/         0711, root's: reports of ended jobs (runtime/node/reports.h)
//   STATE/metrics          0600, root's: what jobs have counted (runtime/node/metrics.h), and metrics.lock
//   STATE/keeper.lock      whose lock the keeper holds
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/node/identity.h"

namespace monarch {

struct JobOnNode {
  uint32_t job = 0;
  std::string node;
  std::string cluster = "cluster";  // as Slurm understood ClusterName
  // Its directory below jobs/. A machine may be a node of several clusters, under one name.
  std::string key() const { return cluster + "." + std::to_string(job) + "." + node; }
};

struct TierRecord {
  std::string name;
  std::string medium;
  std::string path;  // the tier's directory, as configured
  TierConfig::Kind kind = TierConfig::Kind::kDirectory;
  uint64_t quota = 0;                     // bytes that are granted to the job, and count as its
  uint64_t limit = 0;                     // what all jobs together may have: the admin's quota
  std::optional<uint64_t> occupied = {};  // in removing/: bytes that are still there; unknown: the quota
  uint64_t share = 0;                     // what the quota may grow to
  bool to_job = false;                    // it is charged to the job
  uint64_t charged() const { return occupied.value_or(quota); }
};

// What the hook that started a job was given, for who goes on for it: a node may be of several clusters.
struct OfCluster {
  std::string slurm_conf;       // SLURM_CONF; empty: none
  std::string config;           // as load_config() takes it
  std::string account_program;  // empty: no line for sacct
};

// Why a job has no agent.
struct NotedFailure {
  std::string run;       // which of the job's it is; "": none has failed
  bool refused = false;  // it was turned away: nothing has failed
  std::string reason;    // one line
  std::string tried;
};

// As a hook was told it; either may be missing, or be anything (job_peers.h).
struct ToldOfPeers {
  std::string key;    // 64 hexadecimal digits
  std::string nodes;  // the job's, abbreviated: n[1-4]
};

// What the job's prolog and its starts have noted of the job: it may be of the next run while the last one is
// still there.
struct JobNotes {
  std::string datasets;     // PATH[:PATH...]; "": nothing is wanted
  std::string options;      // with those (job_options.h)
  ToldOfPeers peers;        // without a key: not noted
  bool by_default = false;  // the datasets are the administrator's default
  bool no_default = false;  // there is none for this job
  std::string facts;        // job_facts.h
  NotedFailure failure;
  std::string told;  // what the user was told last, and in which run
};

// record.json: written by root, read by root, replaced as a whole by who has the job's lock. It goes to
// removing/ when the job has ended on this node.
struct JobRecord {
  JobNotes notes;  // not in removing/
  JobOnNode job;
  uint32_t restart = 0;
  std::string name;  // <cluster>.<job>.<restart>.<node>
  User user;
  ProcessId agent;
  std::string boot;
  std::string run_dir;
  std::vector<TierRecord> tiers;
  uint64_t memory = 0;  // bytes that Slurm allocated to the job here; 0: not known
  uint64_t serial = 0;  // differs between all that have this name
  // 1: the job's directories are the owner's, of that name, or of removal() behind ".removed.", as releases
  // before 0.2.0 made them; 2: they are root's, and called removal().
  uint32_t layout = 1;
  uint32_t nodes = 1;         // of the job
  bool first_node = true;     // this is the job's first node
  bool peers = false;         // its agent has peers
  uint32_t peer_index = 0;    // its place among these
  uint64_t agent_memory = 0;  // that its control group is limited to; 0: not
  bool resumed = false;       // it goes on for one that was killed
  OfCluster of_cluster;
  // Of a removal: how often it was tried, and when it is tried again (seconds of CLOCK_REALTIME); 0: now.
  uint32_t given_up = 0;
  int64_t next_try = 0;
  // Of a run whose start came to its end:
  std::string serves;              // the agent's datasets; "": it did not
  std::string no_peers, remark;    // for the user
  uint32_t wait_percent = 0;       // what the first step with tasks is to wait for; 0: nothing
  int64_t wait_until_ms = 0;       // until then, of CLOCK_MONOTONIC
  bool late = false;               // its agent was not ready in time
  bool closing_line = false;       // the job's output ends with one
  bool hints = false;              // its tasks give hints by themselves
  std::string report_file;         // of its owner's, who has user.groups (owners_report.h)
  std::vector<ProcessId> anchors;  // slurmstepds that live as long as the run does (watch.h)
  std::vector<ProcessId> hanging;  // processes of root's that hung in the kernel in its files (life.h)
  // What was seen of it since:
  std::vector<ProcessId> stepd;   // a slurmstepd
  int64_t alone_since = 0;        // seconds of CLOCK_BOOTTIME without one; 0: it has one
  bool suspended = false;         // its agent rests, as its tasks do
  std::string memory_group;       // where its memory counts, if a tier is charged to it; "": not known
  int64_t memory_looked = 0;      // when that was looked for, seconds of CLOCK_REALTIME
  bool memory_told = false;       // the log has that there is none
  int64_t submit = 0, start = 0;  // as Slurm says; 0: not known
  int64_t next_ask = 0;           // for those, seconds of CLOCK_REALTIME; -1: not any more
  // The agent is not, or not everywhere, in groups of its own.
  bool shared_group = false;
  bool stopping = false;                          // it was seen alive before root killed it
  bool accounted = false;                         // another helper does not do it again
  bool has_run() const { return !name.empty(); }  // false: nothing of it but job and notes is set
  std::string removal() const { return name + "." + std::to_string(serial); }
  std::string grants() const { return "grants/" + on_tier(); }
  bool has_roots_tiers() const { return layout >= 2; }
  // What the job's directories are called, on its tiers and below run/.
  std::string on_tier() const { return has_roots_tiers() ? removal() : name; }
};

// A job's record, and the lock on it.
struct LockedJob {
  Fd lock;
  JobRecord record;
};

class StateDir {
 public:
  // Makes STATE and what is below it, as need be. Refused if any of it is not root's or others can write it,
  // or if it is on a network's file system or FUSE.
  // `clock` is what root's helpers of this directory wait by.
  static Result<StateDir> open(const std::string& path, Clock& clock = system_clock());
  const std::string& path() const { return path_; }
  Clock& clock() const { return *clock_; }
  std::string run_dir(const JobRecord& record) const { return path_ + "/run/" + record.on_tier(); }

  // Control groups (cgroup.h): all of this state directory's begin with the first, which is of its device and
  // inode: others that have its path, in mount namespaces of their own, share the machine's groups.
  const std::string& cgroup_prefix() const { return cgroup_prefix_; }
  std::string cgroup_of(const JobRecord& record) const { return cgroup_prefix() + record.removal(); }
  std::string helpers_cgroup() const { return cgroup_prefix() + "helpers"; }

  // The job's directory, made if `make`, and locked against other helpers of root's; waits at most
  // `patience_ms` for the lock. Closing the descriptor unlocks. ENOENT if it is not there.
  Result<Fd> lock_job(const JobOnNode& job, bool make, int patience_ms) const;
  // The lock on the ledger (runtime/node/ledger.h), in the same way. Who has a job's lock may take it, never
  // the other way round without trying only.
  Result<Fd> lock_ledger(int patience_ms) const;
  // Likewise that of a file of root's in STATE, made if need be; and of what was opened at `path`.
  Result<Fd> lock_file(const std::string& name, int patience_ms) const;
  Result<Fd> lock_in_time(Fd opened, const std::string& path, int patience_ms) const;
  // A missing one is success.
  Status remove_job(const std::string& key) const;
  // Leaves of it the notes.
  Status forget_run(const JobRecord& record) const;
  // Of lines in spool/, those that helpers had half written when they were killed.
  void forget_rests() const;
  // What the job's stores are told.
  void forget_grants(const JobRecord& record) const;
  // The plain names in STATE/`below`; and, without an error, none where that cannot be read:
  Result<std::vector<std::string>> list(const std::string& below) const;
  std::vector<std::string> names(const std::string& below) const;
  std::vector<std::string> jobs() const;      // the keys
  std::vector<std::string> removals() const;  // the names in removing/
  std::vector<std::string> spooled() const;   // the names of whole lines in spool/

  // Whole or not at all, with that mode whatever the umask.
  Status write(const std::string& below, const std::string& text, mode_t mode = 0600) const;
  Result<std::string> read(const std::string& below) const;
  Status write_record(const JobRecord& record) const;
  // ENOENT: the job has no run.
  Result<JobRecord> read_record(const std::string& key) const;
  JobNotes read_notes(const std::string& key) const;  // of what cannot be read, nothing
  // For who has the job's lock, and will write it: of what is missing or spoilt nothing but `job` is set.
  Result<JobRecord> read_job(const JobOnNode& job) const;
  // That run's record as it is now, unless somebody is at work on the job.
  std::optional<LockedJob> lock_run(const JobRecord& seen) const;
  Result<JobRecord> read_removal(const std::string& removal) const;
  Status write_removal(const JobRecord& record) const;  // anew; its directory is there
  // Makes the directory in removing/ with that record, unless it is there, and returns its lock.
  Result<Fd> make_removal(const JobRecord& record) const;

 private:
  Result<JobRecord> read_any(const std::string& key) const;
  Status write_record_at(const std::string& dir, const JobRecord& record) const;
  Result<JobRecord> record_at(const std::string& below) const;
  std::string path_, cgroup_prefix_;
  Clock* clock_ = &system_clock();
};

// Whether a job's start has room in that state directory, or where it would be made. The error has a remedy.
Status check_state_room(const std::string& path);

// Whether what a helper was making at `path` is older than any that makes it still.
bool is_rest(const std::string& path);

// The lock on a directory of jobs/ or removing/, if nobody has it.
Fd lock_if_free(const std::string& dir);

// Makes `path` a directory of root's with `mode`, or checks that it is one that only root can write.
Status ensure_root_directory(const std::string& path, mode_t mode);

// <tier>/monarch, where the jobs' directories are. Refused unless it is a directory that root alone can
// write.
Result<Fd> open_tier_jobs(const std::string& tier_path);
// Why a job's start could not make it or take it as it is; what a user put there gives way.
Status check_tier_jobs(const std::string& tier_path);
// Why root's copies could not be kept from all but their job's owner, or not from being linked elsewhere by
// that one: the tier's file system has no access control lists, or the kernel does not protect hard links.
Status check_keeps_copies(const TierConfig& tier);

// Whether `text` can be a part of a file name: letters, digits, '.', '_' and '-', not starting with '.'.
bool is_plain_name(const std::string& text);

// ENAMETOOLONG if a job's names do not fit into all the names of files and control groups that they are part
// of.
Status check_names(const JobOnNode& job);

}  // namespace monarch
