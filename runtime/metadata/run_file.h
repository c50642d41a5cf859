// SPDX-License-Identifier: Apache-2.0
// Small files of a job's run directory: its agent writes them, and root's hooks and monarchctl read them. The
// directory is the owner's, who may put anything there at any time; so nothing is mapped, which would end the
// reader (SIGBUS) once it is cut short, no link is followed, and nothing is waited for. A file system that
// the owner has mounted on the directory or on a file in it is not asked: who asks one that does not answer
// cannot be killed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace monarch {

inline constexpr mode_t kRunFileMode = 0600;

// Slurm's jobs have theirs so called, in a directory of root's, which has the name of the run.
inline constexpr char kOwnersDir[] = "files";
// The name of the run whose run directory that is.
std::string run_name(const std::string& run_dir);

// A job's run directory, by a descriptor of O_PATH. EXDEV: what is mounted there is not root's.
Result<Fd> open_run_dir(const std::string& path);

// Reads the first `most` bytes of the regular file at `path`, DIRECTORY/NAME from the root, or all if it is
// shorter; returns the file's size. Run as the job's owner. ENOENT: there is none (yet); EINVAL: something
// else has the name; EIO: it became shorter; EXDEV: a user has mounted something there.
Result<size_t> read_run_file(const std::string& path, void* to, size_t most);

}  // namespace monarch
