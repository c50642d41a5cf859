// SPDX-License-Identifier: Apache-2.0
// A job of several nodes, as each of its agents knows it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/peer/key.h"

namespace monarch {

using JobKey = std::array<unsigned char, 32>;

// Where a node's agent can be.
struct PeerAddress {
  std::string host;             // numeric
  std::vector<uint16_t> ports;  // it listens on the first of them that was free
};

// The job's nodes, and what proves that an agent is of this job.
struct PeerNodeOptions {
  std::vector<PeerAddress> nodes;
  NodeIndex own = 0;
  JobKey key{};
  std::string identity;  // of the key; see PeerTls
  std::string network;   // ADDRESS/BITS: data goes by the nodes' addresses in it; empty: by those above
  bool encrypt = false;
  bool resumes = false;    // the agent goes on for one that was killed, and may have missed changes
  uint64_t bandwidth = 0;  // bytes per second that this node gets of what nobody waits for; 0: no limit
};

}  // namespace monarch
