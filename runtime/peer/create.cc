// SPDX-License-Identifier: Apache-2.0
// The one symbol of libmonarch_peers.so.
#include <string_view>

#include "build_config.h"
#include "runtime/peer/handshake.h"
#include "runtime/peer/node.h"

extern "C" __attribute__((visibility("default"))) monarch::CreatePeerNode monarch_create_peer_node;

namespace {

// In the thread that loads the library.
__attribute__((constructor)) void prepare_tls() { monarch::PeerTls::prepare(); }

}  // namespace

bool monarch_create_peer_node(const char* version, const monarch::PeerNodeOptions& options,
                              const monarch::AgentConfig& config, const monarch::PeerNode::Parts& parts,
                              monarch::Clock& clock,
                              monarch::Result<std::unique_ptr<monarch::PeerNode>>* node) {
  if (std::string_view(version) != PACKAGE_VERSION) return false;
  *node = monarch::PeerNode::create(options, config, parts, clock);
  return true;
}
