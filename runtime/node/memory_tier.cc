// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/memory_tier.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/mountinfo.h"
#include "runtime/base/os.h"

namespace monarch {
namespace {

constexpr uint64_t kPage = 4096, kMoreInodes = 1024;
constexpr int kCloseTries = 8;

constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV;

// Each file takes a page at least, but for empty ones and directories. size=0 would be no limit.
std::string limits_of(uint64_t bytes) {
  bytes = std::max(bytes, kPage);
  return fmt::format("size={},nr_inodes={}", bytes, bytes / kPage + kMoreInodes);
}

std::string path_of(int fd) { return "/proc/self/fd/" + std::to_string(fd); }

Status mount_on(const Fd& dir, unsigned long flags, const std::string& limits) {
  const std::string options = limits + ",mode=0700,uid=0,gid=0";
  if (::mount(kTmpfsSource, path_of(dir.get()).c_str(), "tmpfs", flags, options.c_str()) != 0)
    return errno_error("mount a tmpfs with " + limits);
  return {};
}

}  // namespace

Status mount_tmpfs(const Fd& dir, uint64_t bytes) {
  // A kernel without NUMA does not know mpol.
  const Status spread = mount_on(dir, kFlags, limits_of(bytes) + ",mpol=interleave");
  return spread.ok() ? spread : mount_on(dir, kFlags, limits_of(bytes));
}

Status mount_run_tmpfs(const Fd& dir, uint64_t bytes) {
  return mount_on(dir, kFlags | MS_NOEXEC, fmt::format("size={},nr_inodes={}", bytes, kMoreInodes));
}

bool is_of_job_tmpfs(int fd) {
  MountLine mount;
  return find_mount(os::mount_id(fd), &mount) && mount.type == "tmpfs" && mount.source == kTmpfsSource;
}

void detach(int in, const std::string& name) {
  constexpr int kMostAtOnePlace = 1000;
  const std::string path = path_of(in) + "/" + name;
  for (int i = 0; i < kMostAtOnePlace && ::umount2(path.c_str(), MNT_DETACH | UMOUNT_NOFOLLOW) == 0; ++i)
    continue;
}

// The descriptor holds what is mounted there: it is looked at, and then made larger, or nothing is.
Status resize_tmpfs(int in, const std::string& name, uint64_t bytes) {
  const Fd dir(os::openat(in, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir) return errno_error(name);
  if (!is_of_job_tmpfs(dir.get())) return Error{EINVAL, name + ": its tmpfs is not mounted there"};
  if (::mount(nullptr, path_of(dir.get()).c_str(), nullptr, MS_REMOUNT | kFlags, limits_of(bytes).c_str()) !=
      0)
    return errno_error("make the tmpfs of " + name + " larger");
  return {};
}

// The kernel refuses limits below what there is by then: so what is returned is true afterwards, too.
Result<InTmpfs> close_tmpfs(int root) {
  for (int i = 0; i < kCloseTries; ++i) {
    struct statfs fs;
    if (os::fstatfs(root, &fs) != 0) return errno_error("statfs");
    const auto block = static_cast<uint64_t>(fs.f_bsize);
    const InTmpfs now{(fs.f_blocks - fs.f_bfree) * block, fs.f_files - fs.f_ffree};
    const std::string limits =
        fmt::format("nr_inodes={},size={}", std::max<uint64_t>(now.files, 1), std::max(now.bytes, block));
    if (::mount(nullptr, path_of(root).c_str(), nullptr, MS_REMOUNT | kFlags, limits.c_str()) == 0)
      return now;
    if (errno != EINVAL) break;
  }
  return errno_error("let no more be put into a tmpfs");
}

}  // namespace monarch
