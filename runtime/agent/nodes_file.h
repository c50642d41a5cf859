// SPDX-License-Identifier: Apache-2.0
// The first node's side of what its job's nodes have counted (runtime/metadata/nodes_told.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/metadata/nodes_told.h"
#include "runtime/peer/node.h"

namespace monarch {

// One thread. It has no clock of its own: its caller calls look() when it works anyway.
class NodesFile {
 public:
  // `peers` outlives it. `names`: of all nodes, by index.
  NodesFile(int run_dir, PeerNode* peers, std::vector<std::string> names, Clock& clock = system_clock())
      : run_dir_(run_dir), peers_(peers), names_(std::move(names)), clock_(clock) {}

  // Every few seconds: writes the file, unless nobody has counted anything since. Elsewhere than on the first
  // node it does nothing.
  void look();
  // The last time, when this node has counted all.
  void end();

 private:
  void write(bool ended);

  const int run_dir_;
  PeerNode* const peers_;
  const std::vector<std::string> names_;
  Clock& clock_;
  std::unique_ptr<NodesTold> nodes_;  // as they were written last
  int64_t looked_ns_ = 0;
};

}  // namespace monarch
