// SPDX-License-Identifier: Apache-2.0
// A large file that was opened on the PFS before it was whole on a tier: reads come from the chunks of it
// that are staged, and once it is whole, its descriptor moves to the copy. `fd` is of the class kLarge, so
// this process has a client. errno stays as it is, unless it is said.
#pragma once

#include <stdio.h>
#include <sys/types.h>
#include <sys/uio.h>

namespace monarch::preload {

// As preadv(2), with its errno: from chunks, and what is in doubt from the PFS. Waits, bounded, for chunks
// that are not yet staged. False: the arguments are the kernel's to refuse.
bool read_at(int fd, const struct iovec* parts, int n, off_t offset, ssize_t* got);
// As readv(2), likewise, from the descriptor's own position on, which the kernel keeps: several threads and
// processes that share the descriptor get different bytes, as natively. False: ask the PFS, the position is
// where it was.
bool read_on(int fd, const struct iovec* parts, int n, ssize_t* got);
// As sendfile(2), likewise.
bool send_on(int to, int fd, off_t* offset, size_t bytes, ssize_t* sent);
// Tells the agent that the job reads the file, if `fd` is open on it, by calls that chunks cannot serve.
void read_natively(int fd);

// Waits for the whole file if it is expected soon (stage_wait) and `fd` seems to be open on it. Whether it is
// whole.
bool wait_for_whole(int fd);
// A descriptor of the whole copy, for the caller to close; -1: the file is not whole, or it is in doubt that
// `fd` is open on it.
int open_whole(int fd);
// Makes `fd` one of the whole copy, with its position and flags, where nobody can tell: the process has
// shared it with no other, has no duplicate of it and no lock on the file, no other call uses its position,
// and no system calls are filtered. `stream`: the caller has its stream locked. Whether it did.
bool move_to_copy(int fd, bool stream = false);
// Before a stream, of any file, reads on from another position. Does nothing if another thread has it locked.
void move_stream(FILE* stream);

}  // namespace monarch::preload
