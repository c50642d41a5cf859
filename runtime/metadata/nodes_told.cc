// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/nodes_told.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/fd.h"
#include "runtime/metadata/board.h"

namespace monarch {
namespace {

constexpr char kNew[] = "nodes.new";

}  // namespace

NodeTold told_of(const NodeCounts& counts) {
  NodeTold told;
  told.files = placed_files(counts);
  std::copy(std::begin(counts.placed_bytes), std::end(counts.placed_bytes), told.placed_bytes);
  told.opens_tier = counts.opens_tier;
  told.opens_pfs = counts[TaskCounter::opens_pfs];
  told.pfs_bytes = bytes_from_pfs(counts);
  told.peer_bytes = counts[AgentCounter::peer_bytes];
  told.served_bytes = counts[AgentCounter::served_bytes];
  return told;
}

Status write_nodes_told(int run_dir, const NodesTold& nodes) {
  const Fd file(::openat(run_dir, kNew, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600));
  const auto bytes = static_cast<size_t>(nodes.bytes());
  if (file && ::write(file.get(), &nodes, bytes) == static_cast<ssize_t>(bytes) &&
      ::renameat(run_dir, kNew, run_dir, kNodesFile) == 0)
    return {};
  const Error error = errno_error(kNodesFile);
  ::unlinkat(run_dir, kNew, 0);
  return error;
}

Result<std::unique_ptr<NodesTold>> read_nodes_told(const std::string& run_dir) {
  const std::string path = run_dir + "/" + kNodesFile;
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) != 0) return errno_error("read " + path);
  const Error bad{EINVAL, path + ": not what an agent writes"};
  if (!S_ISREG(st.st_mode) || st.st_size < 0 || static_cast<size_t>(st.st_size) > sizeof(NodesTold))
    return bad;
  auto nodes = std::make_unique<NodesTold>();
  const auto bytes = static_cast<size_t>(st.st_size);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = ::pread(fd.get(), reinterpret_cast<char*>(nodes.get()) + done, bytes - done,
                              static_cast<off_t>(done));
    if (n <= 0) return errno_error("read " + path, n < 0 ? errno : EIO);
    done += static_cast<size_t>(n);
  }
  if (!plausible(*nodes) || nodes->bytes() != bytes) return bad;
  return nodes;
}

bool plausible(const NodesTold& nodes) {
  if (nodes.magic != kNodesToldMagic || nodes.count > kMostNodesTold || nodes.nodes < nodes.count ||
      nodes.nodes > kMostCount)
    return false;
  constexpr size_t kWords = (sizeof(NodeTold) - offsetof(NodeTold, told_ms)) / sizeof(uint64_t);
  return std::all_of(nodes.told, nodes.told + nodes.count, [](const NodeTold& told) {
    uint64_t words[kWords];
    std::memcpy(words, &told.told_ms, sizeof words);
    return std::memchr(told.name, '\0', sizeof told.name) != nullptr && told.ended <= 1 &&
           std::all_of(words, words + kWords, [](uint64_t n) { return n <= kMostCount; });
  });
}

}  // namespace monarch
