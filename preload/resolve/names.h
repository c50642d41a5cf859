// SPDX-License-Identifier: Apache-2.0
// Other names of dataset files: by "..", by symbolic links, outside the dataset or inside. Their text does
// not tell which file they lead to; the kernel does, without asking the PFS to open anything.
#pragma once

#include "preload/resolve/paths.h"

namespace monarch::preload {

// Where an open of `path` for reading leads: as resolve(), or by the kernel's answer, then in `room`. errno
// stays as it is.
bool resolve_to_read(const Client& client, int dirfd, const char* path, Room* room, RelPath* result);
// False: it would say false. True: it may say either. Without a system call or much stack.
bool may_read_below(const Client& client, const char* path);
// The name below a root, by the kernel's answer, of what is open as `fd`. False: it has none. Changes errno.
bool resolve_open(const Client& client, int fd, Room* room, RelPath* result);
// Where a path below a root leads that goes through a symbolic link there. False: elsewhere, or it cannot be
// had.
bool follow_links(const Client& client, const RelPath& path, Room* room, RelPath* result);

}  // namespace monarch::preload
