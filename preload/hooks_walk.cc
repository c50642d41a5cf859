// SPDX-License-Identifier: Apache-2.0
// ftw(3) and nftw(3) of a directory that the catalog lists. libc's read directories and ask for files' values
// inside libc, so a walk is done anew here, on top of this library's opendir, readdir and fstatat, call for
// call as libc does it.
//
// As with libc's, a walk takes memory from malloc(3): for the directories that it saw if it follows symbolic
// links, for paths of more than 4 KiB, and for the names of directories that it closed because it is deeper
// than the number of descriptors that the caller gave.
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

// A directory that the walk is in. Its names are those of the stream, or, once that had to be closed, `rest`.
struct Level {
  Level* const outer;
  DIR* dir = nullptr;
  char* rest = nullptr;  // names one after the other, each with its NUL; an empty one is the end
  char* at = nullptr;    // the next of them
};

class Walk {
 public:
  Walk(Visit visit, int descriptors, int flags)
      : visit_(visit), flags_(flags), may_open_(descriptors > 1 ? descriptors : 1) {}
  Walk(PlainVisit visit, int descriptors)
      : plain_visit_(visit), flags_(0), may_open_(descriptors > 1 ? descriptors : 1) {}
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;
  ~Walk() {
    if (full_ != short_) free(full_);
  }

  // Whether this is a walk for us. Then the directory is open.
  bool begin(const char* path) {
    constexpr int kKnown = FTW_PHYS | FTW_MOUNT | FTW_CHDIR | FTW_DEPTH | FTW_ACTIONRETVAL;
    if ((flags_ & ~kKnown) != 0 || (!visit_ && !plain_visit_) || unreadable(path) || *path == '\0' ||
        !client() || !set_path(path))
      return false;
    first_.dir = open_listed(AT_FDCWD, full_);
    if (!first_.dir) return false;
    // A link to a root leads to a directory that is listed.
    if (look_at({AT_FDCWD, full_}, &st_) == 0 && S_ISDIR(st_.st_mode)) return true;
    closedir(first_.dir);
    return false;
  }

  int run() {
    const int start =
        has(FTW_CHDIR) ? static_cast<int>(syscall(SYS_openat, AT_FDCWD, ".", kPlace | O_CLOEXEC, 0)) : -1;
    const bool lost = has(FTW_CHDIR) && start < 0;
    const int result = lost || !go_beside_first() ? closed(first_.dir, -1) : walk_first();
    if (start >= 0) {
      const int saved = errno;
      (void)syscall(SYS_fchdir, start);
      (void)syscall(SYS_close, start);
      errno = saved;
    }
    return is_action(result, FTW_SKIP_SUBTREE) || is_action(result, FTW_SKIP_SIBLINGS) ? 0 : result;
  }

 private:
  static constexpr int kPlace = O_PATH | O_DIRECTORY;

  // The absolute path, of which the end is what the caller gave, without slashes at its end.
  bool set_path(const char* path) {
    size_t at = 0;
    if (*path != '/') {
      const int saved = errno;
      const long bytes = syscall(SYS_getcwd, full_, sizeof short_);
      errno = saved;
      if (bytes <= 1 || full_[0] != '/') return false;
      at = static_cast<size_t>(bytes) - 1;
      if (full_[at - 1] != '/') full_[at++] = '/';
    }
    len_ = strlen(path);
    while (len_ > 1 && path[len_ - 1] == '/') --len_;
    if (at + len_ >= sizeof short_) return false;
    start_ = at;
    memcpy(full_ + at, path, len_);
    full_[at + len_] = '\0';
    size_t base = len_;
    while (base > 0 && path[base - 1] != '/') --base;
    at_.base = static_cast<int>(base);
    at_.level = 0;
    return true;
  }

  // The path as the caller sees it.
  char* path() const { return full_ + start_; }

  // Makes room for `more` bytes behind the path.
  bool reserve(size_t more) {
    const size_t bytes = start_ + len_ + more;
    if (bytes <= room_) return true;
    auto* larger = static_cast<char*>(realloc(full_ == short_ ? nullptr : full_, 2 * bytes));
    if (!larger) return false;
    if (full_ == short_) memcpy(larger, short_, start_ + len_ + 1);
    full_ = larger;
    room_ = 2 * bytes;
    return true;
  }

