// SPDX-License-Identifier: Apache-2.0
// The keeper: root's one process per node and state directory that watches over what the hooks leave to do.
// It does duties, over and over, until nothing of jobs, removals, spooled lines and stray agents is left;
// then it ends.
//
// A duty of your own: a function of the type Duty::run and a line in the list in keeper.cc.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/node/root_log.h"
#include "runtime/node/state.h"

namespace monarch {

// What hooks hand to the keeper that they start, and it to its duties.
struct KeeperRequest {
  std::string state_dir;
  std::string config;           // as load_config() takes it; may be empty: not known
  std::string log;              // as --log
  std::string account_program;  // monarch_account, or what takes its place
};

struct Duty {
  const char* name;
  int every_s;     // from one look, and from the end of a run, to the next, at least
  int patience_s;  // a run that takes longer is killed, with its process group
  // Called in the keeper: is there anything to do? Reads the state directory and the kernel's own files
  // alone, which are local: whatever can hang belongs into run().
  bool (*due)(const KeeperRequest&, const StateDir&);
  // Called in a process of its own, root's, single-threaded, leader of a process group, with default signals
  // and without the keeper's lock. Ends with it. May leave detached processes behind.
  void (*run)(const KeeperRequest&, const StateDir&);
};

// Starts the state directory's keeper, detached, unless it lives. To be called after the work is in the state
// directory: a keeper that is just ending looks once more when others can take its place. Milliseconds; a
// failure is logged, and the next hook tries again.
void ensure_keeper(const KeeperRequest& request);

// The keeper itself; returns the exit status when nothing is left, on SIGTERM, or when another one lives.
// When monarchd was replaced on disk, it executes the new one in its place. Follows the log, if there is one.
int keep(const KeeperRequest& request, RootLog* log = nullptr);

}  // namespace monarch
