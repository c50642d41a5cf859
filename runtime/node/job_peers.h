// SPDX-License-Identifier: Apache-2.0
// What root tells a job's agent of the agents on the job's other nodes: who they are, and the key by which
// they know each other. Both come from Slurm: by the prolog's note, or from the step that starts the agent.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/node/child.h"
#include "runtime/node/state.h"

namespace monarch {

// What the plugin has put into this process's environment, since all users can read command lines, or "". It
// is not there afterwards, nor in /proc/PID/environ.
std::string take_told(const char* variable);

// Whether that is worth to be noted: without a key there are no peers.
bool has_key(const ToldOfPeers& told);

struct AgentPeers {
  std::string nodes;  // a line NAME ADDRESS for each, node 0 first
  uint32_t count = 0, own = 0;
  std::array<unsigned char, 32> key{};
  std::string identity;  // CLUSTER.JOB.RESTART
};

// As they were when the job's agent started, but for `nodes`. Nothing: it has none, or the key is not known.
std::optional<AgentPeers> peers_of(const JobRecord& record);

// One look for a job's peers, which takes as long as the names need to be resolved. It runs beside what else
// is to do for the job's start.
class PeerSearch {
 public:
  // `program` is monarch_account, or what takes its place; `slurm_conf` its SLURM_CONF. Does not wait.
  PeerSearch(const PeerConfig& config, ToldOfPeers told, uint32_t nodes, const std::string& program,
             const std::string& slurm_conf);
  PeerSearch(const PeerSearch&) = delete;
  PeerSearch& operator=(const PeerSearch&) = delete;

  // Waits at most `patience_ms`. The error says why the job's agent is to have no peers.
  Result<AgentPeers> finish(const JobOnNode& job, uint32_t restart, int patience_ms,
                            Clock& clock = system_clock());
  // Whether it should have some: the admin wants them, and the job has several nodes.
  bool is_wanted() const { return wanted_; }

 private:
  Status begin(const PeerConfig& config, uint32_t nodes, const std::string& program,
               const std::string& slurm_conf);
  Result<std::string> listed(int patience_ms, Clock& clock);

  const ToldOfPeers told_;
  std::optional<Child> listing_;
  bool wanted_ = false;
  Status begun_;
};

}  // namespace monarch