  static int closed(DIR* dir, int result) {
    const int saved = errno;
    closedir(dir);
    errno = saved;
    return result;
  }
  bool has(int flag) const { return (flags_ & flag) != 0; }
  bool is_action(int result, int action) const { return has(FTW_ACTIONRETVAL) && result == action; }
  bool follows() const { return !has(FTW_PHYS); }
  int tell(const struct stat& st, int what) {
    return visit_ ? visit_(path(), &st, what, &at_)
                  : plain_visit_(path(), &st, what == FTW_SLN ? FTW_NS : what);
  }

  // FTW_CHDIR: to the directory that the walk's first one is in.
  bool go_beside_first() {
    if (!has(FTW_CHDIR) || at_.base == 0) return true;
    if (at_.base == 1) return syscall(SYS_chdir, "/") == 0;
    char* slash = path() + at_.base - 1;
    *slash = '\0';
    const long result = syscall(SYS_chdir, path());
    *slash = '/';
    return result == 0;
  }

  int walk_first() {
    if (follows() && seen_.add(st_) == SeenDirectories::Seen::kNoMemory) return closed(first_.dir, -1);
    open_ = 1;
    return directory(&first_, st_);
  }

  int directory(Level* level, const struct stat& st) {
    int result = has(FTW_DEPTH) ? 0 : tell(st, FTW_D);
    if (result == 0 && has(FTW_CHDIR) && !enter(level->dir)) result = -1;
    if (result != 0) return left(level, result);
    const size_t len = len_;
    const int base = at_.base;
    ++at_.level;
    full_[start_ + len_++] = '/';  // entry() left room for it
    at_.base = static_cast<int>(len_);
    while (const char* name = result == 0 ? next_name(level) : nullptr) result = entry(level, name);
    result = left(level, result);
    if (is_action(result, FTW_SKIP_SIBLINGS)) result = 0;
    len_ = len;
    path()[len_] = '\0';
    --at_.level;
    at_.base = base;
    if (result == 0 && has(FTW_DEPTH)) result = tell(st, FTW_DP);
    const bool goes_on = result == 0 || (has(FTW_ACTIONRETVAL) && result != -1 && result != FTW_STOP);
    return has(FTW_CHDIR) && level->outer && goes_on && !leave(level->outer) ? -1 : result;
  }

  static bool enter(DIR* dir) { return syscall(SYS_fchdir, ListedDirectory(dir).place()) == 0; }
  // Back from the directory below `outer`.
  bool leave(const Level* outer) const {
    if (outer->dir && enter(outer->dir)) return true;
    return syscall(SYS_chdir, at_.base == 1 ? "/" : "..") == 0;
  }

  static const char* next_name(Level* level) {
    if (level->dir) {
      const struct dirent* name = readdir(level->dir);
      return name ? name->d_name : nullptr;
    }
    const char* name = level->at;
    if (*name == '\0') return nullptr;
    level->at += strlen(name) + 1;
    return name;
  }

  int left(Level* level, int result) {
    const int saved = errno;
    if (level->dir) {
      closedir(level->dir);
      --open_;
    }
    free(level->rest);
    errno = saved;
    return result;
  }

