// SPDX-License-Identifier: Apache-2.0
// Sockets between agents.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace monarch {

struct SocketAddress {
  sockaddr_storage at = {};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&at); }
};

// Of a numeric address of version 4 or 6. Nothing: it is none.
std::optional<SocketAddress> address_of(const std::string& host, uint16_t port);

// So many connections for data a node of such a job keeps when nobody uses them: one with each other node, so
// that a file costs no handshake, and some more; fewer where the process may open only so many descriptors.
size_t kept_connections(size_t nodes, uint64_t descriptors);
// How many descriptors this process may open.
uint64_t descriptor_limit();

// No delays; a peer whose machine was switched off is noticed by the kernel, without a wake-up of ours.
void set_peer_options(int socket);

// A socket that is connected or about to be; non-blocking.
Result<Fd> begin_to_connect(const std::string& host, uint16_t port);
// How that ended.
Status end_connecting(int socket);

// A socket that listens there.
Result<Fd> listen_at(const std::string& host, uint16_t port);
// This machine's first address in a network of ADDRESS/BITS, numeric. Nothing: it has none.
std::optional<std::string> own_address_in(const std::string& network);

}  // namespace monarch
