// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/run_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/base/mountinfo.h"
#include "runtime/base/os.h"

namespace monarch {
namespace {

Error is_mounted(const std::string& path) {
  return Error{EXDEV, path + ": a user has mounted a file system there"};
}

bool same_mount(const Fd& a, const Fd& b) {
  const int64_t id = os::mount_id(a.get());
  return id >= 0 && id == os::mount_id(b.get());
}

}  // namespace

std::string run_name(const std::string& run_dir) {
  std::string path = run_dir;
  if (const std::string own = std::string("/") + kOwnersDir; path.ends_with(own))
    path.resize(path.size() - own.size());
  return path.substr(path.rfind('/') + 1);
}

// Its file system is that of the directory above it, or one that root has mounted: FUSE is all that a user
// can.
Result<Fd> open_run_dir(const std::string& path) {
  constexpr int kLook = O_PATH | O_DIRECTORY | O_CLOEXEC;  // asks nobody what is mounted there
  const size_t slash = path.rfind('/');
  const Fd above(::open(slash == 0 ? "/" : path.substr(0, slash).c_str(), kLook));
  Fd dir(above ? ::openat(above.get(), path.c_str() + slash + 1, kLook | O_NOFOLLOW) : -1);
  if (!dir) return errno_error("read " + path);
  MountLine mount;
  if (!same_mount(dir, above) &&
      (!find_mount(os::mount_id(dir.get()), &mount) || mount.type.starts_with("fuse")))
    return is_mounted(path);
  return dir;
}

Result<size_t> read_run_file(const std::string& path, void* to, size_t most) {
  const size_t slash = path.rfind('/');
  const Result<Fd> dir = open_run_dir(path.substr(0, slash));
  if (!dir.ok()) return dir.error();
  const Fd found(::openat(dir->get(), path.c_str() + slash + 1, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!found) return errno_error("read " + path);
  if (!same_mount(found, *dir)) return is_mounted(path);
  struct stat st;
  if (::fstat(found.get(), &st) != 0) return errno_error("read " + path);
  if (!S_ISREG(st.st_mode) || st.st_size < 0) return Error{EINVAL, path + ": no regular file"};
  const std::string itself = "/proc/self/fd/" + std::to_string(found.get());
  const Fd fd(::open(itself.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // nor is the end of a lease
  if (!fd) return errno_error("read " + path);
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
