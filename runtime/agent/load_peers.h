// SPDX-License-Identifier: Apache-2.0
// What an agent with peers needs beyond one without, loaded when it is needed.
#pragma once

#include <string>

#include "runtime/base/result.h"
#include "runtime/peer/node.h"

namespace monarch {

// Loads the library at `path`, for the life of the process. The error names what to do.
Result<CreatePeerNode*> load_peers(const std::string& path);

}  // namespace monarch
