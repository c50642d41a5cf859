// SPDX-License-Identifier: Apache-2.0
// The open family: open(2), openat(2), creat(2), their 64-bit and fortified forms, mkstemp(3) and its kin,
// fopen(3) and freopen(3).
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>

#include "preload/decide/changes.h"
#include "preload/decide/descriptors.h"
#include "preload/decide/large.h"
#include "preload/decide/opens.h"
#include "preload/decide/returns.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"
#include "preload/resolve/names.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/paths.h"

#ifndef O_TMPFILE
#error "O_TMPFILE is needed"
#endif

namespace monarch::preload {
namespace {

using Open = int(const char*, int, ...);
using OpenAt = int(int, const char*, int, ...);
struct OpenHow {  // <linux/openat2.h>, which older headers lack
  uint64_t flags, mode, resolve;
};
using FopenFunction = FILE*(const char*, const char*);
using FreopenFunction = FILE*(const char*, const char*, FILE*);

// open(2) reads its mode argument for O_CREAT and for O_TMPFILE only.
bool takes_mode(int flags) { return (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE; }

bool only_reads(int flags) {
  return (flags & (O_ACCMODE | O_CREAT | O_TRUNC | O_PATH | O_DIRECTORY)) == O_RDONLY;
}
bool writes(int flags) {
  return ((flags & O_ACCMODE) != O_RDONLY || (flags & O_TRUNC) != 0) && (flags & O_PATH) == 0;
}

// The next definition's open of what the program asked for.
struct Native {
  int (*by)(const void* call);
  const void* call;
  int operator()() const { return by(call); }
};
template <typename Call>
Native natively(const Call& call) {
  return {[](const void* it) { return (*static_cast<const Call*>(it))(); }, &call};
}

// An open for writing that the kernel has refused (EACCES), perhaps since it led to a copy.
RARE int open_instead(int dirfd, const char* path, int flags) {
  Instead instead;
  if (!write_instead(dirfd, &path, &instead)) return -1;
  if (instead.fd < 0) return errno = EACCES, -1;
  const int fd = static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags & ~O_CREAT));
  if (fd >= 0) opened_elsewhere(fd);
  return fd;
}

// What the caller gets that has opened `fd` for writing. `path`: nullptr, by none.
APART int written(int fd, int dirfd, const char* path, int flags) {
  if (fd < 0) return errno == EACCES ? open_instead(dirfd, path, flags) : fd;
  opened_elsewhere(fd);
  return opened_to_write(fd, dirfd, path, flags) ? fd : not_opened(fd);
}

// What it gets that has opened `fd` by no decision; for reading, if it is `counted`.
int undecided(int fd, bool counted) {
  if (fd < 0) return fd;
  opened_elsewhere(fd);
  if (__builtin_expect(counted, 0)) opened_undecided(fd);
  return fd;
}

// By a path that may be below a root.
APART int read_below(Client* c, int dirfd, const char* path, int flags, Native open) {
  // The kernel grants O_NOATIME to the owner of the file only, which of a copy is another.
  Reading file(c, dirfd, path, {.follows = (flags & O_NOFOLLOW) == 0, .native = (flags & O_NOATIME) != 0});
  const Decision& to = file.decision();
  if (__builtin_expect(file.copy() != nullptr, 1)) {
    const KeepErrno errno_stays;
    // A tier's file system may want reads aligned where the PFS does not.
    const int fd = next<Open>(Hook::open)(file.copy(), flags & ~O_DIRECT);
    if (__builtin_expect(file.has_copy(fd), 1)) {
      seen_by_hooks(fd);
      opened_on_tier(fd, to.tier, to.marks);
      return fd;
    }
    (void)not_opened(fd);
  }
  const int fd = open();
  if (!file.is_of_dataset()) return undecided(fd, may_link_to_descriptor(path));
  file.ends();
  // What is left of a chunk, or of the file, is not aligned.
  if (fd >= 0) opened_on_pfs(fd, (flags & O_DIRECT) == 0 ? to.large : 0);
  return fd;
}

// For writing, or by a link to a descriptor, or without reading.
APART int open_otherwise(int dirfd, const char* path, int flags, Native open) {
  if (unreadable(path)) return open();
  if (!writes(flags) || (flags & O_TMPFILE) == O_TMPFILE) {
    const bool may_make = (flags & (O_ACCMODE | O_CREAT | O_PATH)) == (O_RDONLY | O_CREAT);
    return undecided(open(), may_make || may_link_to_descriptor(path));
  }
  if (__builtin_expect(!is_refused_to_write(flags), 0) && copy_led_to(dirfd, path).entry)
    return open_instead(dirfd, path, flags);
  will_open_to_write(dirfd, path, flags);
  return written(open(), dirfd, path, flags);
}

// The same for a stream.
bool only_reads(const char* mode) { return mode[0] == 'r' && !strchr(mode, '+'); }

int flags_of(const char* mode) {
  return (strchr(mode, '+') ? O_RDWR
          : mode[0] == 'r'  ? O_RDONLY
                            : O_WRONLY) |
         (mode[0] == 'w' ? O_TRUNC : 0) | (mode[0] == 'a' ? O_APPEND : 0) | (mode[0] != 'r' ? O_CREAT : 0) |
         (strchr(mode, 'e') ? O_CLOEXEC : 0) | (strchr(mode, 'x') ? O_EXCL : 0);
}

// Opens a stream for writing, but never a copy's.
FILE* stream_to_write(FopenFunction* real, const char* path, const char* mode) {
  const bool was_refused = is_refused_to_write(flags_of(mode));
  if (was_refused)
    if (FILE* stream = real(path, mode); stream || errno != EACCES) return stream;
  Instead instead;
  if (!write_instead(AT_FDCWD, &path, &instead)) return nullptr;
  return was_refused && instead.fd < 0 ? (errno = EACCES, nullptr) : real(path, mode);
}

FILE* written_stream(FILE* stream, const char* path, const char* mode) {
  if (!stream || opened_to_write(fileno_unlocked(stream), AT_FDCWD, path, flags_of(mode))) return stream;
  // fclose(3) could wait; a stream is lost with an error this rare.
  (void)not_opened(fileno_unlocked(stream));
  return nullptr;
}

// A copy's number, or one that was, is a stream's from now on.
void becomes_hidden(int fd) {
  if (!is_tier(class_of(fd))) return;
  const UsesDescriptor now(fd);
  used_by_stream(fd);
}

// A stream that was opened on the PFS reads inside libc, where no chunk serves it. Of a file that the agent
// has not looked at, the kernel knows the size by now.
FILE* stream_of_pfs(const Reading& file, FILE* stream) {
  if (!file.is_of_dataset()) return stream;
  file.ends();
  if (!stream) return nullptr;
  const int fd = fileno_unlocked(stream);
  const Decision& to = file.decision();
  struct statx st;
  if (to.bytes > 0)
    add_read(kPfs, to.bytes);
  else if (the_client.program != Program::kRestricted && look_at(fd, STATX_TYPE | STATX_SIZE, &st) &&
           S_ISREG(st.stx_mode) && st.stx_size > 0)
    add_read(kPfs, st.stx_size);
  if (!to.large) return stream;
  opened_on_pfs(fd, to.large);
  if (class_of(fd) == kLarge) {
    used_by_stream(fd);
    read_natively(fd);
  }
  return stream;
}

// What a stream is made of, a large file's descriptor.
RARE void becomes_stream(int fd) {
  if (is_alone(fd) && wait_for_whole(fd) && move_to_copy(fd)) return;
  used_by_stream(fd);
  read_natively(fd);
}

APART FILE* open_stream_below(Client* c, FopenFunction* real, const char* path, const char* mode) {
  Reading file(c, AT_FDCWD, path, {.stream = true});
  if (file.copy()) {
    const int saved = errno;
    FILE* stream = real(file.copy(), mode);
    const int fd = stream ? fileno_unlocked(stream) : -1;
    const bool has_copy = file.has_copy(fd);
    errno = saved;
    const Decision& to = file.decision();
    if (stream && !has_copy)
      return stream_of_pfs(file, next<FreopenFunction>(Hook::freopen)(path, mode, stream));
    if (stream) {
      opened_as_stream(fd, to.tier, to.marks);
      if (to.bytes > 0) add_read(static_cast<unsigned char>(1 + to.tier), to.bytes);
      return stream;
    }
  }
  return stream_of_pfs(file, real(path, mode));
}

FILE* undecided_stream(FILE* stream) {
  if (!stream) return stream;
  const int fd = fileno_unlocked(stream);
  becomes_hidden(fd);
  opened_undecided(fd);
  if (class_of(fd) == kPfs) opened_elsewhere(fd);  // no hook will see that it is closed
  return stream;
}

FILE* open_stream(Hook hook, const char* path, const char* mode) {
  auto* real = next<FopenFunction>(hook);
  Client* c = !unreadable(path) && mode ? client() : nullptr;
  if (!c) return real(path, mode);
  if (only_reads(mode))
    return may_read_below(*c, path)       ? open_stream_below(c, real, path, mode)
           : may_link_to_descriptor(path) ? undecided_stream(real(path, mode))
                                          : real(path, mode);
  will_open_to_write(AT_FDCWD, path, flags_of(mode));
  return written_stream(stream_to_write(real, path, mode), path, mode);
}

// For reading it is the PFS's. Without a path: another mode for the same file, which may be a copy.
FILE* reopen_stream(Hook hook, const char* path, const char* mode, FILE* stream) {
  auto* real = next<FreopenFunction>(hook);
  Client* c = mode ? client() : nullptr;
  if (!c) return real(path, mode, stream);
  if (only_reads(mode)) return path ? undecided_stream(real(path, mode, stream)) : real(path, mode, stream);
  // It closes the stream even if it fails: so what cannot go back is found out afterwards.
  if (path) {
    will_open_to_write(AT_FDCWD, path, flags_of(mode));
  } else {
    (void)will_change_open(Change::kContent, fileno_unlocked(stream));
  }
  Instead instead;
  const char* meant = path;
  if (path && !write_instead(AT_FDCWD, &meant, &instead)) return nullptr;
  return written_stream(real(meant, mode, stream), path, mode);
}

template <typename Call>
int opened(int dirfd, const char* path, int flags, Call open) {
  const bool reads = only_reads(flags) && !unreadable(path);
  Client* c = reads ? client() : nullptr;
  if (c && may_read_below(*c, path)) return read_below(c, dirfd, path, flags, natively(open));
  if (__builtin_expect(reads && !may_link_to_descriptor(path), 1)) return undecided(open(), false);  // most
  return open_otherwise(dirfd, path, flags, natively(open));
}
constexpr int kCreat = O_WRONLY | O_CREAT | O_TRUNC;

// mkstemp(3) and its kin, which write the name into `path`: it is known only afterwards.
template <typename... Rest>
int made(Hook hook, char* path, Rest... rest) {
  return written(next<int(char*, Rest...)>(hook)(path, rest...), AT_FDCWD, path, O_RDWR | O_CREAT);
}

}  // namespace

