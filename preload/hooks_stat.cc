// SPDX-License-Identifier: Apache-2.0
// The fstat family: a descriptor of a tier's copy answers as the dataset's file on the PFS does.
//
// See originals.cc for how a copy is recognised.
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "preload/preload.h"

namespace monarch::preload {
namespace {

static_assert(sizeof(struct stat) == sizeof(struct stat64));
static_assert(offsetof(struct stat, st_ctim) == offsetof(struct stat64, st_ctim));

using FstatFunction = int(int, struct stat*);
using FxstatFunction = int(int, int, struct stat*);
using FstatatFunction = int(int, const char*, struct stat*, int);
using FxstatatFunction = int(int, int, const char*, struct stat*, int);
using StatxFunction = int(int, const char*, int, unsigned, struct statx*);

constexpr int64_t kSecond = 1000000000;

// Seconds and nanoseconds of a time before or after the epoch.
template <typename Time>
void set_time(int64_t ns, Time* sec, long* nsec) {
  int64_t s = ns / kSecond, rest = ns % kSecond;
  if (rest < 0) {
    rest += kSecond;
    --s;
  }
  *sec = s;
  *nsec = static_cast<long>(rest);
}

// What the PFS says now of a file that the job changed; false: what it said when it was copied holds.
bool look_again(const Original& o, struct statx* now) {
  char text[kPathBytes];
  RelPath path;
  const Client* c = client();
  if (!c || !c->catalog.path_of(*o.entry, text, &path) || !is_changed(*c, path, o.entry)) return false;
  const int saved = errno;
  const int fd = open_original(o);
  const bool good = fd >= 0 && syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, now) == 0;
  if (fd >= 0) syscall(SYS_close, fd);
  errno = saved;
  return good;
}

template <typename Time>
void copy_time(const struct statx_timestamp& from, Time* to) {
  to->tv_sec = from.tv_sec;
  to->tv_nsec = from.tv_nsec;
}

int restored(int rc, struct stat* st) {
  Original o = {};
  if (rc != 0 || !S_ISREG(st->st_mode) ||
      !original_of(st->st_dev, st->st_ino, static_cast<uint64_t>(st->st_size),
                   int64_t{st->st_mtim.tv_sec} * kSecond + st->st_mtim.tv_nsec, &o))
    return rc;
  st->st_dev = o.attributes->dev;
  st->st_ino = o.identity->pfs_ino;
  st->st_mode = o.attributes->mode;
  st->st_nlink = o.attributes->nlink;
  st->st_uid = o.attributes->uid;
  st->st_gid = o.attributes->gid;
  st->st_blksize = static_cast<decltype(st->st_blksize)>(o.attributes->blksize);
  st->st_blocks = o.identity->blocks;
  set_time(o.identity->atime, &st->st_atim.tv_sec, &st->st_atim.tv_nsec);
  set_time(o.identity->ctime, &st->st_ctim.tv_sec, &st->st_ctim.tv_nsec);
  struct statx now;
  if (!look_again(o, &now)) return rc;
  st->st_mode = now.stx_mode;  // size and blocks stay those of the copy that it reads
  st->st_nlink = now.stx_nlink;
  st->st_uid = now.stx_uid;
  st->st_gid = now.stx_gid;
  copy_time(now.stx_atime, &st->st_atim);
  copy_time(now.stx_mtime, &st->st_mtim);
  copy_time(now.stx_ctime, &st->st_ctim);
  return rc;
}

void set_statx_time(int64_t ns, struct statx_timestamp* t) {
  long nsec;
  set_time(ns, &t->tv_sec, &nsec);
  t->tv_nsec = static_cast<decltype(t->tv_nsec)>(nsec);
}

int restored(int rc, struct statx* st) {
  constexpr unsigned kNeeded = STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME;
  Original o = {};
  if (rc != 0 || (st->stx_mask & kNeeded) != kNeeded || !S_ISREG(st->stx_mode) ||
      !original_of(gnu_dev_makedev(st->stx_dev_major, st->stx_dev_minor), st->stx_ino, st->stx_size,
                   int64_t{st->stx_mtime.tv_sec} * kSecond + st->stx_mtime.tv_nsec, &o))
    return rc;
  st->stx_dev_major = gnu_dev_major(o.attributes->dev);
  st->stx_dev_minor = gnu_dev_minor(o.attributes->dev);
  st->stx_ino = o.identity->pfs_ino;
  st->stx_mode = static_cast<decltype(st->stx_mode)>(o.attributes->mode);
  st->stx_nlink = o.attributes->nlink;
  st->stx_uid = o.attributes->uid;
  st->stx_gid = o.attributes->gid;
  st->stx_blksize = o.attributes->blksize;
  st->stx_blocks = o.identity->blocks;
  set_statx_time(o.identity->atime, &st->stx_atime);
  set_statx_time(o.identity->ctime, &st->stx_ctime);
  st->stx_mask &= ~static_cast<unsigned>(STATX_BTIME);  // the copy's birth is not the file's
  st->stx_btime = {};
  struct statx now;
  if (!look_again(o, &now)) return rc;
  st->stx_mode = now.stx_mode;
  st->stx_nlink = now.stx_nlink;
  st->stx_uid = now.stx_uid;
  st->stx_gid = now.stx_gid;
  st->stx_atime = now.stx_atime;
  st->stx_mtime = now.stx_mtime;
  st->stx_ctime = now.stx_ctime;
  return rc;
}

// Whether a call on (dirfd, path) is about the descriptor itself.
bool of_descriptor(const char* path, int flags) {
  return (flags & AT_EMPTY_PATH) != 0 && (unreadable(path) || *path == '\0');
}

// For a libc that lacks the symbol (fstat before glibc 2.33, __fxstat in others).
int call_fstat(int fd, struct stat* st) {
#ifdef SYS_newfstatat
  return static_cast<int>(syscall(SYS_newfstatat, fd, "", st, AT_EMPTY_PATH));
#else
  return static_cast<int>(syscall(SYS_fstat, fd, st));
#endif
}
int call_fstatat(int dirfd, const char* path, struct stat* st, int flags) {
  return static_cast<int>(syscall(SYS_newfstatat, dirfd, path, st, flags));
}

int any_fstat(Hook hook, int fd, struct stat* st) {
  auto* real = next<FstatFunction>(hook);
  return restored(real ? real(fd, st) : call_fstat(fd, st), st);
}
int any_fxstat(Hook hook, int version, int fd, struct stat* st) {
  auto* real = next<FxstatFunction>(hook);
  return restored(real ? real(version, fd, st) : call_fstat(fd, st), st);
}
int any_fstatat(Hook hook, int dirfd, const char* path, struct stat* st, int flags) {
  auto* real = next<FstatatFunction>(hook);
  const int rc = real ? real(dirfd, path, st, flags) : call_fstatat(dirfd, path, st, flags);
  return of_descriptor(path, flags) ? restored(rc, st) : rc;
}
int any_fxstatat(Hook hook, int version, int dirfd, const char* path, struct stat* st, int flags) {
  auto* real = next<FxstatatFunction>(hook);
  const int rc = real ? real(version, dirfd, path, st, flags) : call_fstatat(dirfd, path, st, flags);
  return of_descriptor(path, flags) ? restored(rc, st) : rc;
}

struct stat* plain(struct stat64* st) {
  return reinterpret_cast<struct stat*>(st);
}

}  // namespace
}  // namespace monarch::preload