  int entry(Level* level, const char* name) {
    if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0) return 0;
    const size_t parent = len_, bytes = strlen(name);
    if (!reserve(bytes + 2)) return -1;  // a slash may come behind it
    memcpy(path() + len_, name, bytes + 1);
    len_ += bytes;
    const int result = look(level);
    len_ = parent;
    return is_action(result, FTW_SKIP_SUBTREE) ? 0 : result;
  }

  // What the walk is at, for the *at calls. A path that is too long for the kernel starts at the directory.
  struct Place {
    int dirfd;
    const char* path;
  };
  Place place(const Level* level) const {
    if (start_ + len_ < kPathBytes) return {AT_FDCWD, full_};
    if (level->dir) return {ListedDirectory(level->dir).place(), path() + at_.base};
    return {AT_FDCWD, has(FTW_CHDIR) ? path() + at_.base : path()};
  }
  int look_at(const Place& at, struct stat* st) const {
    return fstatat(at.dirfd, at.path, st, follows() ? 0 : AT_SYMLINK_NOFOLLOW);
  }

  int look(Level* level) {
    struct stat st = {};
    const Place at = place(level);
    int link = FTW_SL;
    if (look_at(at, &st) != 0) {
      if (errno != EACCES && errno != ENOENT) return -1;
      if (!follows() || fstatat(at.dirfd, at.path, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISLNK(st.st_mode))
        return tell(st, FTW_NS);
      link = FTW_SLN;
    }
    if (has(FTW_MOUNT) && st.st_dev != st_.st_dev) return 0;
    if (S_ISDIR(st.st_mode)) return subdirectory(level, st);
    return tell(st, S_ISLNK(st.st_mode) ? link : FTW_F);
  }

  int subdirectory(Level* outer, const struct stat& st) {
    const auto seen = follows() ? seen_.add(st) : SeenDirectories::Seen::kNo;
    if (seen != SeenDirectories::Seen::kNo) return seen == SeenDirectories::Seen::kYes ? 0 : -1;
    if (open_ >= may_open_ && !close_outermost(outer)) return -1;
    Level level = {outer};
    level.dir = opened(place(outer));
    if (!level.dir) return errno == EACCES ? tell(st, FTW_DNR) : -1;
    ++open_;
    return directory(&level, st);
  }

  static DIR* opened(const Place& at) {
    if (at.dirfd == AT_FDCWD) return opendir(at.path);
    const int fd = openat(at.dirfd, at.path, O_RDONLY | O_DIRECTORY | O_NONBLOCK | O_CLOEXEC);
    DIR* dir = fd >= 0 ? fdopendir(fd) : nullptr;
    if (fd >= 0 && !dir) close(fd);
    return dir;
  }

  // The caller gave a number of descriptors: the outermost of the open streams gives up its own, and keeps
  // its names.
  bool close_outermost(Level* innermost) {
    Level* level = innermost;
    for (Level* l = innermost; l; l = l->outer)
      if (l->dir) level = l;
    size_t used = 0, room = 0;
    for (bool end = false; !end;) {
      const struct dirent* name = readdir(level->dir);
      end = !name;
      const char* text = end ? "" : name->d_name;
      const size_t bytes = strlen(text) + 1;
      if (used + bytes > room) {
        room = 2 * (room + bytes);
        auto* larger = static_cast<char*>(realloc(level->rest, room));
        if (!larger) return false;
        level->rest = larger;
      }
      memcpy(level->rest + used, text, bytes);
      used += bytes;
    }
    level->at = level->rest;
    closedir(level->dir);
    level->dir = nullptr;
    --open_;
    return true;
  }

  const Visit visit_ = nullptr;
  const PlainVisit plain_visit_ = nullptr;
  const int flags_;
  const int may_open_;  // streams
  int open_ = 0;
  Level first_ = {nullptr};
  struct stat st_ = {};  // of that
  SeenDirectories seen_;
  struct FTW at_ = {};
  char* full_ = short_;
  size_t room_ = sizeof short_;
  size_t start_ = 0;  // of the path as the caller sees it, in full_
  size_t len_ = 0;    // of that
  char short_[kPathBytes] = "";
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
  Walk ours(visit, descriptors, flags);
  return walk(path, &ours, [&] { return next<decltype(nftw)>(Hook::nftw)(path, visit, descriptors, flags); });
}
MONARCH_EXPORT int nftw64(const char* path, __nftw64_func_t visit, int descriptors, int flags) {
  Walk ours(reinterpret_cast<Visit>(visit), descriptors, flags);
  return walk(path, &ours,
              [&] { return next<decltype(nftw64)>(Hook::nftw64)(path, visit, descriptors, flags); });
}
MONARCH_EXPORT int ftw(const char* path, __ftw_func_t visit, int descriptors) {
  Walk ours(visit, descriptors);
  return walk(path, &ours, [&] { return next<decltype(ftw)>(Hook::ftw)(path, visit, descriptors); });
}
MONARCH_EXPORT int ftw64(const char* path, __ftw64_func_t visit, int descriptors) {
  Walk ours(reinterpret_cast<PlainVisit>(visit), descriptors);
  return walk(path, &ours, [&] { return next<decltype(ftw64)>(Hook::ftw64)(path, visit, descriptors); });
}
