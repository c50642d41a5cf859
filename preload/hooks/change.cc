// SPDX-License-Identifier: Apache-2.0
// The change family: calls that change what a path leads to. Marks first, then the PFS; see changes.h.
#include <stdio.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/xattr.h>
#include <utime.h>

#include "preload/decide/returns.h"
#include "preload/next/next.h"

namespace monarch::preload {
namespace {

#ifndef RENAME_NOREPLACE
constexpr unsigned RENAME_NOREPLACE = 1 << 0, RENAME_EXCHANGE = 1 << 1;
#endif

void will_rename(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) {
  const bool exchange = (flags & RENAME_EXCHANGE) != 0;
  (void)will_change(Change::kName, from_dir, from, AT_SYMLINK_NOFOLLOW);
  // mv(1) tries "mv file directory" as a rename to the directory itself first, which is not to replace it.
  if ((flags & RENAME_NOREPLACE) == 0)
    (void)will_change(exchange ? Change::kName : Change::kReplaced, to_dir, to, AT_SYMLINK_NOFOLLOW);
}

// Of a call that changes what a path leads to: it was marked before.
template <typename Result>
Result done(int dirfd, const char* path, Result result) {
  has_changed_name(dirfd, path);
  return result;
}

int empty_if_null(const char* path) { return path ? 0 : AT_EMPTY_PATH; }

}  // namespace

// Functions that change what `path` leads to.
#define CHANGE(name, change, dirfd, flags, ...)                             \
  [&, instead = Instead()]() mutable {                                      \
    return may_change(Change::change, dirfd, &path, flags, &instead)        \
               ? done(dirfd, path, call_next<int>(Hook::name, __VA_ARGS__)) \
               : -1;                                                        \
  }()
#define CHANGE_HOOK(name_, change, flags_, parameters, ...) \
  EXPORT int name_ parameters noexcept { return CHANGE(name_, change, AT_FDCWD, flags_, __VA_ARGS__); }

#define RENAME_HOOK(name, from_dir, to_dir, flags, parameters, ...)                         \
  EXPORT int name parameters noexcept {                                                     \
    will_rename(from_dir, from, to_dir, to, flags);                                         \
    return done(from_dir, from, done(to_dir, to, call_next<int>(Hook::name, __VA_ARGS__))); \
  }
RENAME_HOOK(rename, AT_FDCWD, AT_FDCWD, 0, (const char* from, const char* to), from, to)
RENAME_HOOK(renameat, dir, to_dir, 0, (int dir, const char* from, int to_dir, const char* to), dir, from,
            to_dir, to)
RENAME_HOOK(renameat2, dir, to_dir, flags,
            (int dir, const char* from, int to_dir, const char* to, unsigned flags), dir, from, to_dir, to,
            flags)
EXPORT int unlinkat(int dirfd, const char* path, int flags) noexcept {
  if ((flags & AT_REMOVEDIR) == 0) (void)will_change(Change::kReplaced, dirfd, path, AT_SYMLINK_NOFOLLOW);
  return done(dirfd, path, call_next<int>(Hook::unlinkat, dirfd, path, flags));
}
CHANGE_HOOK(unlink, kReplaced, AT_SYMLINK_NOFOLLOW, (const char* path), path)
CHANGE_HOOK(remove, kReplaced, AT_SYMLINK_NOFOLLOW, (const char* path), path)
// The number of links and ctime of the old name's file change.
CHANGE_HOOK(link, kContent, AT_SYMLINK_NOFOLLOW, (const char* path, const char* to), path, to)
EXPORT int linkat(int dirfd, const char* path, int to_dir, const char* to, int flags) noexcept {
  const int follows = (flags & AT_SYMLINK_FOLLOW) != 0 ? 0 : AT_SYMLINK_NOFOLLOW;
  return CHANGE(linkat, kContent, dirfd, (flags & AT_EMPTY_PATH) | follows, dirfd, path, to_dir, to, flags);
}

CHANGE_HOOK(truncate, kContent, 0, (const char* path, off_t bytes), path, bytes)
CHANGE_HOOK(truncate64, kContent, 0, (const char* path, off64_t bytes), path, bytes)
CHANGE_HOOK(chmod, kAccess, 0, (const char* path, mode_t mode), path, mode)
CHANGE_HOOK(lchmod, kAccess, AT_SYMLINK_NOFOLLOW, (const char* path, mode_t mode), path, mode)
CHANGE_HOOK(chown, kAccess, 0, (const char* path, uid_t user, gid_t group), path, user, group)
CHANGE_HOOK(lchown, kAccess, AT_SYMLINK_NOFOLLOW, (const char* path, uid_t user, gid_t group), path, user,
            group)
CHANGE_HOOK(utime, kContent, 0, (const char* path, const struct utimbuf* times), path, times)
CHANGE_HOOK(utimes, kContent, 0, (const char* path, const struct timeval times[2]), path, times)
CHANGE_HOOK(lutimes, kContent, AT_SYMLINK_NOFOLLOW, (const char* path, const struct timeval times[2]), path,
            times)
// An access control list is an extended attribute.
CHANGE_HOOK(setxattr, kAccess, 0,
            (const char* path, const char* name, const void* value, size_t bytes, int flags), path, name,
            value, bytes, flags)
CHANGE_HOOK(lsetxattr, kAccess, AT_SYMLINK_NOFOLLOW,
            (const char* path, const char* name, const void* value, size_t bytes, int flags), path, name,
            value, bytes, flags)
CHANGE_HOOK(removexattr, kAccess, 0, (const char* path, const char* name), path, name)
CHANGE_HOOK(lremovexattr, kAccess, AT_SYMLINK_NOFOLLOW, (const char* path, const char* name), path, name)

EXPORT int fchmodat(int dirfd, const char* path, mode_t mode, int flags) noexcept {
  return CHANGE(fchmodat, kAccess, dirfd, flags, dirfd, path, mode, flags);
}
EXPORT int fchownat(int dirfd, const char* path, uid_t user, gid_t group, int flags) noexcept {
  return CHANGE(fchownat, kAccess, dirfd, flags, dirfd, path, user, group, flags);
}
EXPORT int futimesat(int dirfd, const char* path, const struct timeval times[2]) noexcept {
  return CHANGE(futimesat, kContent, dirfd, empty_if_null(path), dirfd, path, times);
}
EXPORT int utimensat(int dirfd, const char* path, const struct timespec times[2], int flags) noexcept {
  return CHANGE(utimensat, kContent, dirfd, flags | empty_if_null(path), dirfd, path, times, flags);
}

}  // namespace monarch::preload
