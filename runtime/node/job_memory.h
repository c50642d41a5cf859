// SPDX-License-Identifier: Apache-2.0
// Where the memory of a job of Slurm's is counted on this node, for a tier that is charged to the job:
// runtime/hierarchy/job_room.h.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/node/cgroup.h"

namespace monarch {

// Whether anything on this node counts memory by control groups.
bool memory_is_counted(const Cgroups& groups);

// Why no tier can be charged to jobs; "": one can. `tracked`: Slurm knows how much memory a job has.
std::string why_not_charged(bool tracked, const Cgroups& groups);

// The directory of the control group in which the memory of all steps of `job` counts, as Slurm makes it
// (.../job_JOB), of a process whose /proc/PID/cgroup is `lines`. Empty: it is in none, or in a user's.
std::string memory_group_of(const Cgroups& groups, uint32_t job, const std::string& lines);

// That of the job's slurmstepds and of what they run. Empty: there is none yet, or none at all, or there are
// several: jobs of two clusters may have one id. One look at /proc, milliseconds.
std::string find_memory_group(uint32_t job);

}  // namespace monarch
