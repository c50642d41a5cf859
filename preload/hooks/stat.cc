// SPDX-License-Identifier: Apache-2.0
// The stat and path families: a descriptor of a tier's copy answers as the dataset's file on the PFS does
// (originals.h); a path as the catalog says, where it knows the file (attributes.h).
#include <stddef.h>

#include "preload/decide/attributes.h"
#include "preload/decide/returns.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"
#include "preload/resolve/originals.h"

namespace monarch::preload {
namespace {

static_assert(sizeof(struct stat) == sizeof(struct stat64));
static_assert(offsetof(struct stat, st_ctim) == offsetof(struct stat64, st_ctim));

// What programs built before glibc 2.33 pass to __xstat: the layout that struct stat has.
#if defined(__x86_64__)
constexpr int kStatVersion = 1;
#else
constexpr int kStatVersion = 0;
#endif

// A time before or after the epoch.
template <typename Time>
void set_time(int64_t ns, Time* t) {
  constexpr int64_t kSecond = 1000000000;
  int64_t s = ns / kSecond, rest = ns % kSecond;
  if (rest < 0) {
    rest += kSecond;
    --s;
  }
  t->tv_sec = s;
  t->tv_nsec = static_cast<decltype(t->tv_nsec)>(rest);
}

// All but size and mtime.
void set_record(const Identity& id, const Attributes& a, struct stat* st) {
  st->st_dev = a.dev;
  st->st_ino = id.pfs_ino;
  st->st_mode = a.mode;
  st->st_nlink = a.nlink;
  st->st_uid = a.uid;
  st->st_gid = a.gid;
  st->st_blksize = static_cast<decltype(st->st_blksize)>(a.blksize);
  st->st_blocks = id.blocks;
  set_time(id.atime, &st->st_atim);
  set_time(id.ctime, &st->st_ctim);
}

void set_record(const Identity& id, const Attributes& a, struct statx* st) {
  st->stx_dev_major = gnu_dev_major(a.dev);
  st->stx_dev_minor = gnu_dev_minor(a.dev);
  st->stx_ino = id.pfs_ino;
  st->stx_mode = static_cast<decltype(st->stx_mode)>(a.mode);
  st->stx_nlink = a.nlink;
  st->stx_uid = a.uid;
  st->stx_gid = a.gid;
  st->stx_blksize = a.blksize;
  st->stx_blocks = id.blocks;
  set_time(id.atime, &st->stx_atime);
  set_time(id.ctime, &st->stx_ctime);
  st->stx_mask &= ~static_cast<unsigned>(STATX_BTIME);  // the copy's birth is not the file's
  st->stx_btime = {};
}

bool is_copy(const struct stat& st, Original* o) {
  return S_ISREG(st.st_mode) &&
         original_of(st.st_dev, st.st_ino, static_cast<uint64_t>(st.st_size), ns_of(st.st_mtim), o);
}

// What `ask_by` says by the path of the file on the PFS; of one that is gone, what the catalog says.
template <typename Stat, typename AskBy>
RARE void set_by_pfs(const Original& o, Stat st, AskBy ask_by) {
  const KeepErrno errno_stays;
  if (on_original(o, ask_by) != 0) set_record(*o.identity, *o.attributes, st);
}

// A wrapper after this library may not say what a copy is known by.
template <typename Stat>
bool is_copy(int fd, const char* link, const Stat& st, Original* o) {
  return __builtin_expect(libc_tells, 1) ? is_copy(st, o) : original_meant(fd, link, AT_EMPTY_PATH, o);
}

// What a call on a descriptor (`link`: "", or what leads to one) answers: of a copy, what the catalog says of
// its file; of one whose file the job changed, what `ask` says once the descriptor is the PFS's. Where that
// cannot be, or a wrapper tells other values of the PFS's file, what `ask_by` says, a call of the same kind
// by a path.
template <typename Stat, typename Ask, typename AskBy>
int restored(int fd, const char* link, Stat st, Ask ask, AskBy ask_by) {
  const int rc = ask();
  Original o;
  if (rc != 0 || !is_copy(fd, link, *st, &o)) return rc;
  if (!*link && follow_change(fd, o)) return ask();
  if (__builtin_expect(libc_tells && !has_changed(o), 1))
    set_record(*o.identity, *o.attributes, st);
  else
    set_by_pfs(o, st, ask_by);
  return rc;
}

// A call about a path: answered, or made by `ask`.
template <typename Ask>
int stat_path(int dirfd, const char* path, int flags, struct stat* st, Ask ask) {
  constexpr int kAnswered = AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT | AT_EMPTY_PATH;
  Values values;
  Unknown unknown;
  if ((flags & ~kAnswered) != 0 || unreadable(st)) return ask();
  if (known_values(dirfd, path, flags, 0, &values, &unknown)) {
    memset(st, 0, sizeof *st);
    set_record(*values.identity, *values.attributes, st);
    st->st_size = static_cast<off_t>(values.size);
    set_time(values.mtime, &st->st_mtim);
    return 0;
  }
  const int rc = ask();
  if (__builtin_expect(unknown.entry != 0, 0) && rc == 0) tell(unknown, *st);
  return rc;
}

// access(2) of a file that is known: it is there, and may be read if the agent could.
template <typename Ask>
int access_path(int dirfd, const char* path, int mode, int flags, Ask ask) {
  constexpr int kAnswered = AT_SYMLINK_NOFOLLOW | AT_EACCESS;
  const unsigned needs = kRealUser | (mode == R_OK ? kReadable : 0u);
  Values values;
  Unknown unused;
  if (is_of_descriptor(path, flags))
    return on_original_of(
        dirfd, path, flags,
        [&](const char* link) {
          return call_next<int>(Hook::faccessat, AT_FDCWD, link, mode, flags & AT_EACCESS);
        },
        ask);
  const bool reads = (mode & ~R_OK) == 0 && (flags & ~kAnswered) == 0;
  return reads && known_values(dirfd, path, 0, needs, &values, &unused) ? 0 : ask();
}

// A call about a path, or by it about a descriptor. `version`: of the layout of *st.
template <typename Ask, typename AskBy>
int any_path(int dirfd, const char* path, int flags, int version, struct stat* st, Ask ask, AskBy ask_by) {
  if (is_of_descriptor(path, flags))
    return restored(dirfd, is_empty_path(path, flags) ? "" : path, st, ask, ask_by);
  return version == kStatVersion ? stat_path(dirfd, path, flags, st, ask) : ask();
}

}  // namespace

// `named`: the call by the path `file`.
#define ASK(name, ...) [&] { return call_next<int>(Hook::name, __VA_ARGS__); }
// NOLINTNEXTLINE(bugprone-macro-parentheses): a list of arguments, with its parentheses.
#define ASK_BY(named) [&](const char* file) -> int { return call_next<int> named; }
#define PATH_HOOK(name, dirfd, flags, version, parameters, named, ...)                                       \
  EXPORT int name parameters noexcept {                                                                      \
    return any_path(dirfd, path, flags, version, reinterpret_cast<struct stat*>(st), ASK(name, __VA_ARGS__), \
                    ASK_BY(named));                                                                          \
  }
#define DESCRIPTOR_HOOK(name, parameters, named, ...)                                                   \
  EXPORT int name parameters noexcept {                                                                 \
    return restored(fd, "", reinterpret_cast<struct stat*>(st), ASK(name, __VA_ARGS__), ASK_BY(named)); \
  }
#define STAT_HOOKS(Stat, plain, link, at, descriptor)                                                     \
  PATH_HOOK(plain, AT_FDCWD, 0, kStatVersion, (const char* path, Stat st), (Hook::plain, file, st), path, \
            st)                                                                                           \
  PATH_HOOK(link, AT_FDCWD, AT_SYMLINK_NOFOLLOW, kStatVersion, (const char* path, Stat st),               \
            (Hook::link, file, st), path, st)                                                             \
  PATH_HOOK(at, dirfd, flags, kStatVersion, (int dirfd, const char* path, Stat st, int flags),            \
            (Hook::at, AT_FDCWD, file, st, 0), dirfd, path, st, flags)                                    \
  DESCRIPTOR_HOOK(descriptor, (int fd, Stat st), (Hook::plain, file, st), fd, st)
#define XSTAT_HOOKS(Stat, plain, link, at, descriptor)                                                       \
  PATH_HOOK(plain, AT_FDCWD, 0, version, (int version, const char* path, Stat st),                           \
            (Hook::plain, version, file, st), version, path, st)                                             \
  PATH_HOOK(link, AT_FDCWD, AT_SYMLINK_NOFOLLOW, version, (int version, const char* path, Stat st),          \
            (Hook::link, version, file, st), version, path, st)                                              \
  PATH_HOOK(at, dirfd, flags, version, (int version, int dirfd, const char* path, Stat st, int flags),       \
            (Hook::at, version, AT_FDCWD, file, st, 0), version, dirfd, path, st, flags)                     \
  DESCRIPTOR_HOOK(descriptor, (int version, int fd, Stat st), (Hook::plain, version, file, st), version, fd, \
                  st)
STAT_HOOKS(struct stat*, stat, lstat, fstatat, fstat)
STAT_HOOKS(struct stat64*, stat64, lstat64, fstatat64, fstat64)
XSTAT_HOOKS(struct stat*, __xstat, __lxstat, __fxstatat, __fxstat)
XSTAT_HOOKS(struct stat64*, __xstat64, __lxstat64, __fxstatat64, __fxstat64)

EXPORT int statx(int dirfd, const char* path, int flags, unsigned mask, struct statx* st) noexcept {
  // stx_mask may say more than was asked for (statx(2)).
  const bool open = is_of_descriptor(path, flags);
  const unsigned wanted = open ? mask | kToKnowCopy : mask;
  const auto ask = ASK(statx, dirfd, path, flags, wanted, st);
  return open ? restored(dirfd, is_empty_path(path, flags) ? "" : path, st, ask,
                         ASK_BY((Hook::statx, AT_FDCWD, file, 0, wanted, st)))
              : ask();
}

#define ACCESS_HOOK(name, dirfd, flags, parameters, ...)                                                   \
  EXPORT int name parameters noexcept {                                                                    \
    return access_path(dirfd, path, mode, flags, [&] { return call_next<int>(Hook::name, __VA_ARGS__); }); \
  }
ACCESS_HOOK(access, AT_FDCWD, 0, (const char* path, int mode), path, mode)
ACCESS_HOOK(euidaccess, AT_FDCWD, AT_EACCESS, (const char* path, int mode), path, mode)
ACCESS_HOOK(eaccess, AT_FDCWD, AT_EACCESS, (const char* path, int mode), path, mode)
ACCESS_HOOK(faccessat, dirfd, flags, (int dirfd, const char* path, int mode, int flags), dirfd, path, mode,
            flags)

}  // namespace monarch::preload
