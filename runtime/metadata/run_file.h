// SPDX-License-Identifier: Apache-2.0
// The files of a job's run directory: its agent and tasks write them, and root's hooks and monarchctl read
// small ones. Of Slurm's jobs the directory is root's, and has these files from the beginning; they are the
// owner's, who may write anything there at any time. So nothing is mapped, which would end the reader
// (SIGBUS) once it is cut short, no link is followed, and nothing is waited for. A file system that the owner
// has mounted on such a file, or on a directory of the owner's, is not asked: who asks one that does not
// answer cannot be killed.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace monarch {

inline constexpr mode_t kRunFileMode = 0600;

// The names that an agent, its tasks and the plugin give to files there.
std::vector<std::string> run_file_names();

// Opens such a file, which is made unless it is there, to be filled for the first time. EEXIST: it was.
Result<Fd> begin_run_file(const std::string& path);
// So that the next one can.
void drop_run_file(const Fd& file, const std::string& path);

// A job's run directory, by a descriptor of O_PATH. EXDEV: what is mounted there is not root's.
Result<Fd> open_run_dir(const std::string& path);

// Writes the file anew, in its place. Who reads it meanwhile by read_sealed() gets what is there, or EINVAL.
Status write_sealed(int run_dir, const std::string& name, const void* data, size_t bytes);
Result<size_t> read_sealed(const std::string& path, void* to, size_t most);
// Likewise without a seal, for scripts; who reads it meanwhile may get some of each.
Status write_plain(int run_dir, const std::string& name, const std::string& text);

// Reads the first `most` bytes of the regular file at `path`, DIRECTORY/NAME from the root, or all if it is
// shorter; returns the file's size. Run as the job's owner. ENOENT: there is none (yet); EINVAL: something
// else has the name; EIO: it became shorter; EXDEV: a user has mounted something there.
Result<size_t> read_run_file(const std::string& path, void* to, size_t most);

}  // namespace monarch
