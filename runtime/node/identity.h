// SPDX-License-Identifier: Apache-2.0
// Root's helpers and who they become.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace monarch {

struct User {
  uid_t uid = 0;
  gid_t gid = 0;
  std::vector<gid_t> groups;  // supplementary
};

// Makes the calling process (single-threaded) `user`, with all ids and groups, for good. Checks that there
// is no way back. That user cannot trace it, and it leaves no core. An error leaves the process half way: it
// must end.
Status become(const User& user);

// A process, told from a later one with the same pid by its start time (/proc/PID/stat, field 22).
struct ProcessId {
  pid_t pid = 0;
  uint64_t start_time = 0;  // clock ticks after boot
  bool operator==(const ProcessId&) const = default;
};
Result<ProcessId> identify(pid_t pid);
// As proc_pid_stat(5) has it; one that is gone is dead: 'X'.
char state_of(pid_t pid);
bool is_running(const ProcessId& process);
// Whether it has executed its last instruction, in all its threads: it has ended, or is ending, which may
// take the kernel a while (PF_EXITING of /proc/PID/task/TID/stat, field 9).
bool is_ending(const ProcessId& process);

// Sends the process that signal, if it is still the same one, and waits until it is gone, at most
// `patience_ms`. False: it is still there.
bool signal_and_wait(const ProcessId& process, int signal, int patience_ms, Clock& clock = system_clock());

// This boot's id (/proc/sys/kernel/random/boot_id).
std::string boot_id();

}  // namespace monarch
