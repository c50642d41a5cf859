// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/context.h"

#include <fcntl.h>

#include "runtime/base/os.h"

namespace monarch {

Fd PlacementContext::open_source(Ref ref, const std::string& path, bool paced, const Copier& copier) const {
  const auto give_up = [&] { return copier.hurried() || stopping; };
  if (!paced || !rates->pfs_opens.wait(1, give_up)) rates->pfs_opens.take(1);
  add(board, AgentCounter::agent_opens_pfs);
  return Fd(
      os::open_beneath(root_of(ref).fd.get(), path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
}

}  // namespace monarch
