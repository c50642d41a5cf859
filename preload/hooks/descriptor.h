// SPDX-License-Identifier: Apache-2.0
// What calls by a path do that are about a descriptor: fchownat(fd, "", ..., AT_EMPTY_PATH) and kin.
#pragma once

#include <sys/types.h>

namespace monarch::preload {

// Whether the descriptor is open on a tier's copy; errno stays as it is.
bool is_copy(int fd);
// As fchmodat(fd, "", mode, flags), on the file of which `fd` is a copy.
int fchmodat_original(int fd, mode_t mode, int flags);

}  // namespace monarch::preload
