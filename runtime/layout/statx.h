// SPDX-License-Identifier: Apache-2.0
// statx(2), also where a filter of system calls that does not know it refuses it. libc's syscall(2) only;
// async-signal-safe.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

namespace monarch {

inline void set_statx_time(const struct timespec& from, struct statx_timestamp* to) {
  to->tv_sec = from.tv_sec;
  to->tv_nsec = static_cast<decltype(to->tv_nsec)>(from.tv_nsec);
}

// By fstat(2) and newfstatat(2), which are older: without a time of birth or a mount. False, with errno: also
// if more is asked for than these can promise.
__attribute__((noinline, cold)) inline bool stat_without_statx(int dirfd, const char* path, int flags,
                                                               struct statx* out) {
  constexpr int kKnown = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT;
  struct stat st;
  if ((flags & AT_STATX_FORCE_SYNC) != 0) return false;
  const bool open = (flags & AT_EMPTY_PATH) != 0 && (!path || !*path) && dirfd != AT_FDCWD;
  if ((open ? syscall(SYS_fstat, dirfd, &st)
            : syscall(SYS_newfstatat, dirfd, path, &st, flags & (kKnown | AT_EMPTY_PATH))) != 0)
    return false;
  *out = {};
  out->stx_mask = STATX_BASIC_STATS;
  out->stx_dev_major = gnu_dev_major(st.st_dev);
  out->stx_dev_minor = gnu_dev_minor(st.st_dev);
  out->stx_ino = st.st_ino;
  out->stx_mode = static_cast<decltype(out->stx_mode)>(st.st_mode);
  out->stx_nlink = static_cast<decltype(out->stx_nlink)>(st.st_nlink);
  out->stx_uid = st.st_uid;
  out->stx_gid = st.st_gid;
  out->stx_size = static_cast<decltype(out->stx_size)>(st.st_size);
  out->stx_blocks = static_cast<decltype(out->stx_blocks)>(st.st_blocks);
  set_statx_time(st.st_atim, &out->stx_atime);
  set_statx_time(st.st_mtim, &out->stx_mtime);
  set_statx_time(st.st_ctim, &out->stx_ctime);
  return true;
}

// False, with errno: it is not to be had.
inline bool ask_statx(int dirfd, const char* path, int flags, unsigned mask, struct statx* st) {
  if (__builtin_expect(syscall(SYS_statx, dirfd, path, flags, mask, st) == 0, 1)) return true;
  return (errno == EPERM || errno == ENOSYS) && stat_without_statx(dirfd, path, flags, st);
}

}  // namespace monarch
