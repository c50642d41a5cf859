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
constexpr int kMostLevels =
    32;  // what lies deeper is moved up first: no tree is too deep for our descriptors

struct Removal {
  int top;             // the tree's root
  dev_t device;        // of the tree
  uint64_t moved = 0;  // directories moved up to `top`
  Status first{};      // the first error

  void note(const std::string& name) {
    if (first.ok() && errno != ENOENT) first = errno_error("remove " + name);
  }
};

// Opens the directory `name` so that it can be emptied, whatever mode its owner gave it.
Fd open_to_empty(int at, const char* name, struct stat* st) {
  Fd fd(::openat(at, name, kOpenDirectory));
  if (!fd && errno == EACCES && ::fchmodat(at, name, S_IRWXU, 0) == 0)
    fd = Fd(::openat(at, name, kOpenDirectory));
  if (!fd || ::fstat(fd.get(), st) != 0) return Fd();
  if ((st->st_mode & S_IRWXU) != S_IRWXU) ::fchmod(fd.get(), S_IRWXU);
  return fd;
}

bool move_up(int at, const char* name, Removal* removal) {
  int rc;
  do {
    rc = os::renameat(at, name, removal->top, (".removed." + std::to_string(removal->moved++)).c_str());
  } while (rc != 0 && (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR));
  return rc == 0;
}

void empty_directory(Fd fd, int level, Removal* removal) {
  const int raw = fd.get();
  std::unique_ptr<DIR, int (*)(DIR*)> dir(::fdopendir(raw), &::closedir);
  if (!dir) return removal->note(".");
  fd.release();  // closedir closes it
  while (const dirent* e = ::readdir(dir.get())) {
    const std::string name = e->d_name;
    if (name == "." || name == "..") continue;
    if (os::unlinkat(raw, name.c_str(), 0) == 0) continue;
    struct stat st;
    Fd sub = errno == EISDIR || errno == EPERM ? open_to_empty(raw, name.c_str(), &st) : Fd();
    if (!sub) {
      removal->note(name);
      continue;
    }
    if (st.st_dev == removal->device) {
      if (level == kMostLevels && move_up(raw, name.c_str(), removal)) continue;
      if (level < kMostLevels) empty_directory(std::move(sub), level + 1, removal);
    }
    if (os::unlinkat(raw, name.c_str(), AT_REMOVEDIR) != 0) removal->note(name);
  }
}

}  // namespace

Status remove_tree(int dirfd, const std::string& name) {
  struct stat st;
  const Fd top = open_to_empty(dirfd, name.c_str(), &st);
  if (!top) {
    const bool is_file = errno == ENOTDIR || errno == ELOOP;
    if ((is_file && os::unlinkat(dirfd, name.c_str(), 0) == 0) || errno == ENOENT) return {};
    return errno_error("remove " + name);
  }
  Removal removal{.top = top.get(), .device = st.st_dev};
  uint64_t moved;
  do {
    moved = removal.moved;
    empty_directory(Fd(::openat(top.get(), ".", kOpenDirectory)), 1, &removal);
  } while (removal.moved != moved);
  if (os::unlinkat(dirfd, name.c_str(), AT_REMOVEDIR) != 0) removal.note(name);
  return removal.first;
}

}  // namespace monarch
