// SPDX-License-Identifier: Apache-2.0
// MONARCH_IO_EXCLUDE: globs of programs and files that stay on the PFS.
#pragma once

#include "preload/client/client.h"

namespace monarch::preload {

// Whether a glob names the program that this process runs.
bool excludes_program(const char* globs);
// Whether one of client.exclude, which is set, names the file.
bool excludes_file(const Client& client, const RelPath& path);

}  // namespace monarch::preload
