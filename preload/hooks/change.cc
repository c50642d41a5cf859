// SPDX-License-Identifier: Apache-2.0
// The change family: calls that change what a path leads to. Marks first, then the PFS; see changes.h.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <utime.h>

#include "preload/decide/changes.h"
#include "preload/hooks/descriptor.h"
#include "preload/hooks/export.h"
#include "preload/next/next.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/paths.h"

namespace monarch::preload {
namespace {

#ifndef RENAME_NOREPLACE
constexpr unsigned RENAME_NOREPLACE = 1 << 0, RENAME_EXCHANGE = 1 << 1;
#endif

void will_rename(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
  const bool exchange = (flags & RENAME_EXCHANGE) != 0;
  will_change(Change::kName, from_dir, from, AT_SYMLINK_NOFOLLOW);
  // mv(1) tries "mv file directory" as a rename to the directory itself first, which is not to replace it.
  if ((flags & RENAME_NOREPLACE) == 0)
    will_change(exchange ? Change::kName : Change::kReplaced, to_dir, to, AT_SYMLINK_NOFOLLOW);
}

void will_change(Change change, const char* path) { will_change(change, AT_FDCWD, path, 0); }
void will_change_link(Change change, const char* path) {
  will_change(change, AT_FDCWD, path, AT_SYMLINK_NOFOLLOW);
}

// What the call gave, for one that gives a name or takes it.
int named(int result, int dirfd, const char* path) {
  if (result != 0) return result;
  const int saved = errno;
  changed_names(dirfd, path);
  errno = saved;
  return result;
}
int renamed(int result, int from_dir, const char* from, int to_dir, const char* to) {
  return named(named(result, from_dir, from), to_dir, to);
}

// fchownat(fd, "", ..., AT_EMPTY_PATH), utimensat(fd, nullptr, ...) and kin are about the descriptor. True:
// it is a copy's, for which the call without "at" is the same.
bool of_copy(Change change, int dirfd, const char* path, int flags) {
  if (path && (unreadable(path) || *path != '\0' || (flags & AT_EMPTY_PATH) == 0)) {
    will_change(change, dirfd, path, flags);
    return false;
  }
  if (is_copy(dirfd)) return true;
  changes_descriptor(change, dirfd);
  return false;
}

}  // namespace
}  // namespace monarch::preload

using namespace monarch::preload;

MONARCH_EXPORT int rename(const char* from, const char* to) noexcept {
  will_rename(AT_FDCWD, from, AT_FDCWD, to, 0);
  return renamed(next<int(const char*, const char*)>(Hook::rename)(from, to), AT_FDCWD, from, AT_FDCWD, to);
}
MONARCH_EXPORT int renameat(int from_dir, const char* from, int to_dir, const char* to) noexcept {
  will_rename(from_dir, from, to_dir, to, 0);
  return renamed(next<int(int, const char*, int, const char*)>(Hook::renameat)(from_dir, from, to_dir, to),
                 from_dir, from, to_dir, to);
}
MONARCH_EXPORT int renameat2(int from_dir, const char* from, int to_dir, const char* to,
                             unsigned flags) noexcept {
  will_rename(from_dir, from, to_dir, to, flags);
  return renamed(call<int>(Hook::renameat2, SYS_renameat2, from_dir, from, to_dir, to, flags), from_dir, from,
                 to_dir, to);
}
MONARCH_EXPORT int unlink(const char* path) noexcept {
  will_change_link(Change::kReplaced, path);
  return named(next<int(const char*)>(Hook::unlink)(path), AT_FDCWD, path);
}
MONARCH_EXPORT int unlinkat(int dirfd, const char* path, int flags) noexcept {
  if ((flags & AT_REMOVEDIR) == 0) will_change(Change::kReplaced, dirfd, path, AT_SYMLINK_NOFOLLOW);
  return named(next<int(int, const char*, int)>(Hook::unlinkat)(dirfd, path, flags), dirfd, path);
}
MONARCH_EXPORT int remove(const char* path) noexcept {
  will_change_link(Change::kReplaced, path);
  return named(next<int(const char*)>(Hook::remove)(path), AT_FDCWD, path);
}
// The number of links and ctime of the old name's file change.
MONARCH_EXPORT int link(const char* from, const char* to) noexcept {
  will_change_link(Change::kContent, from);
  return named(next<int(const char*, const char*)>(Hook::link)(from, to), AT_FDCWD, to);
}
MONARCH_EXPORT int linkat(int from_dir, const char* from, int to_dir, const char* to, int flags) noexcept {
  will_change(Change::kContent, from_dir, from, (flags & AT_SYMLINK_FOLLOW) != 0 ? 0 : AT_SYMLINK_NOFOLLOW);
  return named(
      next<int(int, const char*, int, const char*, int)>(Hook::linkat)(from_dir, from, to_dir, to, flags),
      to_dir, to);
}
// A sanitizer calls it, for its log_path, before code that it has instrumented may run.
MONARCH_EXPORT __attribute__((no_sanitize("address", "thread"))) int mkdir(const char* path,
                                                                           mode_t mode) noexcept {
  auto* real = reinterpret_cast<int (*)(const char*, mode_t)>(next_symbol(Hook::mkdir));
  const int result = real(path, mode);
  return result == 0 ? named(result, AT_FDCWD, path) : result;
}
MONARCH_EXPORT int mkdirat(int dirfd, const char* path, mode_t mode) noexcept {
  return named(next<int(int, const char*, mode_t)>(Hook::mkdirat)(dirfd, path, mode), dirfd, path);
}
MONARCH_EXPORT int rmdir(const char* path) noexcept {
  return named(next<int(const char*)>(Hook::rmdir)(path), AT_FDCWD, path);
}
MONARCH_EXPORT int symlink(const char* text, const char* path) noexcept {
  return named(next<int(const char*, const char*)>(Hook::symlink)(text, path), AT_FDCWD, path);
}
MONARCH_EXPORT int symlinkat(const char* text, int dirfd, const char* path) noexcept {
  return named(next<int(const char*, int, const char*)>(Hook::symlinkat)(text, dirfd, path), dirfd, path);
}
MONARCH_EXPORT int mkfifo(const char* path, mode_t mode) noexcept {
  return named(next<int(const char*, mode_t)>(Hook::mkfifo)(path, mode), AT_FDCWD, path);
}
MONARCH_EXPORT int mkfifoat(int dirfd, const char* path, mode_t mode) noexcept {
  return named(next<int(int, const char*, mode_t)>(Hook::mkfifoat)(dirfd, path, mode), dirfd, path);
}
MONARCH_EXPORT int truncate(const char* path, off_t bytes) noexcept {
  Room room;
  path = path_to_write(path, &room);
  will_change(Change::kContent, path);
  return next<int(const char*, off_t)>(Hook::truncate)(path, bytes);
}
MONARCH_EXPORT int truncate64(const char* path, off64_t bytes) noexcept {
  Room room;
  path = path_to_write(path, &room);
  will_change(Change::kContent, path);
  return next<int(const char*, off64_t)>(Hook::truncate64)(path, bytes);
}

