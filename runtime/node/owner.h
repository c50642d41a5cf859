// SPDX-License-Identifier: Apache-2.0
// Root's children in which files are touched that a job's owner made: with the owner's rights, so that the
// kernel decides what may be done to them.
#pragma once

#include <functional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"
#include "runtime/node/identity.h"

namespace monarch {

enum class FileRights {
  // Those of the owner, and all rights on the files of the owner's containers: of the users that /etc/subuid
  // gives to the owner, whatever their group. Without user namespaces on the node: the owner's alone.
  kOwner,
  // Those of the owner, and looking into each directory.
  kLook,
};

// Runs `work` in a child that has `rights`, of root's descriptors `fd` alone (handed to `work`), and at most
// `patience_ms`, then it is killed. Returns what `work` returns, at most kMostReport bytes of it; ETIMEDOUT
// if it was killed, ECHILD if it died; `left_behind`: the child that was killed and hangs in the kernel all
// the same. Only file access is the owner's: its processes can neither signal nor trace the child, nor change
// its limits or priority.
Result<std::string> run_for_owner(const User& owner, FileRights rights, int fd, int patience_ms,
                                  const std::function<std::string(int)>& work, pid_t* left_behind = nullptr,
                                  Clock& clock = system_clock());
constexpr size_t kMostReport = 4096;

// A line of /proc/PID/uid_map for each range: `own` and what `file`, in the format of subuid(5), gives to the
// user, each id standing for itself; never 0.
std::string id_map(uint32_t own, const std::string& file, const std::string& user, uint32_t uid);

}  // namespace monarch
