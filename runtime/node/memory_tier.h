// SPDX-License-Identifier: Apache-2.0
// Memory as a tier: a tmpfs for each job, mounted by root on the job's directory. Its size binds whoever has
// files of it open, and it is gone once it is detached and nobody has any.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace monarch {

constexpr char kTmpfsSource[] = "monarch";  // in mountinfo

// Mounts a tmpfs of `bytes`, root's alone, on the directory `dir`.
Status mount_tmpfs(const Fd& dir, uint64_t bytes);

// The same for a job's run directory, for what its agent puts there: some files, none to be executed.
Status mount_run_tmpfs(const Fd& dir, uint64_t bytes);

// Whether the open file `fd` (O_PATH suffices) is of such a tmpfs.
bool is_of_job_tmpfs(int fd);
// Lazily, what is mounted on `name` in the directory `in`, as often as something is; no link is followed.
void detach(int in, const std::string& name);

// Makes the one that is mounted on the directory `name` in the directory `in` larger.
Status resize_tmpfs(int in, const std::string& name, uint64_t bytes);

// What is in a tmpfs; files: directories and those without a name included.
struct InTmpfs {
  uint64_t bytes = 0, files = 0;
};

// From now on there is no room in the tmpfs whose root is `root` but for what is in it, and a page, whoever
// has files of it open. An error: it goes on changing, and is as it was.
Result<InTmpfs> close_tmpfs(int root);

}  // namespace monarch
