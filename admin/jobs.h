// SPDX-License-Identifier: Apache-2.0
// The jobs with Monarch on this node, as far as the caller may see them: root all, a user the own ones.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "admin/output.h"
#include "runtime/base/result.h"
#include "runtime/node/job_status.h"
#include "runtime/node/nodes_report.h"
#include "runtime/node/state.h"

namespace monarch::admin {

// monarchctl(1) defines them.
enum class JobState {
  kPending,     // asked for, no agent yet
  kAllocating,  // its agent starts
  kStagingIn,
  kStagedIn,
  kRunning,   // it serves, and copies nothing at the moment
  kTeardown,  // it has ended, and is cleaned up
  kFailed,    // it has no agent, for a reason
  kRefused,   // likewise, and nothing has failed
  kAgentDied,
  kUnknown,  // it cannot be read
};
// Its name, in the words of Slurm's burst buffers where these have one.
struct StateLooks {
  const char* name;
  Colour colour;
};
const StateLooks& looks_of(JobState state);

// Whether a job's id is "run.PID", of `monarchctl run`.
inline bool is_run(const std::string& id) { return id.starts_with("run."); }

struct Job {
  std::string id;         // Slurm's number, or as is_run()
  std::string part = {};  // "4711_3", of one that was named by its array's number
  std::string cluster, node;
  uid_t uid = 0;
  gid_t gid = 0;
  uint32_t nodes = 1, restart = 0;
  std::string run_dir;  // empty: it has none
  std::string key;      // that root's state directory has it by; empty: of none
  JobState state = JobState::kUnknown;
  std::string reason;               // of kFailed, kRefused, kTeardown and kUnknown
  std::optional<JobStatus> status;  // what its owner's files say; plausible()
  // Of the time between two looks; nothing: it was looked at once, or its agent is gone.
  std::optional<uint64_t> bytes_per_second;
};

// Looks at the jobs time and again. Root looks into `state_dir` and does not make it. A user's jobs are found
// by the user's processes, their environment and the directories of `monarchctl run`. Files that a job's
// owner can write are read with the owner's identity, all at the same time and for a second at most; a job
// whose files were not read in that time is left alone for a while. Of a user at most 64 runs are looked at.
class JobWatch {
 public:
  explicit JobWatch(std::string state_dir) : state_dir_(std::move(state_dir)) {}
  // The jobs that are there now. Rates, and whether a job copies, are of the time since the look before, and
  // so not known of what is seen for the first time.
  // An error: root's state directory cannot be opened.
  Result<std::vector<Job>> look();

 private:
  struct Seen {
    JobStatus status;
    int64_t ns = 0;
  };
  void look_at(std::vector<Job>* jobs);

  const std::string state_dir_;
  std::map<std::string, Seen> seen_;              // by run directory
  std::map<std::string, int64_t> left_alone_ns_;  // until then; likewise
};

// Looks twice, a second apart, if there is a job that may be copying.
Result<std::vector<Job>> find_jobs(const std::string& state_dir);
// Whether there is one.
bool may_copy(const std::vector<Job>& jobs);

// What each node of the job has counted; none: that is not known here. Only the job's first node knows.
std::vector<NodeLine> nodes_of(const Job& job);

// Of its record, what its owner's files are read by (runtime/node/owners_files.h).
JobRecord owners_part(const Job& job);

// What of a job can be told from its numbers.
struct Progress : Staged {
  std::optional<uint64_t> eta_seconds;
};
Progress progress_of(const Job& job);
// part / whole in percent, at most 100; nothing: the whole is not known, or is nothing.
std::optional<double> percent(uint64_t part, const std::optional<uint64_t>& whole);

std::string user_name(uid_t uid);

// A job as users name it: its id, or ID@CLUSTER, since two clusters of which a machine is a node may each
// have a job of one number.
bool is_named(const Job& job, const std::string& name);
// The shortest of these that names no other cluster's job of `jobs`.
std::string name_of(const Job& job, const std::vector<Job>& jobs);

// Takes id, restart, cluster and node from CLUSTER.JOB.RESTART.NODE, where the last may have dots; false: it
// is no such name.
bool name_slurm(const std::string& name, Job* job);

// The names in a directory, in alphabetical order, but for those that begin with a dot.
std::vector<std::string> names_in(const std::string& directory);

// Where `monarchctl run` makes run directories.
std::vector<std::string> run_bases();

}  // namespace monarch::admin
