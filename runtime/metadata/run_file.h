// SPDX-License-Identifier: Apache-2.0
// Small files of a job's run directory: its agent writes them, and root's hooks and monarchctl read them. The
// directory is the owner's, who may put anything there at any time; so nothing is mapped, which would end the
// reader (SIGBUS) once it is cut short, no link is followed, and nothing is waited for.
#pragma once

#include <cstddef>
#include <string>

#include "runtime/base/result.h"

namespace monarch {

// Writes a file anew, by another one, `name`.new, that takes its name: a reader sees the one or the other. If
// it fails, the old one stays.
Status replace_run_file(int run_dir, const std::string& name, const void* data, size_t bytes);

// Reads the first `most` bytes of a regular file, or all if it is shorter; returns the file's size. Run as
// the job's owner. ENOENT: there is none (yet); EINVAL: something else has the name; EIO: it became shorter.
Result<size_t> read_run_file(const std::string& path, void* to, size_t most);

}  // namespace monarch
