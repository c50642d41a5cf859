// SPDX-License-Identifier: Apache-2.0
// An agent's part in a job of several nodes, put together: the source of its placement, what it serves to the
// others, and what they tell each other. An interface: what is behind it comes with OpenSSL and libevent,
// whose start takes as long as the agent's own, so it is in libmonarch_peers.so, for the agents that have
// peers.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"
#include "runtime/metadata/nodes_told.h"
#include "runtime/metadata/walker.h"
#include "runtime/peer/job.h"
#include "runtime/placement/pfs_source.h"

namespace monarch {

class PeerNode {
 public:
  // What the node has; all outlive it.
  struct Parts {
    Catalog* catalog = nullptr;
    Hierarchy* hierarchy = nullptr;
    const Dataset* dataset = nullptr;
    Board* board = nullptr;
    PfsSource* pfs = nullptr;
  };
  // For who links runtime/peer; the agent has what LoadingPeers finds.
  static Result<std::unique_ptr<PeerNode>> create(const PeerNodeOptions& options, const AgentConfig& config,
                                                  const Parts& parts, Clock& clock = system_clock());
  virtual ~PeerNode() = default;

  virtual Source* source() = 0;
  // What of the node's staging is told, by any thread.
  struct Handlers {
    // Another node waits for a piece of a file that this one stages.
    std::function<void(const RelPath& path, uint32_t piece)> wanted;
    // The copy of an entry, open at `copy`, is not what was read on the PFS: no task is to find it.
    std::function<void(Ref ref, Fd copy)> spoilt;
  };
  // Begins to listen.
  virtual Status start(Handlers handlers) = 0;
  virtual void stop() = 0;
  virtual uint16_t port() const = 0;

  // Has `walker`, which outlives stop(), filled: by what other nodes read, or, with so many threads, here.
  virtual void walk(Walker* walker, int threads) = 0;
  // Tells the others what the job has changed on this node since the last call, and looks for those who may
  // have missed something; and tells the first node what was counted here. One
  // thread, now and then.
  virtual void tell_changes() = 0;
  // A task has told what the PFS says of the file, and the catalog has it.
  virtual void saw(Ref ref) = 0;
  // On the first node: what each node of the job has counted, as far as it has told; elsewhere nothing. Any
  // thread.
  virtual std::vector<NodeTold> told() const = 0;
  // Before stop(), when nothing more is counted: tells the first node all that was. There, waits for the
  // others to do so, until `until_ns` of the clock at the latest.
  virtual void account(int64_t until_ns) = 0;
};

// PeerNode::create() as libmonarch_peers.so has it, by the name kCreatePeerNode. False, and nothing is
// touched: it is of another version than `version`, so its objects may look otherwise.
using CreatePeerNode = bool(const char* version, const PeerNodeOptions& options, const AgentConfig& config,
                            const PeerNode::Parts& parts, Clock& clock,
                            Result<std::unique_ptr<PeerNode>>* node);
constexpr char kCreatePeerNode[] = "monarch_create_peer_node";

}  // namespace monarch
