// SPDX-License-Identifier: Apache-2.0
// The first node's side of what its job's nodes have counted (runtime/metadata/nodes_told.h).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/metadata/nodes_told.h"
#include "runtime/peer/node.h"

namespace monarch {

// It has no thread of its own: its caller calls look() when it works anyway.
class NodesFile {
 public:
  // `peers` outlives it. `names`: of all nodes, by index.
  NodesFile(int run_dir, PeerNode* peers, std::vector<std::string> names, Clock& clock = system_clock())
      : run_dir_(run_dir), peers_(peers), names_(std::move(names)), clock_(clock) {}

  // Every few seconds: writes the file, unless nobody has counted anything since. Elsewhere than on the first
  // node it does nothing.
  void look() EXCLUDES(lock_);
  // The last time, when this node has counted all, by whichever thread; look() does nothing after it.
  void end() EXCLUDES(lock_);

 private:
  void write() REQUIRES(lock_);

  const int run_dir_;
  PeerNode* const peers_;
  const std::vector<std::string> names_;
  Clock& clock_;
  Mutex lock_;
  std::unique_ptr<NodesTold> nodes_ GUARDED_BY(lock_);  // as they were written last
  int64_t looked_ns_ GUARDED_BY(lock_) = 0;
  bool ended_ GUARDED_BY(lock_) = false;
};

}  // namespace monarch