#define OPEN_HOOK(name, dirfd, Function, parameters, ...)                                       \
  EXPORT __attribute__((hot)) int name parameters {                                             \
    mode_t mode = 0;                                                                            \
    if (takes_mode(flags)) {                                                                    \
      va_list arguments;                                                                        \
      va_start(arguments, flags);                                                               \
      mode = va_arg(arguments, mode_t);                                                         \
      va_end(arguments);                                                                        \
    }                                                                                           \
    return opened(dirfd, path, flags, [&] { return next<Function>(Hook::name)(__VA_ARGS__); }); \
  }
OPEN_HOOK(open, AT_FDCWD, Open, (const char* path, int flags, ...), path, flags, mode)
OPEN_HOOK(open64, AT_FDCWD, Open, (const char* path, int flags, ...), path, flags, mode)
OPEN_HOOK(__open, AT_FDCWD, Open, (const char* path, int flags, ...), path, flags, mode)
OPEN_HOOK(__open64, AT_FDCWD, Open, (const char* path, int flags, ...), path, flags, mode)
OPEN_HOOK(openat, dirfd, OpenAt, (int dirfd, const char* path, int flags, ...), dirfd, path, flags, mode)
OPEN_HOOK(openat64, dirfd, OpenAt, (int dirfd, const char* path, int flags, ...), dirfd, path, flags, mode)

