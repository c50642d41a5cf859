// SPDX-License-Identifier: Apache-2.0
// Mounts in a job's directory: root's tmpfs for the job, and those that its owner made by fusermount.
#pragma once

#include <sys/types.h>

#include <string>

namespace monarch {

constexpr uid_t kUnknownOwner = static_cast<uid_t>(-1);  // nobody's mounts below the directory

enum class Detach { kUsers, kAll };  // without, or with, the tmpfs of mount_tmpfs()

// Detaches, lazily, what is mounted on the directory `name` in the directory `jobs` or below it: FUSE mounts
// of the user `owner`, on the directory itself those of all users, and the job's tmpfs. Other mounts stay,
// such as an administrator's in a directory that the owner moved there. Each is reached by descriptor, by way
// of the mounts that the directory is seen by, and no mounted file system is asked anything: one that hangs
// is no matter. Returns how many were detached; as many as there are, but for what is mounted meanwhile.
int detach_mounts(int jobs, const std::string& name, uid_t owner, Detach what);

// Whether the open file `fd` (O_PATH suffices) is of a tmpfs of mount_tmpfs(). What is mounted there is not
// asked.
bool is_of_job_tmpfs(int fd);

}  // namespace monarch
