// SPDX-License-Identifier: Apache-2.0
// What the job changes below a root is from then on served by the PFS: marks on the board, set before the
// call that changes, by any process, for any path. errno stays as it is.
#pragma once

#include "preload/client/client.h"
#include "preload/resolve/originals.h"

namespace monarch::preload {

enum class Change {
  kContent,   // bytes, times, attributes
  kAccess,    // mode, owner, access control list: of a directory, they decide about all that is below
  kReplaced,  // the file there is removed, or another takes its name
  kName,      // the file or directory there gets another name
};
// A call is about to change what a path leads to; the caller then goes to the PFS. `flags`:
// AT_SYMLINK_NOFOLLOW where the call does not follow a symbolic link at the end. With an entry: the path
// leads to a copy of that file instead, by a link to a descriptor, and nothing was marked.
Original will_change(Change change, int dirfd, const char* path, int flags);
// The file whose copy `path` leads to by a link to a descriptor of any process, in whatever form. Nothing is
// marked.
Original copy_led_to(int dirfd, const char* path);
// Before an open for writing: marks what it empties, should it end in between. Any other changes nothing
// until its caller has the descriptor, so that one that fails leaves no mark.
void will_open_to_write(int dirfd, const char* path, int flags);
// After it: marks the file. `path` is what it was opened by, nullptr if by none. If the file is a copy (root
// opened it by a link to a descriptor; the kernel refuses it to others), `fd` becomes the PFS's file instead.
// False, with errno: that cannot be opened, and the caller closes `fd`.
bool opened_to_write(int fd, int dirfd, const char* path, int flags);
// What is open as `fd` is changed.
void changes_descriptor(Change change, int fd);

// Marks what this process has open for writing when it attaches, before it is served anything: what it
// inherited, or opened before there was a catalog.
void mark_what_is_open(Client* c);

// After a call that a function above was told of, which does not end with a descriptor: the file may have
// been staged again while the call was on its way.
void has_changed_name(int dirfd, const char* path);

// Whether an open of `path`, found as `entry` (nullptr: not yet), must go to the PFS because the job
// changed the file.
bool is_marked(const Client& client, const RelPath& path, const Entry* entry, uint32_t kinds);
inline bool is_changed(const Client& client, const RelPath& path, const Entry* entry) {
  const uint32_t kinds = client.board->header.changed.load(std::memory_order_acquire);
  return __builtin_expect(kinds != 0, 0) && is_marked(client, path, entry, kinds);
}
// Of a path of which is_changed() says so: what it was staged as since then, if nobody changed it after that.
Found staged_again(const Client& client, const RelPath& path);
// Of these reasons, those that concern the file itself: for a descriptor that is open on it.
bool is_changed_in_place(const Client& client, const Entry& entry);

}  // namespace monarch::preload