// What -D_FORTIFY_SOURCE makes of an open without a mode argument; and creat(2).
#define PLAIN_OPEN_HOOK(name, dirfd, flags, parameters, ...)                                    \
  EXPORT int name parameters {                                                                  \
    return opened(dirfd, path, flags, [&] { return call_next<int>(Hook::name, __VA_ARGS__); }); \
  }
PLAIN_OPEN_HOOK(__open_2, AT_FDCWD, flags, (const char* path, int flags), path, flags)
PLAIN_OPEN_HOOK(__open64_2, AT_FDCWD, flags, (const char* path, int flags), path, flags)
PLAIN_OPEN_HOOK(__openat_2, dirfd, flags, (int dirfd, const char* path, int flags), dirfd, path, flags)
PLAIN_OPEN_HOOK(__openat64_2, dirfd, flags, (int dirfd, const char* path, int flags), dirfd, path, flags)
PLAIN_OPEN_HOOK(creat, AT_FDCWD, kCreat, (const char* path, mode_t mode), path, mode)
PLAIN_OPEN_HOOK(creat64, AT_FDCWD, kCreat, (const char* path, mode_t mode), path, mode)
// Where a path may lead is restricted, the kernel follows it: what is then read is the PFS's.
EXPORT int openat2(int dirfd, const char* path, const struct open_how* how, size_t bytes) {
  const auto open = [&] { return call_next<int>(Hook::openat2, dirfd, path, how, bytes); };
  if (unreadable(how) || bytes < sizeof(OpenHow)) return open();
  const auto& asked = *reinterpret_cast<const OpenHow*>(how);
  const int flags = static_cast<int>(asked.flags);
  if (asked.resolve == 0 || !only_reads(flags)) return opened(dirfd, path, flags, open);
  return undecided(open(), true);
}

