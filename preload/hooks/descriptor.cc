// SPDX-License-Identifier: Apache-2.0
// The descriptor family: what fchmod(2) and its kin do to a tier's copy has to happen to the file on the PFS.
//
// They all work on a descriptor that was opened for reading, so on a copy too, where nobody would see it.
// Here they go to the PFS's file, by its path, if that is still the file that was copied (else ESTALE). On
// any other descriptor they go on as they are, and the file is marked if it is a dataset's.
#include "preload/hooks/descriptor.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/xattr.h>

#include "preload/decide/changes.h"
#include "preload/hooks/export.h"
#include "preload/next/next.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/paths.h"
#include "preload/resolve/roots.h"

namespace monarch::preload {
namespace {

// Calls `act` with a link (/proc/self/fd) to the PFS's file.
template <typename Act>
auto on_original(const Original& original, Act act) -> decltype(act("")) {
  const int fd = open_original(original);
  if (fd < 0) return -1;
  char link[kFdLinkBytes];
  fd_link(fd, link);
  const auto result = act(link);
  const int saved = errno;
  syscall(SYS_close, fd);
  errno = saved;
  return result;
}

void mark(Change change, const Original& original) {
  Room room;
  if (const char* path = path_of_original(original, &room))
    will_change(change, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
}

// A call that changes what is open as `fd`: `on_link` does it to the PFS's file, `other` is the call itself.
template <typename OnLink, typename Other>
int change_descriptor(Change change, int fd, OnLink on_link, Other other) {
  Original original;
  if (!original_of_descriptor(fd, &original)) {
    changes_descriptor(change, fd);
    return other();
  }
  mark(change, original);
  return on_original(original, on_link);
}

template <typename Stat>
int stat_of_root(int (*by_path)(const char*, Stat*), Hook by_fd, int fd, Stat* out) {
  Original original;
  const char* root = nullptr;
  if (original_of_descriptor(fd, &original)) root = root_path(*client(), original.entry->root);
  return root ? by_path(root, out) : next<int(int, Stat*)>(by_fd)(fd, out);
}

int set_times(int fd, const struct timespec* times) {
  return change_descriptor(
      Change::kContent, fd,
      [&](const char* link) { return static_cast<int>(syscall(SYS_utimensat, AT_FDCWD, link, times, 0)); },
      [&] { return call_next<int>(Hook::futimens, fd, times); });
}

int set_owner(int fd, uid_t user, gid_t group) {
  return change_descriptor(
      Change::kAccess, fd,
      [&](const char* link) {
        return static_cast<int>(syscall(SYS_fchownat, AT_FDCWD, link, user, group, 0));
      },
      [&] { return call_next<int>(Hook::fchown, fd, user, group); });
}

int set_mode(int fd, mode_t mode) {
  return change_descriptor(
      Change::kAccess, fd,
      [&](const char* link) { return static_cast<int>(syscall(SYS_fchmodat, AT_FDCWD, link, mode)); },
      [&] { return call_next<int>(Hook::fchmod, fd, mode); });
}

}  // namespace

int fchmodat_original(int fd, mode_t mode, int flags) {
  Original original;
  if (!original_of_descriptor(fd, &original)) return -1;
  mark(Change::kAccess, original);
  const int file = open_original(original);
  if (file < 0) return -1;
  const int result = call_next<int>(Hook::fchmodat, file, "", mode, flags);
  const int saved = errno;
  syscall(SYS_close, file);
  errno = saved;
  return result;
}

bool is_copy(int fd) {
  Original original;
  return fd >= 0 && original_of_descriptor(fd, &original);
}

}  // namespace monarch::preload

using namespace monarch::preload;

MONARCH_EXPORT int fchmod(int fd, mode_t mode) noexcept { return set_mode(fd, mode); }
MONARCH_EXPORT int fchown(int fd, uid_t user, gid_t group) noexcept { return set_owner(fd, user, group); }
MONARCH_EXPORT int futimens(int fd, const struct timespec times[2]) noexcept { return set_times(fd, times); }
MONARCH_EXPORT int futimes(int fd, const struct timeval times[2]) noexcept {
  return change_descriptor(
      Change::kContent, fd, [&](const char* link) { return call_next<int>(Hook::utimes, link, times); },
      [&] { return call_next<int>(Hook::futimes, fd, times); });
}
MONARCH_EXPORT int fsetxattr(int fd, const char* name, const void* value, size_t bytes, int flags) noexcept {
  return change_descriptor(
      Change::kAccess, fd,
      [&](const char* link) {
        return static_cast<int>(syscall(SYS_setxattr, link, name, value, bytes, flags));
      },
      [&] { return call_next<int>(Hook::fsetxattr, fd, name, value, bytes, flags); });
}
MONARCH_EXPORT int fremovexattr(int fd, const char* name) noexcept {
  return change_descriptor(
      Change::kAccess, fd,
      [&](const char* link) { return static_cast<int>(syscall(SYS_removexattr, link, name)); },
      [&] { return call_next<int>(Hook::fremovexattr, fd, name); });
}
MONARCH_EXPORT ssize_t fgetxattr(int fd, const char* name, void* value, size_t bytes) noexcept {
  Original original;
  if (!original_of_descriptor(fd, &original))
    return call_next<ssize_t>(Hook::fgetxattr, fd, name, value, bytes);
  return on_original(original,
                     [&](const char* link) { return syscall(SYS_getxattr, link, name, value, bytes); });
}
MONARCH_EXPORT ssize_t flistxattr(int fd, char* list, size_t bytes) noexcept {
  Original original;
  if (!original_of_descriptor(fd, &original)) return call_next<ssize_t>(Hook::flistxattr, fd, list, bytes);
  return on_original(original, [&](const char* link) { return syscall(SYS_listxattr, link, list, bytes); });
}

// All of a dataset is on its root's file system.
MONARCH_EXPORT int fstatfs(int fd, struct statfs* out) noexcept {
  return stat_of_root(&statfs, Hook::fstatfs, fd, out);
}
MONARCH_EXPORT int fstatfs64(int fd, struct statfs64* out) noexcept {
  return stat_of_root(&statfs64, Hook::fstatfs64, fd, out);
}
MONARCH_EXPORT int fstatvfs(int fd, struct statvfs* out) noexcept {
  return stat_of_root(&statvfs, Hook::fstatvfs, fd, out);
}
MONARCH_EXPORT int fstatvfs64(int fd, struct statvfs64* out) noexcept {
  return stat_of_root(&statvfs64, Hook::fstatvfs64, fd, out);
}
