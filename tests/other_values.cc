// SPDX-License-Identifier: Apache-2.0
// To be preloaded after libmonarch_preload.so: tells other times and owners than the kernel does, as faketime
// and fakeroot do.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace {

template <typename Stat>
int altered(long rc, Stat* st) {
  if (rc == 0) st->st_mtim.tv_sec += 1000, st->st_uid ^= 1;
  return static_cast<int>(rc);
}
int altered(long rc, struct statx* st) {
  if (rc == 0) st->stx_mtime.tv_sec += 1000, st->stx_uid ^= 1;
  return static_cast<int>(rc);
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))
// NOLINTBEGIN(bugprone-macro-parentheses)
#define KIN(Stat, plain, link, at, descriptor)                                            \
  EXPORT int plain(const char* path, Stat* st) noexcept {                                 \
    return altered(syscall(SYS_newfstatat, AT_FDCWD, path, st, 0), st);                   \
  }                                                                                       \
  EXPORT int link(const char* path, Stat* st) noexcept {                                  \
    return altered(syscall(SYS_newfstatat, AT_FDCWD, path, st, AT_SYMLINK_NOFOLLOW), st); \
  }                                                                                       \
  EXPORT int at(int dirfd, const char* path, Stat* st, int flags) noexcept {              \
    return altered(syscall(SYS_newfstatat, dirfd, path, st, flags), st);                  \
  }                                                                                       \
  EXPORT int descriptor(int fd, Stat* st) noexcept { return altered(syscall(SYS_fstat, fd, st), st); }
// NOLINTEND(bugprone-macro-parentheses)
KIN(struct stat, stat, lstat, fstatat, fstat)
KIN(struct stat64, stat64, lstat64, fstatat64, fstat64)
EXPORT int statx(int dirfd, const char* path, int flags, unsigned mask, struct statx* st) noexcept {
  return altered(syscall(SYS_statx, dirfd, path, flags, mask, st), st);
}
