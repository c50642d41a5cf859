// SPDX-License-Identifier: Apache-2.0
// An agent's part in a job of several nodes, put together: the source of its placement, what it serves to the
// others, and what they tell each other.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"
#include "runtime/peer/changes.h"
#include "runtime/peer/handshake.h"
#include "runtime/peer/holdings.h"
#include "runtime/peer/peer_source.h"
#include "runtime/peer/peers.h"
#include "runtime/peer/serve.h"
#include "runtime/placement/pfs_source.h"

namespace monarch {

// The job's nodes, and what proves that an agent is of this job.
struct PeerNodeOptions {
  std::vector<PeerAddress> nodes;
  NodeIndex own = 0;
  JobKey key{};
  std::string identity;  // of the key; see PeerTls
  bool encrypt = false;
  uint64_t bandwidth = 0;  // bytes per second that this node gets of what nobody waits for; 0: no limit
};

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
  static Result<std::unique_ptr<PeerNode>> create(const PeerNodeOptions& options, const AgentConfig& config,
                                                  const Parts& parts);
  ~PeerNode() { stop(); }

  Source* source() { return &*source_; }
  // Begins to listen. `wanted`: another node waits for a piece of a file that this one stages.
  Status start(std::function<void(const RelPath& path, uint32_t piece)> wanted);
  void stop();
  uint16_t port() const { return peers_->port(); }

  // Tells the others what the job has changed on this node since the last call, and looks for those who may
  // have missed something. One thread, now and then.
  void tell_changes();

 private:
  explicit PeerNode(const Parts& parts) : parts_(parts), changes_(parts.board) {}

  const Parts parts_;
  PeerTls tls_;
  std::function<void(const RelPath&, uint32_t)> wanted_;
  Changes changes_;
  std::optional<Holdings> holdings_;
  std::optional<Serve> serve_;
  std::optional<Peers> peers_;
  std::optional<PeerSource> source_;
};

}  // namespace monarch
