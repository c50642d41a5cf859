// SPDX-License-Identifier: Apache-2.0
// Which file systems answer: a device that fails often makes every call on it hang.
#pragma once

#include <string>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/node/state.h"

namespace monarch {

// The tiers' directories, as probe() and can_enter() take them.
std::vector<std::string> paths_of(const std::vector<TierConfig>& tiers);

// Whether each of the directories `tiers`, and what is called monarch in it, can be looked at within
// `patience_ms` for all together; one that is missing answers, too. A process looks at them, by a thread for
// each, which has no lock of the caller's. If it hangs in the kernel it is left behind in the control group
// of root's helpers, so that no step of Slurm's waits for it. Milliseconds where nothing hangs.
std::vector<bool> probe(const StateDir& state, const std::vector<std::string>& tiers, int patience_ms);

// Which of the tiers are as probe() finds them, with <tier>/monarch, which is made where it is missing, and
// which nobody has locked in the kernel; and whether the directories are like that in which root makes what
// the job's agent has in `state`. What answers may be without <tier>/monarch all the same.
struct Prepared {
  std::vector<bool> tiers;
  bool state = true;
};
Prepared prepare(const StateDir& state, const std::vector<TierConfig>& tiers, int patience_ms);

// Whether the user can enter each of the directories `tiers`, for all that their modes tell. The caller is
// root, and has one thread.
std::vector<bool> can_enter(const User& user, const std::vector<std::string>& tiers);

}  // namespace monarch
