// SPDX-License-Identifier: Apache-2.0
// Sockets on this machine's loopback.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "runtime/base/fd.h"

namespace monarch {

inline constexpr char kLoopback[] = "127.0.0.1";

inline sockaddr_in loopback(uint16_t port) {
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
  at.sin_port = ::htons(port);
  return at;
}

// A socket that listens on a free port, and that nobody serves.
struct Squatter {
  Squatter() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in at = loopback(0);
    socklen_t bytes = sizeof at;
    EXPECT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&at), bytes), 0);
    EXPECT_EQ(::listen(fd.get(), 100), 0);
    EXPECT_EQ(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&at), &bytes), 0);
    port = ntohs(at.sin_port);
  }
  Fd fd;
  uint16_t port = 0;
};

// The first of so many ports, below those that the kernel gives to other tests' connections, that no other
// process that runs tests has. They are this one's for its life, by a name of the network namespace.
inline constexpr uint32_t kOwnPorts = 200;
inline uint32_t own_ports() {
  for (uint32_t first = 12000; first + kOwnPorts <= 32000; first += kOwnPorts) {
    sockaddr_un name = {};
    name.sun_family = AF_UNIX;
    const std::string text = "monarch-test-ports-" + std::to_string(first);
    text.copy(name.sun_path + 1, sizeof name.sun_path - 1);
    Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0) continue;
    (void)fd.release();
    return first;
  }
  throw std::runtime_error("all ports for tests are taken");
}

// One that nobody listens at.
inline uint16_t free_port() {
  static const uint32_t first = own_ports();
  static std::atomic<uint32_t> next{0};
  for (uint32_t tried = 0; tried < kOwnPorts; ++tried) {
    const auto port = static_cast<uint16_t>(first + next++ % kOwnPorts);
    const sockaddr_in at = loopback(port);
    const Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at) == 0) return port;
  }
  ADD_FAILURE() << "no port is free";
  return 0;
}

// A socket that is connected to the port.
inline Fd dial(uint16_t port) {
  const sockaddr_in at = loopback(port);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  return fd;
}

}  // namespace monarch
