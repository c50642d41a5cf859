// SPDX-License-Identifier: Apache-2.0
// The root side of a job's beginning on a node, run by the SPANK plugin as `monarchd --prolog` and
// `monarchd --start`.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/node/job_peers.h"
#include "runtime/node/part.h"
#include "runtime/node/state.h"

namespace monarch {

// What slurmd and slurmstepd know of the job; never taken from the job's environment.
struct StartRequest {
  std::string state_dir;
  JobOnNode job;
  uint32_t restart = 0;
  uint32_t nodes = 1;
  bool first_node = true;
  bool tasks = false;       // the step that starts it has tasks
  bool own_mounts = false;  // the job has a mount namespace: what is mounted later may not be seen there
  User user;
  OfCluster of_cluster;
  std::string datasets;  // PATH[:PATH...]; empty: what the prolog noted
  std::string options;   // what else the user asked for (job_options.h); goes with `datasets`
  ToldOfPeers peers;     // what the prolog noted goes before it
  NodePart part;         // of this node, as far as a step knows it
  Clock* clock = &system_clock();
};

// Notes the datasets, the options and the peers for the extern step, which does not see the job's options.
Status note_wanted(const StartRequest& request);

struct Started {
  std::string run_dir;
  bool fresh = false;    // this call started the agent
  std::string peers;     // of a fresh one, for the log: whether it has peers, or why not
  std::string unserved;  // for the user: datasets that the agent, started by another step, does not know
  std::string alone;     // likewise: why it has no peers though the job has other nodes
  std::string remark;    // likewise: what the job does not get of what its options ask for
  // What the step's tasks are to wait for: so many percent of the dataset, for so many seconds at most. 0:
  // nothing. Only the first step with tasks is told.
  int wait_percent = 0, wait_seconds = 0;
  bool hints = false;  // tasks are to give hints by themselves
};
// Starts the job's agent unless it has been started: makes its directories, writes the record, becomes the
// user in a child, and waits a while for the agent to be ready. ENOENT: nothing is wanted. EALREADY: it
// failed before, in another step, with this text. On an error nothing is left but a note of it.
Result<Started> start_agent(const StartRequest& request);

// Whether the job is to fail where it cannot have its agent.
bool is_required(const StartRequest& request);

// Whether the user is to be told now why the job's agent could not be started, or has no peers: once for each
// reason, in a run of the job on this node. By its first step, where nothing can be noted.
enum class Tell { kNo, kYes, kInFirstStep };
Tell is_to_be_told(const StartRequest& request, const std::string& reason);

}  // namespace monarch
