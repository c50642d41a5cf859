// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/replace_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>

#include "runtime/base/fd.h"

namespace monarch {

Status replace_file(int dir, const std::string& name, const void* data, size_t bytes, mode_t mode) {
  uint64_t random = 0;  // nobody has a file of that name
  if (::getrandom(&random, sizeof random, 0) != sizeof random) return errno_error(name);
  const std::string fresh = ".monarch." + std::to_string(random);
  const Fd file(::openat(dir, fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  if (file) errno = ENOSPC;  // of a write that is short
  if (file && ::write(file.get(), data, bytes) == static_cast<ssize_t>(bytes) &&
      ::fsync(file.get()) == 0 &&  // a file system over a network tells some errors only now
      ::renameat(dir, fresh.c_str(), dir, name.c_str()) == 0)
    return {};
  const Error error = errno_error(name);
  if (file) ::unlinkat(dir, fresh.c_str(), 0);
  return error;
}

}  // namespace monarch
