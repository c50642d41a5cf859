// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/paths.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <memory>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"

namespace monarch {

Result<std::string> absolute_path(std::string_view path) {
  if (path.empty()) return bad_input("an empty path");
  std::string full;
  if (path[0] != '/') {
    char cwd[PATH_MAX];
    if (!getcwd(cwd, sizeof cwd)) return errno_error("get the working directory");
    full = std::string(cwd) + "/";
  }
  full += path;
  std::string out;
  for (size_t i = 0; i < full.size();) {
    size_t end = full.find('/', i);
    if (end == std::string::npos) end = full.size();
    const std::string_view part(full.data() + i, end - i);
    if (!part.empty() && part != ".") (out += '/') += part;
    i = end + 1;
  }
  return out.empty() ? std::string("/") : out;
}

Result<std::string> real_path(const std::string& path) {
  char out[PATH_MAX];
  if (!::realpath(path.c_str(), out)) return errno_error(path);
  return std::string(out);
}

bool is_below(std::string_view path, std::string_view dir) {
  if (dir == "/") return true;
  return path.substr(0, dir.size()) == dir && (path.size() == dir.size() || path[dir.size()] == '/');
}

namespace {

constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

// Removes what is in the directory `fd`, which is on `device`. `first` keeps the first error.
void empty_directory(Fd fd, dev_t device, Status* first) {
  const auto note = [&](const std::string& name) {
    if (first->ok() && errno != ENOENT) *first = errno_error("remove " + name);
  };
  const int raw = fd.get();
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(raw), &::closedir);
  if (!dir) return note(".");
  fd.release();  // closedir closes it
  while (const dirent* e = ::readdir(dir.get())) {
    const std::string name = e->d_name;
    if (name == "." || name == "..") continue;
    if (os::unlinkat(raw, name.c_str(), 0) == 0) continue;
    if (errno != EISDIR && errno != EPERM) {
      note(name);
      continue;
    }
    Fd sub(::openat(raw, name.c_str(), kOpenDirectory));
    if (!sub && errno == EACCES && ::fchmodat(raw, name.c_str(), 0700, 0) == 0)
      sub = Fd(::openat(raw, name.c_str(), kOpenDirectory));
    struct stat st;
    if (!sub || ::fstat(sub.get(), &st) != 0) {
      note(name);
      continue;
    }
    if (st.st_dev == device) empty_directory(std::move(sub), device, first);
    if (os::unlinkat(raw, name.c_str(), AT_REMOVEDIR) != 0) note(name);
  }
}

}  // namespace

Status remove_tree(int dirfd, const std::string& name) {
  Status first;
  Fd fd(::openat(dirfd, name.c_str(), kOpenDirectory));
  struct stat st;
  if (fd && ::fstat(fd.get(), &st) == 0) {
    empty_directory(std::move(fd), st.st_dev, &first);
    if (os::unlinkat(dirfd, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT && first.ok())
      first = errno_error("remove " + name);
  } else if (errno == ENOTDIR || errno == ELOOP) {
    if (os::unlinkat(dirfd, name.c_str(), 0) != 0 && errno != ENOENT) first = errno_error("remove " + name);
  } else if (errno != ENOENT) {
    first = errno_error("remove " + name);
  }
  return first;
}

}  // namespace monarch
