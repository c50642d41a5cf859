// SPDX-License-Identifier: Apache-2.0
// Control groups of Monarch's own. What slurmstepd starts is in the groups of its step; newer Slurms kill
// what is in those, wait until they are empty, and drain the node if they are not. So the agent and root's
// helpers that outlive a hook leave them.
//
//   MOUNT/monarch/          in every hierarchy that is mounted, of version 1 or 2; root's, 0711: users cannot
//                           list it; there until the next boot
//   MOUNT/monarch/NAME/     one for each agent, and one for root's helpers of a state directory; 0711
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/result.h"

namespace monarch {

struct CgroupHierarchy {
  std::string mount;        // its directory
  bool unified = false;     // version 2
  std::string controllers;  // version 1: as mounted, with commas: "memory", "cpu,cpuacct", "name=systemd"
  bool has(const std::string& controller) const;
};

// The directory of the group that the process of this file is in (proc_pid_cgroup(5)); "": it is not below
// the mount. The path of one outside of a control group namespace begins with "/..".
std::string group_in(const std::string& file, const CgroupHierarchy& h);

// Root's. All calls are short but end(), and prepare() and make(), 0.3 s where users keep a hierarchy's root
// locked in the kernel; none needs a thread.
class Cgroups {
 public:
  // The hierarchies in the file `mountinfo` (proc_pid_mountinfo(5)), each once; in the file `of_first` are
  // the groups of a process that lasts as long as this system (proc_pid_cgroup(5)).
  explicit Cgroups(const std::string& mountinfo = "/proc/self/mountinfo",
                   std::string of_first = "/proc/1/cgroup", Clock& clock = system_clock());
  explicit Cgroups(Clock& clock) : Cgroups("/proc/self/mountinfo", "/proc/1/cgroup", clock) {}
  const std::vector<CgroupHierarchy>& hierarchies() const { return hierarchies_; }

  // Makes MOUNT/monarch where it is missing.
  void prepare() const;

  // Makes the group `name` in each hierarchy, with the processors and memory nodes of the caller, and a limit
  // of `memory` bytes (0: none) where there is a controller for it. One that exists is taken over. An error
  // names where there is none now: there processes stay where they are.
  Status make(const std::string& name, uint64_t memory) const;

  // Moves a process there (0: the calling one), with its affinity; an error names the hierarchies where it
  // stayed.
  Status enter(const std::string& name, int process = 0) const;

  // SIGKILLs all that is in the group.
  void kill(const std::string& name) const;
  // SIGKILLs all that is in the group, frozen or not, and removes it. True: it is gone. Waits at most
  // `patience_ms` for processes that hang in the kernel.
  bool end(const std::string& name, int patience_ms) const;

  // Moves the calling process to the roots, or to the first process's groups where these take none, and
  // removes the group unless others are in it.
  void leave(const std::string& name) const;

  // Removes the group in each hierarchy where no process is in it.
  void remove_if_empty(const std::string& name) const;

  // Whether there is such a group in any hierarchy.
  bool exists(const std::string& name) const;

  // The groups whose names begin so.
  std::vector<std::string> names(const std::string& prefix) const;

  // The processes in the group.
  std::vector<int> processes(const std::string& name) const;

 private:
  std::vector<CgroupHierarchy> hierarchies_;
  std::string of_first_;
  Clock* clock_;
};

}  // namespace monarch