using namespace monarch::preload;

MONARCH_EXPORT int fstat(int fd, struct stat* st) noexcept { return any_fstat(Hook::fstat, fd, st); }
MONARCH_EXPORT int fstat64(int fd, struct stat64* st) noexcept {
  return any_fstat(Hook::fstat64, fd, plain(st));
}
MONARCH_EXPORT int __fxstat(int version, int fd, struct stat* st) noexcept {
  return any_fxstat(Hook::__fxstat, version, fd, st);
}
MONARCH_EXPORT int __fxstat64(int version, int fd, struct stat64* st) noexcept {
  return any_fxstat(Hook::__fxstat64, version, fd, plain(st));
}
MONARCH_EXPORT int fstatat(int dirfd, const char* path, struct stat* st, int flags) noexcept {
  return any_fstatat(Hook::fstatat, dirfd, path, st, flags);
}
MONARCH_EXPORT int fstatat64(int dirfd, const char* path, struct stat64* st, int flags) noexcept {
  return any_fstatat(Hook::fstatat64, dirfd, path, plain(st), flags);
}
MONARCH_EXPORT int __fxstatat(int version, int dirfd, const char* path, struct stat* st, int flags) noexcept {
  return any_fxstatat(Hook::__fxstatat, version, dirfd, path, st, flags);
}
MONARCH_EXPORT int __fxstatat64(int version, int dirfd, const char* path, struct stat64* st,
                                int flags) noexcept {
  return any_fxstatat(Hook::__fxstatat64, version, dirfd, path, plain(st), flags);
}
MONARCH_EXPORT int statx(int dirfd, const char* path, int flags, unsigned mask, struct statx* st) noexcept {
  // What a copy is recognised by is asked for too; stx_mask may say more than was asked (statx(2)).
  constexpr unsigned kNeeded = STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME;
  const bool own = of_descriptor(path, flags);
  auto* real = next<StatxFunction>(Hook::statx);
  const unsigned wanted = own ? mask | kNeeded : mask;
  const int rc = real ? real(dirfd, path, flags, wanted, st)
                      : static_cast<int>(syscall(SYS_statx, dirfd, path, flags, wanted, st));
  return own ? restored(rc, st) : rc;
}
