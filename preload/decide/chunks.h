// SPDX-License-Identifier: Apache-2.0
// Reading a large file that was opened on the PFS from the chunks of it that are staged.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include "preload/client/client.h"

namespace monarch::preload {

// Whether `fd` is open on the very file of the PFS that `e` was when its staging began.
bool is_source(const CatalogReader& catalog, const Entry& e, int fd);
// Whether it seems so: before its staging there is no identity to compare with.
bool seems_source(const CatalogReader& catalog, const Entry& e, int fd);
// Opens the copy on a tier, whole or in chunks; -1: it cannot be, or another user has put something there.
int open_copy(const Client& client, uint32_t tier, Ref entry, bool whole);

// As pread(2). Waits, bounded, for a chunk that is not yet staged. -1: ask the PFS, as for everything in
// doubt. errno stays as it is.
ssize_t read_chunks(Client* client, int fd, Ref entry, void* buffer, size_t bytes, off_t offset);
// As readv(2), from the descriptor's own position on, which the kernel keeps: several threads and processes
// that share the descriptor get different bytes, as natively. False: ask the PFS, the position is where it
// was.
bool read_on(Client* client, int fd, Ref entry, const struct iovec* parts, int n, ssize_t* got);
// As sendfile(2), likewise.
bool send_on(Client* client, int to, int fd, Ref entry, off_t* offset, size_t bytes, ssize_t* sent);
// Tells the agent that the job reads the file, if `fd` is open on it, by calls that chunks cannot serve.
void read_natively(Client* client, int fd, Ref entry);

}  // namespace monarch::preload