MONARCH_EXPORT int chmod(const char* path, mode_t mode) noexcept {
  will_change(Change::kAccess, path);
  return next<int(const char*, mode_t)>(Hook::chmod)(path, mode);
}
MONARCH_EXPORT int fchmodat(int dirfd, const char* path, mode_t mode, int flags) noexcept {
  // Whether the libc and the kernel know AT_EMPTY_PATH here is theirs to say.
  if (of_copy(Change::kAccess, dirfd, path, flags)) return fchmodat_original(dirfd, mode, flags);
  return next<int(int, const char*, mode_t, int)>(Hook::fchmodat)(dirfd, path, mode, flags);
}
MONARCH_EXPORT int chown(const char* path, uid_t user, gid_t group) noexcept {
  will_change(Change::kAccess, path);
  return next<int(const char*, uid_t, gid_t)>(Hook::chown)(path, user, group);
}
MONARCH_EXPORT int lchown(const char* path, uid_t user, gid_t group) noexcept {
  will_change_link(Change::kAccess, path);
  return next<int(const char*, uid_t, gid_t)>(Hook::lchown)(path, user, group);
}
MONARCH_EXPORT int fchownat(int dirfd, const char* path, uid_t user, gid_t group, int flags) noexcept {
  if (of_copy(Change::kAccess, dirfd, path, flags)) return fchown(dirfd, user, group);
  return next<int(int, const char*, uid_t, gid_t, int)>(Hook::fchownat)(dirfd, path, user, group, flags);
}

MONARCH_EXPORT int utime(const char* path, const struct utimbuf* times) noexcept {
  will_change(Change::kContent, path);
  return next<int(const char*, const struct utimbuf*)>(Hook::utime)(path, times);
}
MONARCH_EXPORT int utimes(const char* path, const struct timeval times[2]) noexcept {
  will_change(Change::kContent, path);
  return next<int(const char*, const struct timeval*)>(Hook::utimes)(path, times);
}
MONARCH_EXPORT int lutimes(const char* path, const struct timeval times[2]) noexcept {
  will_change_link(Change::kContent, path);
  return next<int(const char*, const struct timeval*)>(Hook::lutimes)(path, times);
}
MONARCH_EXPORT int futimesat(int dirfd, const char* path, const struct timeval times[2]) noexcept {
  if (of_copy(Change::kContent, dirfd, path, 0)) return futimes(dirfd, times);
  return next<int(int, const char*, const struct timeval*)>(Hook::futimesat)(dirfd, path, times);
}
MONARCH_EXPORT int utimensat(int dirfd, const char* path, const struct timespec times[2],
                             int flags) noexcept {
  if (of_copy(Change::kContent, dirfd, path, flags)) return futimens(dirfd, times);
  return next<int(int, const char*, const struct timespec*, int)>(Hook::utimensat)(dirfd, path, times, flags);
}

// An access control list is an extended attribute.
MONARCH_EXPORT int setxattr(const char* path, const char* name, const void* value, size_t bytes,
                            int flags) noexcept {
  will_change(Change::kAccess, path);
  return next<int(const char*, const char*, const void*, size_t, int)>(Hook::setxattr)(path, name, value,
                                                                                       bytes, flags);
}
MONARCH_EXPORT int lsetxattr(const char* path, const char* name, const void* value, size_t bytes,
                             int flags) noexcept {
  will_change_link(Change::kAccess, path);
  return next<int(const char*, const char*, const void*, size_t, int)>(Hook::lsetxattr)(path, name, value,
                                                                                        bytes, flags);
}
MONARCH_EXPORT int removexattr(const char* path, const char* name) noexcept {
  will_change(Change::kAccess, path);
  return next<int(const char*, const char*)>(Hook::removexattr)(path, name);
}
MONARCH_EXPORT int lremovexattr(const char* path, const char* name) noexcept {
  will_change_link(Change::kAccess, path);
  return next<int(const char*, const char*)>(Hook::lremovexattr)(path, name);
}
