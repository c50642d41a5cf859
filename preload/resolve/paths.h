// SPDX-License-Identifier: Apache-2.0
// From what a program passes to open(2) to a path below a dataset root, and back. Paths are read as text.
#pragma once

#include <dirent.h>
#include <limits.h>
#include <stddef.h>

#include "preload/client/client.h"
#include "preload/client/room.h"
#include "preload/next/kernel.h"

namespace monarch::preload {

// Whether the path begins so. Inlined: a call of strncmp(3) would cost more than it compares.
template <size_t N>
inline bool begins(const char* path, const char (&with)[N]) {
#pragma GCC unroll 16
  for (size_t i = 0; i < N - 1; ++i)
    if (path[i] != with[i]) return false;
  return true;
}

enum class Relation {
  kOutside,
  kBelow,       // below a root: *result, whose text is `path`'s own or in `room`
  kBelowSlash,  // the same with a slash at the end: a directory, or an error
  kRoot,        // a directory that the job declared: *result, whose path is empty unless it is inside a root
  kAbove,       // a directory that leads to one
};
// Where `path`, relative to the directory `dirfd`, leads, read as text. Costs no system call for absolute
// paths outside the roots. "..", and what is too long for the kernel, is kOutside: not to be known as text.
Relation locate(const Client& client, int dirfd, const char* path, Room* room, RelPath* result);
// Moves the text of `path` to `room` if it is in `from`, and not `room`'s or a longer-lived one. False: there
// is no memory.
bool keep_text(Room* from, Room* room, RelPath* path);
// Whether it is kBelow.
inline bool resolve(const Client& client, int dirfd, const char* path, Room* room, RelPath* result) {
  return locate(client, dirfd, path, room, result) == Relation::kBelow;
}
// False: resolve() would say false. True: it may say either. Without a system call or much stack.
bool may_be_below(const Client& client, const char* path);

// Whether `test` holds for a directory above the path, the nearest first.
template <typename Test>
bool any_above(const RelPath& path, Test test) {
  for (uint32_t len = path.len; len > 0; --len)
    if (path.path[len - 1] == '/' && test(rel_path(path.root, path.path, len - 1))) return true;
  return false;
}

// The absolute path on the PFS of a path below a root, in `room`. nullptr: the root is not to be had in this
// mount namespace.
const char* pfs_path(const Client& client, const RelPath& path, Room* room);

// "/proc/self/fd", where this thread's descriptors are; those of one that made itself a table of its own are
// in "/proc/thread-self/fd", which not all have that translate paths (PRoot).
const char* fd_links();
void threads_have_tables();  // from now on
// A descriptor's link there; `out` holds kFdLinkBytes.
inline constexpr size_t kFdLinkBytes = sizeof "/proc/thread-self/fd/" + 10;
void fd_link(int fd, char* out);
// The number that is the last component of such a link; -1: it is none.
int number_of_descriptor(const char* digits);
// Calls `use` with each entry of a directory, of which no more is read than `most` times some.
template <typename Use>
void each_entry(int dir, int most, Use use) {
  alignas(dirent64) char entries[1024];
  for (long bytes; most > 0 && (bytes = syscall(SYS_getdents64, dir, entries, sizeof entries)) > 0; --most)
    for (long at = 0; at < bytes; at += reinterpret_cast<dirent64*>(entries + at)->d_reclen)
      use(*reinterpret_cast<const dirent64*>(entries + at));
}
// Calls `use` with each descriptor of this process; without /proc, with the standard ones. Changes errno.
template <typename Use>
void each_descriptor(Use use) {
  const Own dir(open_own(AT_FDCWD, fd_links(), O_RDONLY | O_DIRECTORY));
  for (int fd = 0; dir.fd < 0 && fd < 3; ++fd) use(fd);
  if (dir.fd < 0) return;
  each_entry(dir.fd, INT_MAX, [&](const dirent64& e) {
    if (const int fd = number_of_descriptor(e.d_name); fd >= 0) use(fd);
  });
}
// The absolute path of an open file, as this mount namespace names it, without symbolic links, in `room`; its
// length, 0 if it has none. `more`: bytes of room behind it, the NUL's among them. Changes errno.
size_t path_of_descriptor(int fd, Room* room, size_t more = 1);
// The same of what (dirfd, path) leads to, which is not opened; of `dirfd` itself if the path is empty.
// `flags`: AT_SYMLINK_NOFOLLOW.
size_t true_path(int dirfd, const char* path, int flags, Room* room);

}  // namespace monarch::preload
