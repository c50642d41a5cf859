// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/memory_tier.h"

#include <spdlog/fmt/fmt.h>
#include <sys/mount.h>

#include <algorithm>

namespace monarch {
namespace {

constexpr uint64_t kPage = 4096, kMoreInodes = 1024;

std::string path_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

}  // namespace

Status mount_tmpfs(const Fd& dir, uint64_t bytes, const User& user) {
  bytes = std::max(bytes, kPage);  // size=0 would be no limit
  // Each file takes a page at least, but for empty ones and directories.
  const std::string limits = fmt::format("size={},nr_inodes={},mode=0700,uid={},gid={}", bytes,
                                         bytes / kPage + kMoreInodes, user.uid, user.gid);
  constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV;
  const std::string where = path_of(dir.get());
  // A kernel without NUMA does not know mpol.
  for (const char* policy : {",mpol=interleave", ""})
    if (::mount("monarch", where.c_str(), "tmpfs", kFlags, (limits + policy).c_str()) == 0) return {};
  return errno_error("mount a tmpfs of " + std::to_string(bytes) + " bytes");
}

void unmount_tmpfs(int jobs, const std::string& name) {
  (void)::umount2((path_of(jobs) + "/" + name).c_str(), MNT_DETACH | UMOUNT_NOFOLLOW);
}

}  // namespace monarch
