// SPDX-License-Identifier: Apache-2.0
// monarchd's life: one agent per job and node, here as the job's user.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/agent/membership.h"
#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/store/client.h"

namespace monarch {

struct AgentOptions {
  Config config;
  std::vector<std::string> datasets;  // absolute, clean
  std::string run_dir;                // the user's, empty, or root's with empty files (run_file.h)
  std::string job_dir;                // name of the job's directory on each tier
  std::vector<StoreEnds> stores;      // root's, of the tiers where that directory is root's
  // Gets "ready\n", with a tab and the reason before its end if the job has other nodes and the agent is on
  // its own all the same; or the reason why it is not ready.
  int ready_fd = -1;
  int lifeline_fd = -1;  // end of file on it ends the agent
  std::string grants;    // file by which root tells quotas; empty: none
  bool leave = false;    // remove nothing at the end: root's epilog reads the counters first
  bool watched = false;  // another one will go on for it when it is killed
  bool resume = false;   // go on for an agent that was killed, with its board, catalog and copies
  // The job's nodes; nothing: this one is on its own.
  std::optional<PeerMembership> peers;
  std::string peers_library;  // where libmonarch_peers.so is; needed with `peers` only
};

// Writes a line to the descriptor that waits for "ready" or an error, and closes it; nothing if it is -1.
void tell_ready(int fd, const std::string& text);

// Serves until SIGTERM, SIGINT or the end of the lifeline; then removes the job's directories and the
// run directory. Returns the exit status: 0, or 1 if it could not start (said on ready_fd and in the log).
int run_agent(const AgentOptions& options);

}  // namespace monarch
