// SPDX-License-Identifier: Apache-2.0
// Which jobs Slurm runs on this node: its slurmstepds, told from processes that a user calls so.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"

namespace monarch {

struct Slurmstepd {
  int pid = 0;
  uint32_t job = 0;
  bool anchor = false;  // it lives as long as the job does on this node: of the extern step, the batch script
};

// All of this node, by their titles, "slurmstepd: [JOB.STEP]" or "[JOB+COMPONENT.STEP]". One look at /proc.
// No user passes for one: it counts only if all of its user ids are root's and its program is none that lends
// root's rights to users (setuid). Nothing is read that a user can make hang. An error says that this
// cannot be told.
Result<std::vector<Slurmstepd>> slurmstepds(const std::string& proc = "/proc");

// That process, if it is one.
std::optional<Slurmstepd> slurmstepd_at(int pid);

// Whether there is one of that job; true also where it cannot be told.
bool has_slurmstepd(uint32_t job);

// The processes that one, such as a slurmstepd, runs or has adopted. One thread.
std::vector<int> children(int pid);

}  // namespace monarch
