// SPDX-License-Identifier: Apache-2.0
// The one symbol of libmonarch_peers.so.
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <string_view>

#include "build_config.h"
#include "runtime/peer/node.h"

extern "C" __attribute__((visibility("default"))) monarch::CreatePeerNode monarch_create_peer_node;

namespace {

// OpenSSL looks for its algorithms when it is first used, for a millisecond or two: here, in the thread that
// loads the library.
__attribute__((constructor)) void prepare_tls() {
  ::SSL_CTX_free(::SSL_CTX_new(::TLS_method()));
  ::ERR_clear_error();
}

}  // namespace

bool monarch_create_peer_node(const char* version, const monarch::PeerNodeOptions& options,
                              const monarch::AgentConfig& config, const monarch::PeerNode::Parts& parts,
                              monarch::Result<std::unique_ptr<monarch::PeerNode>>* node) {
  if (std::string_view(version) != PACKAGE_VERSION) return false;
  *node = monarch::PeerNode::create(options, config, parts);
  return true;
}
