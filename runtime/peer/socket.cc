// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/socket.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "runtime/base/patience.h"

namespace monarch {
namespace {

// The bytes of a numeric address. None: it is of neither family.
std::string bytes_of(const sockaddr* at) {
  if (at && at->sa_family == AF_INET)
    return {reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in*>(at)->sin_addr),
            sizeof(in_addr)};
  if (at && at->sa_family == AF_INET6)
    return {reinterpret_cast<const char*>(&reinterpret_cast<const sockaddr_in6*>(at)->sin6_addr),
            sizeof(in6_addr)};
  return {};
}

bool same_bits(const std::string& a, const std::string& b, unsigned bits) {
  if (a.size() != b.size() || bits > a.size() * 8) return false;
  const unsigned whole = bits / 8, rest = bits % 8;
  if (!std::equal(a.begin(), a.begin() + whole, b.begin())) return false;
  return rest == 0 ||
         ((static_cast<unsigned char>(a[whole]) ^ static_cast<unsigned char>(b[whole])) >> (8 - rest)) == 0;
}

constexpr int kIdleS = patience::kPeerRetryMs / 1000, kIntervalS = patience::kPeerEveryMs / 1000, kProbes = 3;

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

std::optional<std::string> own_address_in(const std::string& network) {
  const size_t slash = network.find('/');
  const std::optional<SocketAddress> wanted = address_of(network.substr(0, slash), 0);
  ifaddrs* list = nullptr;
  if (!wanted || slash == std::string::npos || ::getifaddrs(&list) != 0) return {};
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> ends(list, ::freeifaddrs);
  const std::string bytes = bytes_of(wanted->get());
  const auto bits = static_cast<unsigned>(std::stoul(network.substr(slash + 1)));
  for (const ifaddrs* one = list; one; one = one->ifa_next) {
    const std::string own = bytes_of(one->ifa_addr);
    char text[INET6_ADDRSTRLEN];
    if (!own.empty() && same_bits(own, bytes, bits) &&
        ::inet_ntop(one->ifa_addr->sa_family, own.data(), text, sizeof text))
      return text;
  }
  return {};
}

// Who keeps those of others has as many from each, but not all at a time: see Serve.
size_t kept_connections(size_t nodes, uint64_t descriptors) {
  constexpr size_t kSome = 64, kShare = 8;
  return std::max<size_t>(kSome, std::min<uint64_t>(nodes + kSome, descriptors / kShare));
}

uint64_t descriptor_limit() {
  rlimit limit = {};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
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
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, patience::kPeerUnackedMs);
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

Result<Fd> listen_at(const std::string& host, uint16_t port) {
  const std::optional<SocketAddress> address = address_of(host, port);
  if (!address) return bad_input("no numeric address: " + host);
  Fd fd(::socket(address->at.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1;
  if (fd) (void)::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || ::bind(fd.get(), address->get(), address->bytes) != 0 || ::listen(fd.get(), SOMAXCONN) != 0)
    return errno_error("listen at " + host + " port " + std::to_string(port));
  return fd;
}

Status end_connecting(int socket) {
  int error = 0;
  socklen_t bytes = sizeof error;
  if (::getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &bytes) != 0) error = errno;
  return error == 0 ? Status() : errno_error("connect", error);
}

}  // namespace monarch
