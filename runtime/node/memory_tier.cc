// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/memory_tier.h"

#include <fcntl.h>
#include <spdlog/fmt/fmt.h>
#include <sys/mount.h>

#include <algorithm>

#include "runtime/node/mounts.h"

namespace monarch {
namespace {

constexpr uint64_t kPage = 4096, kMoreInodes = 1024;

constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV;

// Each file takes a page at least, but for empty ones and directories. size=0 would be no limit.
std::string limits_of(uint64_t bytes) {
  bytes = std::max(bytes, kPage);
  return fmt::format("size={},nr_inodes={}", bytes, bytes / kPage + kMoreInodes);
}

std::string path_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

}  // namespace

Status mount_tmpfs(const Fd& dir, uint64_t bytes, const User& user) {
  const std::string limits = fmt::format("{},mode=0700,uid={},gid={}", limits_of(bytes), user.uid, user.gid);
  const std::string where = path_of(dir.get());
  // A kernel without NUMA does not know mpol.
  for (const char* policy : {",mpol=interleave", ""})
    if (::mount(kTmpfsSource, where.c_str(), "tmpfs", kFlags, (limits + policy).c_str()) == 0) return {};
  return errno_error("mount a tmpfs of " + std::to_string(bytes) + " bytes");
}

// The descriptor holds what is mounted there: it is looked at, and then made larger, or nothing is. The job's
// owner may have mounted a file system on it that hangs.
Status resize_tmpfs(const Fd& jobs, const std::string& name, uint64_t bytes) {
  const Fd dir(::openat(jobs.get(), name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir) return errno_error(name);
  if (!is_of_job_tmpfs(dir.get())) return Error{EINVAL, name + ": its tmpfs is hidden by another mount"};
  if (::mount(nullptr, path_of(dir.get()).c_str(), nullptr, MS_REMOUNT | kFlags, limits_of(bytes).c_str()) !=
      0)
    return errno_error("make the tmpfs of " + name + " larger");
  return {};
}

Status mount_run_tmpfs(const Fd& dir, uint64_t bytes, const User& user) {
  const std::string limits =
      fmt::format("size={},nr_inodes={},mode=0700,uid={},gid={}", bytes, kMoreInodes, user.uid, user.gid);
  if (::mount(kTmpfsSource, path_of(dir.get()).c_str(), "tmpfs", kFlags | MS_NOEXEC, limits.c_str()) != 0)
    return errno_error("mount a tmpfs of " + std::to_string(bytes) + " bytes");
  return {};
}

}  // namespace monarch
