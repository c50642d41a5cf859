// SPDX-License-Identifier: Apache-2.0
// From the PFS to the copy: a large file that was opened before it was whole, and is whole now.
#pragma once

#include <stdio.h>

#include "preload/client/client.h"

namespace monarch::preload {

// Calls on a descriptor whose class is kLarge, of the entry large_file(fd). errno stays as it is.

// Waits for the whole file if it is expected soon (stage_wait) and `fd` seems to be open on it. Whether it is
// whole.
bool wait_for_whole(Client* client, int fd, Ref entry);
// A descriptor of the whole copy, for the caller to close; -1: the file is not whole, or it is in doubt that
// `fd` is open on it.
int open_whole(Client* client, int fd, Ref entry);
// Makes `fd` one of the whole copy, with its position and flags, where nobody can tell: the process has
// shared it with no other, has no duplicate of it and no lock on the file, no other call uses its position,
// and no system calls are filtered. `stream`: the caller has its stream locked. Whether it did.
bool move_to_copy(Client* client, int fd, bool stream = false);
// Before a stream reads on from another position. Does nothing if another thread has the stream locked.
void move_stream(FILE* stream);

}  // namespace monarch::preload
