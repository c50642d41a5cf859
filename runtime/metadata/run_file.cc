// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/run_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/fd.h"

namespace monarch {

Status replace_run_file(int run_dir, const std::string& name, const void* data, size_t bytes) {
  const std::string fresh = name + ".new";
  ::unlinkat(run_dir, fresh.c_str(), 0);  // opening what its owner put there might wait
  const Fd file(::openat(run_dir, fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file) errno = ENOSPC;  // of a write that is short
  if (file && ::write(file.get(), data, bytes) == static_cast<ssize_t>(bytes) &&
      ::renameat(run_dir, fresh.c_str(), run_dir, name.c_str()) == 0)
    return {};
  const Error error = errno_error(name);
  ::unlinkat(run_dir, fresh.c_str(), 0);
  return error;
}

Result<size_t> read_run_file(const std::string& path, void* to, size_t most) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  struct stat st;
  if (!fd || ::fstat(fd.get(), &st) != 0) return errno_error("read " + path);
  if (!S_ISREG(st.st_mode) || st.st_size < 0) return Error{EINVAL, path + ": no regular file"};
  const auto size = static_cast<size_t>(st.st_size), bytes = std::min(size, most);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pread(fd.get(), static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(done));
    if (n <= 0) return errno_error("read " + path, n < 0 ? errno : EIO);
    done += static_cast<size_t>(n);
  }
  return size;
}

}  // namespace monarch
