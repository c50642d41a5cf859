// SPDX-License-Identifier: Apache-2.0
// The descriptor family: fchmod(2) and its kin work on a descriptor that was opened for reading, so on a
// tier's copy too, where nobody would see it. So the file is marked, and the descriptor goes back to the PFS
// first, if the file there still is the one that was copied (else ESTALE).
#include <linux/fs.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/xattr.h>

#include "preload/decide/returns.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/roots.h"

namespace monarch::preload {
namespace {

template <typename Stat>
int stat_of_root(Hook by_fd, int (*by_path)(const char*, Stat*), int fd, Stat* out) {
  Original original;
  const char* root = nullptr;
  if (original_of_descriptor(fd, &original)) root = root_path(*client(), original.entry->root);
  return root ? by_path(root, out) : next<int(int, Stat*)>(by_fd)(fd, out);
}

// By what hooks saw: nothing is asked of other descriptors, such as those of devices.
bool may_be_copy(int fd) { return is_tier(class_of(fd)); }

// Where no further descriptor is to be had, a copy's stays, and the file on the PFS is changed by its name.
template <typename Change>
int change_by_name(int fd, Change change) {
  Original original;
  const bool none_left = errno == EMFILE || errno == ENFILE;
  return none_left && original_of_descriptor(fd, &original) ? on_original(original, change) : -1;
}

// The file whose extents the call shares with another's; -1: none.
int shared_file(unsigned long request, void* argument) {
  if (request == FICLONE) return static_cast<int>(reinterpret_cast<intptr_t>(argument));
  const bool range = request == FICLONERANGE && !unreadable(argument);
  return range ? static_cast<int>(static_cast<file_clone_range*>(argument)->src_fd) : -1;
}

}  // namespace

// `named`: what changes the file by `path`.
#define WRITE_HOOK(name_, change, parameters, named, ...)                                           \
  EXPORT int name_ parameters noexcept {                                                            \
    return will_change_open(Change::change, fd)                                                     \
               ? call_next<int>(Hook::name_, __VA_ARGS__)                                           \
               : change_by_name(fd, [&](const char* path) -> int { return call_next<int> named; }); \
  }
WRITE_HOOK(fchmod, kAccess, (int fd, mode_t mode), (Hook::chmod, path, mode), fd, mode)
WRITE_HOOK(fchown, kAccess, (int fd, uid_t user, gid_t group), (Hook::chown, path, user, group), fd, user,
           group)
WRITE_HOOK(futimens, kContent, (int fd, const struct timespec times[2]),
           (Hook::utimensat, AT_FDCWD, path, times, 0), fd, times)
WRITE_HOOK(futimes, kContent, (int fd, const struct timeval times[2]), (Hook::utimes, path, times), fd, times)
WRITE_HOOK(fsetxattr, kAccess, (int fd, const char* name, const void* value, size_t bytes, int flags),
           (Hook::setxattr, path, name, value, bytes, flags), fd, name, value, bytes, flags)
WRITE_HOOK(fremovexattr, kAccess, (int fd, const char* name), (Hook::removexattr, path, name), fd, name)

EXPORT ssize_t fgetxattr(int fd, const char* name, void* value, size_t bytes) noexcept {
  return on_original_of(
      fd, "", AT_EMPTY_PATH,
      [&](const char* link) { return syscall(SYS_getxattr, link, name, value, bytes); },
      [&] { return call_next<ssize_t>(Hook::fgetxattr, fd, name, value, bytes); });
}
EXPORT ssize_t flistxattr(int fd, char* list, size_t bytes) noexcept {
  return on_original_of(
      fd, "", AT_EMPTY_PATH, [&](const char* link) { return syscall(SYS_listxattr, link, list, bytes); },
      [&] { return call_next<ssize_t>(Hook::flistxattr, fd, list, bytes); });
}

// What a file system does on its own files only: clones, extents, flags. Not what asks whether a descriptor
// is a terminal, as stdio does.
EXPORT int ioctl(int fd, unsigned long request, ...) noexcept {
  va_list list;
  va_start(list, request);
  void* argument = va_arg(list, void*);
  va_end(list);
  if (_IOC_TYPE(request) != 'T' && may_be_copy(fd)) give_back(fd);
  if (request == FIONREAD) follow_changes(fd);
  if (const int shared = shared_file(request, argument); shared >= 0) give_back_beside(shared, fd);
  return call_next<int>(Hook::ioctl, fd, request, argument);
}
EXPORT int name_to_handle_at(int dirfd, const char* path, struct file_handle* handle, int* mount,
                             int flags) noexcept {
  give_back_meant(dirfd, path, flags, Hints::kSet);
  return call_next<int>(Hook::name_to_handle_at, dirfd, path, handle, mount, flags);
}

// All of a dataset is on its root's file system.
HOOK(int, fstatfs, (int fd, struct statfs* out) noexcept, stat_of_root, &statfs, fd, out)
HOOK(int, fstatfs64, (int fd, struct statfs64* out) noexcept, stat_of_root, &statfs64, fd, out)
HOOK(int, fstatvfs, (int fd, struct statvfs* out) noexcept, stat_of_root, &statvfs, fd, out)
HOOK(int, fstatvfs64, (int fd, struct statvfs64* out) noexcept, stat_of_root, &statvfs64, fd, out)

}  // namespace monarch::preload
