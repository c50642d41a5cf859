// SPDX-License-Identifier: Apache-2.0
// ftw(3) and nftw(3) of a directory that the catalog lists. libc's read directories and ask for files' values
// inside libc, so a walk is done anew here, on top of this library's opendir, readdir, stat and lstat, call
// for call as libc does it. Not with FTW_CHDIR.
//
// A walk that follows symbolic links remembers the directories that it saw, in memory from malloc(3), as
// libc's does. It takes a descriptor (O_PATH) for each level, also beyond the number that the caller gives.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <search.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "preload/preload.h"

namespace monarch::preload {
namespace {

using Visit = int (*)(const char*, const struct stat*, int, struct FTW*);
using PlainVisit = int (*)(const char*, const struct stat*, int);
static_assert(sizeof(struct stat) == sizeof(struct stat64));

class SeenDirectories {
 public:
  SeenDirectories() = default;
  SeenDirectories(const SeenDirectories&) = delete;
  SeenDirectories& operator=(const SeenDirectories&) = delete;
  ~SeenDirectories() { tdestroy(tree_, free); }

  enum class Seen { kNo, kYes, kNoMemory };
  // From the second time on kYes.
  Seen add(const struct stat& st) {
    auto* directory = static_cast<Directory*>(malloc(sizeof(Directory)));
    if (!directory) return Seen::kNoMemory;
    *directory = {st.st_dev, st.st_ino};
    const void* node = tsearch(directory, &tree_, compare);
    const bool is_new = node && *static_cast<Directory* const*>(node) == directory;
    if (!is_new) free(directory);
    return is_new ? Seen::kNo : node ? Seen::kYes : Seen::kNoMemory;
  }

 private:
  struct Directory {
    dev_t dev;
    ino_t ino;
  };
  static int compare(const void* one, const void* other) {
    const auto &a = *static_cast<const Directory*>(one), &b = *static_cast<const Directory*>(other);
    if (a.ino != b.ino) return a.ino < b.ino ? -1 : 1;
    return a.dev == b.dev ? 0 : a.dev < b.dev ? -1 : 1;
  }

  void* tree_ = nullptr;
};

class Walk {
 public:
  Walk(Visit visit, int flags) : visit_(visit), flags_(flags) {}
  explicit Walk(PlainVisit visit) : plain_visit_(visit), flags_(0) {}

  // Whether this is a walk for us. Then the directory is open.
  bool begin(const char* path) {
    constexpr int kExact = FTW_PHYS | FTW_MOUNT | FTW_DEPTH | FTW_ACTIONRETVAL;
    if ((flags_ & ~kExact) != 0 || (!visit_ && !plain_visit_) || unreadable(path) || *path == '\0' ||
        !client() || !set_path(path))
      return false;
    first_ = open_listed(AT_FDCWD, full_);
    return first_ != nullptr;
  }

  int run() {
    struct stat st;
    if (lstat(full_, &st) != 0) return closed(first_, -1);
    device_ = st.st_dev;
    if (follows() && seen_.add(st) == SeenDirectories::Seen::kNoMemory) return closed(first_, -1);
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
  bool follows() const { return (flags_ & FTW_PHYS) == 0; }
  int tell(const struct stat& st, int what) {
    return visit_ ? visit_(path_, &st, what, &at_)
                  : plain_visit_(path_, &st, what == FTW_SLN ? FTW_NS : what);
  }

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
    int link = FTW_SL;
    if ((follows() ? stat(full_, &st) : lstat(full_, &st)) != 0) {
      if (errno != EACCES && errno != ENOENT) return -1;
      if (!follows() || lstat(full_, &st) != 0 || !S_ISLNK(st.st_mode)) return tell(st, FTW_NS);
      link = FTW_SLN;
    }
    if ((flags_ & FTW_MOUNT) != 0 && st.st_dev != device_) return 0;
    if (S_ISDIR(st.st_mode)) return subdirectory(st);
    return tell(st, S_ISLNK(st.st_mode) ? link : FTW_F);
  }

  int subdirectory(const struct stat& st) {
    const auto seen = follows() ? seen_.add(st) : SeenDirectories::Seen::kNo;
    if (seen == SeenDirectories::Seen::kNo) return directory(opendir(full_), st);
    return seen == SeenDirectories::Seen::kYes ? 0 : -1;
  }

  const Visit visit_ = nullptr;
  const PlainVisit plain_visit_ = nullptr;
  const int flags_;
  SeenDirectories seen_;
  DIR* first_ = nullptr;
  dev_t device_ = 0;
  struct FTW at_ = {};
  char* path_ = nullptr;  // as the caller sees it, in full_
  size_t len_ = 0;        // of path_
  char full_[kPathBytes] = "";
};

template <typename Real>
int walk(const char* path, Walk* ours, Real real) {
  const int saved = errno;
  if (ours->begin(path)) return ours->run();
  errno = saved;
  return real();
}

}  // namespace
}  // namespace monarch::preload

using namespace monarch::preload;

MONARCH_EXPORT int nftw(const char* path, __nftw_func_t visit, int descriptors, int flags) {
  Walk ours(visit, flags);
  return walk(path, &ours, [&] { return next<decltype(nftw)>(Hook::nftw)(path, visit, descriptors, flags); });
}
MONARCH_EXPORT int nftw64(const char* path, __nftw64_func_t visit, int descriptors, int flags) {
  Walk ours(reinterpret_cast<Visit>(visit), flags);
  return walk(path, &ours,
              [&] { return next<decltype(nftw64)>(Hook::nftw64)(path, visit, descriptors, flags); });
}
MONARCH_EXPORT int ftw(const char* path, __ftw_func_t visit, int descriptors) {
  Walk ours(visit);
  return walk(path, &ours, [&] { return next<decltype(ftw)>(Hook::ftw)(path, visit, descriptors); });
}
MONARCH_EXPORT int ftw64(const char* path, __ftw64_func_t visit, int descriptors) {
  Walk ours(reinterpret_cast<PlainVisit>(visit));
  return walk(path, &ours, [&] { return next<decltype(ftw64)>(Hook::ftw64)(path, visit, descriptors); });
}
