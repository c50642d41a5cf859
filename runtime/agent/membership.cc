// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/membership.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "runtime/base/escape.h"
#include "runtime/base/fd.h"
#include "runtime/base/number.h"

namespace monarch {
namespace {

constexpr size_t kMostPorts = 16;
constexpr size_t kMostNodes = 65536;

bool is_numeric(const std::string& host) {
  unsigned char bytes[sizeof(in6_addr)];
  return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// NAME ADDRESS or ADDRESS:PORT
bool parse_node(const std::string& line, const std::vector<uint16_t>& ports, NodeAddress* node) {
  if (const size_t blank = line.find(' '); blank != std::string::npos) {
    *node = {line.substr(0, blank), line.substr(blank + 1), ports};
    return blank > 0 && (node->host == "-" || is_numeric(node->host));
  }
  const size_t colon = line.rfind(':');
  const uint16_t port =
      colon == std::string::npos ? uint16_t{0} : to_number<uint16_t>(line.substr(colon + 1)).value_or(0);
  if (port == 0) return false;
  std::string host = line.substr(0, colon);
  const bool brackets = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (brackets) host = host.substr(1, host.size() - 2);
  *node = {line, host, {port}};
  return is_numeric(host) && brackets == (host.find(':') != std::string::npos);
}

Result<JobKey> read_key(const Fd& fd, const std::string& what) {
  JobKey key;
  unsigned char more[1];
  size_t got = 0;
  for (ssize_t n = 1; n > 0;) {
    n = got < key.size() ? ::read(fd.get(), key.data() + got, key.size() - got) : ::read(fd.get(), more, 1);
    if (n < 0 && errno != EINTR) return errno_error("read " + what);
    if (n < 0)
      n = 1;
    else
      got += static_cast<size_t>(n);
    if (got > key.size()) break;
  }
  if (got != key.size())
    return bad_input(what + ": not " + std::to_string(key.size()) + " bytes; make it by head -c" +
                     std::to_string(key.size()) + " /dev/urandom");
  return key;
}

}  // namespace

std::vector<uint16_t> ports_of(const std::string& identity, uint16_t first, uint16_t last) {
  const size_t count = size_t{last} - first + 1;
  const size_t begin = XXH3_64bits(identity.data(), identity.size()) % count;
  std::vector<uint16_t> ports;
  for (size_t i = 0; i < std::min(count, kMostPorts); ++i)
    ports.push_back(static_cast<uint16_t>(first + (begin + i) % count));
  return ports;
}

Result<std::vector<NodeAddress>> parse_nodes(const std::string& text, const std::vector<uint16_t>& ports) {
  std::vector<NodeAddress> nodes;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    NodeAddress node;
    if (!parse_node(line, ports, &node))
      return bad_input(std::to_string(nodes.size() + 1) + ": '" + escaped(line) +
                       "' is not ADDRESS:PORT; write for example 10.1.0.7:64000 or [fd00::7]:64000");
    if (nodes.size() == kMostNodes) return bad_input(" more than " + std::to_string(kMostNodes) + " nodes");
    nodes.push_back(std::move(node));
  }
  if (nodes.size() < 2) return bad_input(" it takes a line for each of at least two nodes");
  return nodes;
}

Result<std::vector<NodeAddress>> read_nodes(const std::string& file, const std::vector<uint16_t>& ports) {
  std::ifstream in(file, std::ios::binary);
  std::string text;
  if (!in) return errno_error("read " + file);
  std::getline(in, text, '\0');
  if (in.bad()) return errno_error("read " + file, EIO);
  Result<std::vector<NodeAddress>> nodes = parse_nodes(text, ports);
  if (!nodes.ok()) return bad_input(file + ":" + nodes.error().text);
  return nodes;
}

Result<JobKey> take_key(int fd) { return read_key(Fd(fd), "the job's key"); }

Result<JobKey> read_key_file(const std::string& file) {
  const Fd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) != 0) return errno_error("read " + file);
  if (!S_ISREG(st.st_mode)) return bad_input(file + ": not a plain file");
  if ((st.st_mode & 077) != 0)
    return Error{EPERM, file + ": group or others can read or write it; run chmod 600 " + file};
  return read_key(fd, file);
}

Result<PeerMembership> read_membership(const PeerArguments& arguments, const PeerConfig& config) {
  PeerMembership membership;
  Result<JobKey> key = take_key(arguments.key_fd);
  if (!key.ok()) return key.error();
  membership.key = *key;
  membership.identity = arguments.identity;
  Result<std::vector<NodeAddress>> nodes =
      read_nodes(arguments.file, ports_of(arguments.identity, config.ports.first, config.ports.last));
  if (!nodes.ok()) return nodes.error();
  if (arguments.index >= nodes->size())
    return bad_input("--peer-index " + std::to_string(arguments.index) + ": " + arguments.file + " has " +
                     std::to_string(nodes->size()) + " nodes, from 0 on");
  membership.nodes = nodes.take();
  membership.own = arguments.index;
  return membership;
}

}  // namespace monarch
