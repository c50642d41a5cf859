// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/memory_tier.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/mount.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/os.h"
#include "runtime/node/mounts.h"

namespace monarch {
namespace {

constexpr uint64_t kPage = 4096, kMoreInodes = 1024;
constexpr int kCloseTries = 8;

constexpr unsigned long kFlags = MS_NOSUID | MS_NODEV;

// Of <linux/mount.h>, which older releases of the C library do not bear beside <sys/mount.h>.
constexpr unsigned kOpenCloexec = 1, kMountCloexec = 1;
constexpr unsigned kSetString = 1, kCreate = 6;
constexpr unsigned kNoSuid = 2, kNoDev = 4, kNoExec = 8;
constexpr unsigned kFromDescriptor = 4, kToDescriptor = 0x40;

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

bool set(const Fd& tmpfs, const char* key, const std::string& value) {
  return ::syscall(SYS_fsconfig, tmpfs.get(), kSetString, key, value.c_str(), 0) == 0;
}

}  // namespace

Status mount_tmpfs(const Fd& dir, uint64_t bytes) {
  // A kernel without NUMA does not know mpol.
  const Status spread = mount_on(dir, kFlags, limits_of(bytes) + ",mpol=interleave");
  return spread.ok() ? spread : mount_on(dir, kFlags, limits_of(bytes));
}

// Nothing is looked for at a path: as soon as the directory is its owner's, that may have mounted something
// there.
Result<Fd> mount_run_tmpfs(const Fd& dir, uint64_t bytes) {
  const Fd tmpfs(static_cast<int>(::syscall(SYS_fsopen, "tmpfs", kOpenCloexec)));
  if (!tmpfs || !set(tmpfs, "source", kTmpfsSource) || !set(tmpfs, "size", std::to_string(bytes)) ||
      !set(tmpfs, "nr_inodes", std::to_string(kMoreInodes)) || !set(tmpfs, "mode", "0700") ||
      ::syscall(SYS_fsconfig, tmpfs.get(), kCreate, nullptr, nullptr, 0) != 0)
    return errno_error(fmt::format("make a tmpfs of {} bytes", bytes));
  const Fd mount(
      static_cast<int>(::syscall(SYS_fsmount, tmpfs.get(), kMountCloexec, kNoSuid | kNoDev | kNoExec)));
  Fd top(mount ? os::openat(mount.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1);
  if (!top || ::syscall(SYS_move_mount, mount.get(), "", dir.get(), "", kFromDescriptor | kToDescriptor) != 0)
    return errno_error(fmt::format("mount a tmpfs of {} bytes", bytes));
  return top;
}

// The descriptor holds what is mounted there: it is looked at, and then made larger, or nothing is. The job's
// owner may have mounted a file system on it that hangs.
Status resize_tmpfs(int in, const std::string& name, uint64_t bytes) {
  const Fd dir(os::openat(in, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!dir) return errno_error(name);
  if (!is_of_job_tmpfs(dir.get())) return Error{EINVAL, name + ": its tmpfs is hidden by another mount"};
  if (::mount(nullptr, path_of(dir.get()).c_str(), nullptr, MS_REMOUNT | kFlags, limits_of(bytes).c_str()) !=
      0)
    return errno_error("make the tmpfs of " + name + " larger");
  return {};
}

// The kernel refuses limits below what there is by then: so what is returned is true afterwards, too.
Result<InTmpfs> close_tmpfs(int root, Closed what) {
  for (int i = 0; i < kCloseTries; ++i) {
    struct statfs fs;
    if (os::fstatfs(root, &fs) != 0) return errno_error("statfs");
    const auto block = static_cast<uint64_t>(fs.f_bsize);
    const InTmpfs now{(fs.f_blocks - fs.f_bfree) * block, fs.f_files - fs.f_ffree};
    std::string limits = fmt::format("nr_inodes={}", std::max<uint64_t>(now.files, 1));
    if (what == Closed::kAll) limits += fmt::format(",size={}", std::max(now.bytes, block));
    const unsigned long flags = MS_REMOUNT | kFlags | (what == Closed::kAll ? 0 : MS_NOEXEC);
    if (::mount(nullptr, path_of(root).c_str(), nullptr, flags, limits.c_str()) == 0) return now;
    if (errno != EINVAL) break;
  }
  return errno_error("let no more be put into a tmpfs");
}

}  // namespace monarch
