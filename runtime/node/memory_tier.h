// SPDX-License-Identifier: Apache-2.0
// Memory as a tier: a tmpfs for each job, mounted by root in the job's directory. Its size binds whoever owns
// the job, and it is gone at once, whatever is in it: detach_mounts().
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/node/identity.h"

namespace monarch {

constexpr char kTmpfsSource[] = "monarch";  // in mountinfo

// Mounts a tmpfs of `bytes` for `user` on the directory `dir`.
Status mount_tmpfs(const Fd& dir, uint64_t bytes, const User& user);

// The same for a job's run directory, for what its agent puts there: some files, none to be executed. Returns
// the directory that is mounted, open for reading; it is root's until it is given away.
Result<Fd> mount_run_tmpfs(const Fd& dir, uint64_t bytes);

// Makes the one of the job `name` in the directory `jobs` larger.
Status resize_tmpfs(const Fd& jobs, const std::string& name, uint64_t bytes);

// No more can be put into the tmpfs whose root is `root`, whoever has a directory of it open once it is
// detached. kFiles: files that are there may grow, since a mapping of one that has a hole needs a page for
// it. An error if it changes meanwhile.
enum class Closed { kAll, kFiles };
Status close_tmpfs(int root, Closed what);

}  // namespace monarch
