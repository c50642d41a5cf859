// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstring>

namespace monarch {
namespace {

constexpr int kIdleS = 30, kIntervalS = 10, kProbes = 3, kUserTimeoutMs = 3000;

}  // namespace

std::optional<SocketAddress> address_of(const std::string& host, uint16_t port) {
  addrinfo hints = {}, *found = nullptr;
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) return {};
  SocketAddress address;
  std::memcpy(&address.at, found->ai_addr, found->ai_addrlen);
  address.bytes = found->ai_addrlen;
  ::freeaddrinfo(found);
  return address;
}

void set_peer_options(int socket) {
  const auto set = [socket](int level, int option, int value) {
    (void)::setsockopt(socket, level, option, &value, sizeof value);
  };
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kIdleS);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kIntervalS);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, kUserTimeoutMs);
}

Result<Fd> begin_to_connect(const std::string& host, uint16_t port) {
  const std::optional<SocketAddress> address = address_of(host, port);
  if (!address) return bad_input("no numeric address: " + host);
  Fd fd(::socket(address->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return errno_error("make a socket");
  if (::connect(fd.get(), address->get(), address->bytes) != 0 && errno != EINPROGRESS)
    return errno_error("connect");
  set_peer_options(fd.get());
  return fd;
}

Status end_connecting(int socket) {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  return error == 0 ? Status() : errno_error("connect", error);
}

}  // namespace monarch
