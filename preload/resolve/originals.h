// SPDX-License-Identifier: Apache-2.0
// From a descriptor of a tier's copy to the dataset's file on the PFS, by what the kernel says of the
// descriptor. Nothing is remembered, so it is right after dup, fork, exec and SCM_RIGHTS.
#pragma once

#include <limits.h>

#include "preload/client/client.h"
#include "preload/client/room.h"
#include "preload/next/kernel.h"
#include "preload/resolve/paths.h"

namespace monarch::preload {

// The dataset's file whose copy on a tier a descriptor is open on.
struct Original {
  const Entry* entry = nullptr;
  const Identity* identity = nullptr;
  const Attributes* attributes = nullptr;
  int64_t copied = 0;  // ns since the epoch, when the copy was made, on the node's clock; 0: not known
};
// By device, inode, size and mtime of the copy: an inode may be somebody's new file by now. False: no copy.
// Costs no system call.
bool original_of(uint64_t dev, uint64_t ino, uint64_t size, int64_t mtime, Original* original);
// The same by what statx(2) said, if that was asked for these and said them.
inline constexpr unsigned kToKnowCopy = STATX_TYPE | STATX_INO | STATX_SIZE | STATX_MTIME;
bool is_copy(const struct statx& st, Original* original);
// Of a copy that several names of the dataset share, `fd` is open by one: *original becomes that name's. By a
// call of its own; errno stays as it is.
void choose_name(int fd, Original* original);
// Of what is open as `fd`; as above.
bool original_of_descriptor(int fd, Original* original);
// Of a path that is not empty. False: it is no link to a descriptor, however written (/proc/PID/fd/N,
// //dev/stdin). True: it may be.
bool has_link_to_descriptor(const char* path);
inline bool may_link_to_descriptor(const char* path) {
  return path[0] == '/' && (path[1] == 'd' || path[1] == 'p' || path[1] == '/') &&
         has_link_to_descriptor(path);
}
// Whether a call about a path is about the descriptor beside that; whether it may be about any process's, by
// that or by a link.
bool is_empty_path(const char* path, int flags);
bool is_of_descriptor(const char* path, int flags);
// Whether such a call on (dirfd, path) is about a copy. errno stays as it is.
bool original_meant(int dirfd, const char* path, int flags, Original* original);
// The file's absolute path on the PFS, in `room`; nullptr: it is not to be had.
const char* path_of_original(const Original& original, Room* room);
// The mark of an inode whose file lost its last name: another file may have that number since. For where no
// time of birth is told.
constexpr uint32_t mark_of_freed(uint64_t ino) { return inode_hash(1, ino); }
// A descriptor of the file on the PFS, proved to be the one that was copied, by its name or another in its
// directory; -1 with errno (ESTALE: it is not there any more). `flags` must not change what is opened: it is
// looked at afterwards.
int open_original(const Original& original, int flags = O_PATH);
// Where open_original() has failed with that errno, since no further descriptor is to be had: the file's
// path, proved likewise just now. nullptr: it is not to be had; errno stays as it is.
const char* path_without_descriptor(const Original& original, Room* room);
// What `act` gives, called with a path of that file, /proc/self/fd/N if it can be; -1 with errno: it is not
// to be had.
template <typename Act>
auto on_original(const Original& original, Act act) -> decltype(act("")) {
  const Own file(open_original(original));
  if (file.fd < 0) {
    Room room;
    const char* path = path_without_descriptor(original, &room);
    return path ? act(path) : -1;
  }
  char link[kFdLinkBytes];
  fd_link(file.fd, link);
  return act(link);
}
// The same of the file that original_meant() says. What `ask` gives: none, or it was removed, and the copy is
// all that is left to ask.
template <typename Act, typename Ask>
auto on_original_of(int dirfd, const char* path, int flags, Act act, Ask ask) -> decltype(ask()) {
  Original original;
  if (!original_meant(dirfd, path, flags, &original)) return ask();
  const int saved = errno;
  const auto got = on_original(original, act);
  if (got >= 0 || errno != ESTALE) return got;
  errno = saved;
  return ask();
}
// Whether `st` (STATX_INO, STATX_SIZE, STATX_MTIME) is that of the very file on the PFS that `e` was when it
// was copied, or its copying began.
bool is_file_of(const CatalogReader& catalog, const Entry& e, const struct statx& st);
// The same with STATX_CTIME, for consistency = open: nobody has changed it since and put mtime back, nor in a
// way that a clock of seconds does not tell.
bool is_unchanged_file_of(const Client& client, const Entry& e, const struct statx& st);

}  // namespace monarch::preload
