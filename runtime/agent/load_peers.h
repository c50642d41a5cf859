// SPDX-License-Identifier: Apache-2.0
// What an agent with peers needs beyond one without, loaded when it is needed.
#pragma once

#include <optional>
#include <string>
#include <thread>

#include "runtime/base/result.h"
#include "runtime/peer/node.h"

namespace monarch {

// Loads the library at `path`, for the life of the process, in a thread of its own: it takes as long as all
// else at an agent's start.
class LoadingPeers {
 public:
  explicit LoadingPeers(std::string path);
  LoadingPeers(const LoadingPeers&) = delete;
  LoadingPeers& operator=(const LoadingPeers&) = delete;
  ~LoadingPeers();
  // Waits until it is loaded. The error names what to do.
  Result<CreatePeerNode*> get();

 private:
  const std::string path_;
  std::optional<Result<CreatePeerNode*>> loaded_;  // by the thread, until it is joined
  std::thread thread_;
};

}  // namespace monarch