EXPORT int mkstemp(char* path) { return made(Hook::mkstemp, path); }
EXPORT int mkstemp64(char* path) { return made(Hook::mkstemp64, path); }
EXPORT int mkostemp(char* path, int flags) { return made(Hook::mkostemp, path, flags); }
EXPORT int mkostemp64(char* path, int flags) { return made(Hook::mkostemp64, path, flags); }
EXPORT int mkstemps(char* path, int tail) { return made(Hook::mkstemps, path, tail); }
EXPORT int mkstemps64(char* path, int tail) { return made(Hook::mkstemps64, path, tail); }
EXPORT int mkostemps(char* path, int tail, int flags) { return made(Hook::mkostemps, path, tail, flags); }
EXPORT int mkostemps64(char* path, int tail, int flags) { return made(Hook::mkostemps64, path, tail, flags); }
EXPORT int open_by_handle_at(int mount, struct file_handle* handle, int flags) {
  const int fd = call_next<int>(Hook::open_by_handle_at, mount, handle, flags);
  return writes(flags) ? written(fd, AT_FDCWD, nullptr, flags) : undecided(fd, only_reads(flags));
}
// The child opens it by itself, later, on the PFS: what the path leads to now is marked, or counted.
EXPORT int posix_spawn_file_actions_addopen(posix_spawn_file_actions_t* actions, int fd, const char* path,
                                            int flags, mode_t mode) noexcept {
  Instead unused;
  const char* changed = path;
  Client* c = only_reads(flags) && !unreadable(path) ? client() : nullptr;
  if (writes(flags)) (void)may_change(Change::kContent, AT_FDCWD, &changed, 0, &unused);
  if (c && may_read_below(*c, path))
    (void)Reading(c, AT_FDCWD, path, {.follows = (flags & O_NOFOLLOW) == 0, .native = true});
  return next<int(posix_spawn_file_actions_t*, int, const char*, int, mode_t)>(
      Hook::posix_spawn_file_actions_addopen)(actions, fd, path, flags, mode);
}

HOOK(FILE*, fopen, (const char* path, const char* mode), open_stream, path, mode)
HOOK(FILE*, fopen64, (const char* path, const char* mode), open_stream, path, mode)

EXPORT FILE* fdopen(int fd, const char* mode) noexcept {
  if (__builtin_expect(class_of(fd) == kLarge, 0)) becomes_stream(fd);
  becomes_hidden(fd);
  return next<FILE*(int, const char*)>(Hook::fdopen)(fd, mode);
}

HOOK(FILE*, freopen, (const char* path, const char* mode, FILE* stream), reopen_stream, path, mode, stream)
HOOK(FILE*, freopen64, (const char* path, const char* mode, FILE* stream), reopen_stream, path, mode, stream)

}  // namespace monarch::preload
