// SPDX-License-Identifier: Apache-2.0
// The control groups of a job's agent and of root's helpers, from when they are made until they are gone.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/node/accounting.h"
#include "runtime/node/cgroup.h"
#include "runtime/node/child.h"
#include "runtime/node/state.h"

namespace monarch {

// What the agent's group is limited to, in bytes; 0: nothing. `tiers` are the job's, with quotas in bytes;
// `job_memory` is what Slurm allocated to the job, which one that is charged to it cannot exceed.
uint64_t agent_memory(const AgentConfig& agent, const std::vector<TierConfig>& tiers, uint64_t job_memory);

// Whether the job's agent lives, before root kills it; to be asked first, and noted: who comes after a helper
// that was killed then finds it dead. Told only of one in control groups of its own, where nobody but root,
// the kernel and the job's owner can have ended it; elsewhere Slurm may have done so.
AgentEnd look_at_agent(const StateDir& state, JobRecord* record);

// Kills the job's agent and all that it was made to start. Waits at most `patience_ms` until the agent
// executes nothing any more: what it has counted is final. False: it hangs in the kernel.
bool stop_agent(const StateDir& state, const JobRecord& record, int patience_ms);

// The same, and waits until it is gone, which takes the kernel longer; removes their group. Waits at most
// `patience_ms`. False: the agent is still there, and hangs in the kernel.
bool end_agent(const StateDir& state, const JobRecord& record, int patience_ms);

// The groups of agents of this state directory that no record names: somebody removed it, or it was lost.
// None where the records cannot be looked at.
std::vector<std::string> stray_cgroups(const StateDir& state);

// Ends what is in those, and removes them, and the group of root's helpers if none is in it.
void sweep_cgroups(const StateDir& state);

// Puts a process of root's that does not end, and its children, into the helpers' group, which stays until
// they do.
void leave_behind(const StateDir& state, pid_t process);

// Notes a process of root's that hangs in the kernel in what the job has; and whether any that was noted does
// still. Who looks before is not the next one.
void note_hanging(JobRecord* record, pid_t process);
bool hangs(const JobRecord& record);

// What a child of root's says that works beside what else is to be done, for what a user can keep locked in
// the kernel: Child::output(). One that hangs stays behind, and is noted in that record, if there is one.
// ETIMEDOUT: it was late; else it died.
Result<std::string> said_by(const StateDir& state, Child* child, int patience_ms, JobRecord* of = nullptr);
// The same of one that begins now, and has nothing open but the log, and `kept`.
Result<std::string> said_in_time(const StateDir& state, int patience_ms, std::vector<int> kept,
                                 const std::function<std::string()>& work, JobRecord* of = nullptr);

// The calling process of root's, which outlives its hook, is in the helpers' group as long as this lives; or
// once leave_behind() puts it there: the kernel takes some 10 ms to move a process, and as long to move it
// out.
class HelperCgroup {
 public:
  enum class Enters { kNow, kIfLeftBehind };
  explicit HelperCgroup(const StateDir& state, Enters enters = Enters::kNow);
  ~HelperCgroup();
  HelperCgroup(const HelperCgroup&) = delete;
  HelperCgroup& operator=(const HelperCgroup&) = delete;

 private:
  Cgroups groups_;
  std::string name_;
  bool entered_ = false;
};

// Does `work` in a process of its own, which outlives the caller; nobody waits for its output, and it has
// nothing open but the log, and `kept`. Its pid; its status is 0 if `work` returned true.
pid_t in_background(const StateDir& state, HelperCgroup::Enters enters, const std::vector<int>& kept,
                    const std::function<bool()>& work);

}  // namespace monarch
