// SPDX-License-Identifier: Apache-2.0
// nftw(3) of a directory that the catalog lists. libc's reads directories and asks for files' values inside
// libc, so a walk is done anew here, on top of this library's opendir, readdir and lstat, call for call as
// libc does it.
//
// Only where it can be exact without memory of its own: FTW_PHYS, since following symbolic links takes a
// record of the directories that were seen, and not FTW_CHDIR. It takes a descriptor (O_PATH) for each level,
// also beyond the number that the caller gives.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/preload.h"

namespace monarch::preload {
namespace {

using Visit = int (*)(const char*, const struct stat*, int, struct FTW*);
static_assert(sizeof(struct stat) == sizeof(struct stat64));

class Walk {
 public:
  Walk(Visit visit, int flags) : visit_(visit), flags_(flags) {}

  // Whether this is a walk for us. Then the directory is open.
  bool begin(const char* path) {
    constexpr int kExact = FTW_PHYS | FTW_MOUNT | FTW_DEPTH | FTW_ACTIONRETVAL;
    if ((flags_ & FTW_PHYS) == 0 || (flags_ & ~kExact) != 0 || !visit_ || unreadable(path) || *path == '\0' ||
        !client() || !set_path(path))
      return false;
    first_ = open_listed(AT_FDCWD, full_);
    return first_ != nullptr;
  }

  int run() {
    struct stat st;
    if (lstat(full_, &st) != 0) return closed(first_, -1);
    device_ = st.st_dev;
    const int result = directory(first_, st);
    return is_action(result, FTW_SKIP_SUBTREE) || is_action(result, FTW_SKIP_SIBLINGS) ? 0 : result;
  }

 private:
  // The absolute path, of which the end is what the caller gave, without slashes at its end.
  bool set_path(const char* path) {
    size_t at = 0;
    if (*path != '/') {
      const int saved = errno;
      const long bytes = syscall(SYS_getcwd, full_, sizeof full_);
      errno = saved;
      if (bytes <= 1 || full_[0] != '/') return false;
      at = static_cast<size_t>(bytes) - 1;
      if (full_[at - 1] != '/') full_[at++] = '/';
    }
    len_ = strlen(path);
    while (len_ > 1 && path[len_ - 1] == '/') --len_;
    if (at + len_ >= sizeof full_) return false;
    memcpy(full_ + at, path, len_);
    path_ = full_ + at;
    path_[len_] = '\0';
    size_t base = len_;
    while (base > 0 && path_[base - 1] != '/') --base;
    at_.base = static_cast<int>(base);
    at_.level = 0;
    return true;
  }

  static int closed(DIR* dir, int result) {
    const int saved = errno;
    closedir(dir);
    errno = saved;
    return result;
  }
  bool is_action(int result, int action) const {
    return (flags_ & FTW_ACTIONRETVAL) != 0 && result == action;
  }
  int tell(const struct stat& st, int what) { return visit_(path_, &st, what, &at_); }

  int directory(DIR* dir, const struct stat& st) {
    if (!dir) return errno == EACCES ? tell(st, FTW_DNR) : -1;
    if ((flags_ & FTW_DEPTH) == 0) {
      if (const int result = tell(st, FTW_D); result != 0) return closed(dir, result);
    }
    const size_t len = len_;
    const int base = at_.base;
    ++at_.level;
    path_[len_++] = '/';
    at_.base = static_cast<int>(len_);
    int result = 0;
    while (result == 0) {
      const struct dirent* name = readdir(dir);
      if (!name) break;
      result = entry(name->d_name);
    }
    result = closed(dir, result);
    if (is_action(result, FTW_SKIP_SIBLINGS)) result = 0;
    len_ = len;
    path_[len_] = '\0';
    --at_.level;
    at_.base = base;
    return result == 0 && (flags_ & FTW_DEPTH) != 0 ? tell(st, FTW_DP) : result;
  }

  int entry(const char* name) {
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return 0;
    const size_t parent = len_, bytes = strlen(name);
    if (path_ + len_ + bytes + 1 >= full_ + sizeof full_) {  // room for a slash behind it
      errno = ENAMETOOLONG;
      return -1;
    }
    memcpy(path_ + len_, name, bytes + 1);
    len_ += bytes;
    const int result = look();
    len_ = parent;
    return is_action(result, FTW_SKIP_SUBTREE) ? 0 : result;
  }

  int look() {
    struct stat st = {};
    if (lstat(full_, &st) != 0) return errno == EACCES || errno == ENOENT ? tell(st, FTW_NS) : -1;
    if ((flags_ & FTW_MOUNT) != 0 && st.st_dev != device_) return 0;
    if (S_ISDIR(st.st_mode)) return directory(opendir(full_), st);
    return tell(st, S_ISLNK(st.st_mode) ? FTW_SL : FTW_F);
  }

  const Visit visit_;
  const int flags_;
  DIR* first_ = nullptr;
  dev_t device_ = 0;
  struct FTW at_ = {};
  char* path_ = nullptr;  // as the caller sees it, in full_
  size_t len_ = 0;        // of path_
  char full_[kPathBytes] = "";
};

template <typename Real>
int walk(const char* path, Visit visit, int flags, Real real) {
  const int saved = errno;
  Walk ours(visit, flags);
  if (ours.begin(path)) return ours.run();
  errno = saved;
  return real();
}

}  // namespace
}  // namespace monarch::preload

using namespace monarch::preload;

MONARCH_EXPORT int nftw(const char* path, __nftw_func_t visit, int descriptors, int flags) {
  return walk(path, visit, flags,
              [&] { return next<decltype(nftw)>(Hook::nftw)(path, visit, descriptors, flags); });
}
MONARCH_EXPORT int nftw64(const char* path, __nftw64_func_t visit, int descriptors, int flags) {
  return walk(path, reinterpret_cast<Visit>(visit), flags,
              [&] { return next<decltype(nftw64)>(Hook::nftw64)(path, visit, descriptors, flags); });
}
