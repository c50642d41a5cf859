// SPDX-License-Identifier: Apache-2.0
// The directory family: opendir(3) and what works on its result, and scandir(3) and glob(3), which in libc
// would not come through here. See directories.cc.
//
// This file defines readdir and readdir64 side by side, so it is built without _FILE_OFFSET_BITS.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "preload/preload.h"

namespace monarch::preload {
namespace {

static_assert(sizeof(struct dirent) == sizeof(struct dirent64), "one layout of names");

using ReaddirFunction = struct dirent64*(DIR*);
using ReaddirRFunction = int(DIR*, struct dirent64*, struct dirent64**);

struct dirent64* read_name(Hook hook, DIR* dir) {
  const ListedDirectory listed(dir);
  return listed ? listed.read(nullptr) : next<ReaddirFunction>(hook)(listed.real());
}

int read_name(Hook hook, DIR* dir, struct dirent64* name, struct dirent64** result) {
  const ListedDirectory listed(dir);
  if (!listed) return next<ReaddirRFunction>(hook)(listed.real(), name, result);
  const int saved = errno;
  errno = 0;
  *result = listed.read(name);
  const int error = errno;
  errno = saved;
  return error;
}

using Select = int (*)(const struct dirent64*);
using Compare = int (*)(const struct dirent64**, const struct dirent64**);

// What scandir(3) gives back: names and the array are the caller's, to free.
struct Names {
  struct dirent64** list = nullptr;
  size_t count = 0, room = 0;

  bool add(const struct dirent64* name) {
    if (count == room) {
      const size_t more = room ? 2 * room : 16;
      auto* larger = static_cast<struct dirent64**>(realloc(list, more * sizeof(void*)));
      if (!larger) return false;
      list = larger;
      room = more;
    }
    auto* copy = static_cast<struct dirent64*>(malloc(name->d_reclen));
    if (!copy) return false;
    memcpy(copy, name, name->d_reclen);
    list[count++] = copy;
    return true;
  }
  void drop() {
    while (count > 0) free(list[--count]);
    free(list);
  }
};

int scan(DIR* dir, struct dirent64*** result, Select select, Compare compare) {
  const int saved = errno;
  const ListedDirectory listed(dir);
  Names names;
  bool good = true;
  errno = 0;
  while (const struct dirent64* name = good ? listed.read(nullptr) : nullptr) {
    const bool wanted = !select || select(name) != 0;
    errno = 0;  // the caller's function may have set it
    if (wanted) good = names.add(name);
  }
  good = good && errno == 0;
  const int error = errno;
  close_directory(dir);
  if (!good) {
    names.drop();
    errno = error ? error : ENOMEM;
    return -1;
  }
  if (compare && names.list)
    qsort(names.list, names.count, sizeof(void*),
          reinterpret_cast<int (*)(const void*, const void*)>(compare));
  *result = names.list;
  errno = saved;
  return static_cast<int>(names.count);
}

template <typename Ask>
int scan_listed(int dirfd, const char* path, struct dirent64*** result, Select select, Compare compare,
                Ask ask) {
  DIR* dir = open_listed(dirfd, path);
  return dir ? scan(dir, result, select, compare) : ask();
}

// libc's glob(3) with this library's functions in the place of those inside libc. They are the caller's to
// give if GLOB_ALTDIRFUNC is set: then it is his affair.
template <typename Glob, typename Name, typename Stat>
class GlobFunctions {
 public:
  GlobFunctions(Glob* glob, Name* (*read)(DIR*), int (*follow)(const char*, Stat*),
                int (*nofollow)(const char*, Stat*))
      : glob_(glob), caller_(*glob) {
    glob->gl_closedir = [](void* dir) { close_directory(static_cast<DIR*>(dir)); };
    glob->gl_readdir = reinterpret_cast<Name* (*)(void*)>(read);
    glob->gl_opendir = [](const char* path) { return static_cast<void*>(opendir(path)); };
    glob->gl_stat = follow;
    glob->gl_lstat = nofollow;
  }
  ~GlobFunctions() {
    glob_->gl_flags &= ~GLOB_ALTDIRFUNC;
    glob_->gl_closedir = caller_.gl_closedir;
    glob_->gl_readdir = caller_.gl_readdir;
    glob_->gl_opendir = caller_.gl_opendir;
    glob_->gl_stat = caller_.gl_stat;
    glob_->gl_lstat = caller_.gl_lstat;
  }

 private:
  Glob* const glob_;
  const Glob caller_;
};

bool may_list(const char* pattern, int flags, const void* result) {
  const Client* c = (flags & GLOB_ALTDIRFUNC) == 0 && !unreadable(pattern) && result ? client() : nullptr;
  return c && may_be_below(*c, pattern);
}

using GlobError = int (*)(const char*, int);

}  // namespace
}  // namespace monarch::preload

using namespace monarch::preload;

MONARCH_EXPORT int glob(const char* pattern, int flags, GlobError error, glob_t* result) noexcept {
  auto* real = next<int(const char*, int, GlobError, glob_t*)>(Hook::glob);
  if (!may_list(pattern, flags, result)) return real(pattern, flags, error, result);
  const GlobFunctions<glob_t, struct dirent, struct stat> ours(result, readdir, stat, lstat);
  return real(pattern, flags | GLOB_ALTDIRFUNC, error, result);
}
MONARCH_EXPORT int glob64(const char* pattern, int flags, GlobError error, glob64_t* result) noexcept {
  auto* real = next<int(const char*, int, GlobError, glob64_t*)>(Hook::glob64);
  if (!may_list(pattern, flags, result)) return real(pattern, flags, error, result);
  const GlobFunctions<glob64_t, struct dirent64, struct stat64> ours(result, readdir64, stat64, lstat64);
  return real(pattern, flags | GLOB_ALTDIRFUNC, error, result);
}

MONARCH_EXPORT DIR* opendir(const char* path) {
  DIR* dir = open_listed(AT_FDCWD, path);
  return dir ? dir : next<DIR*(const char*)>(Hook::opendir)(path);
}
MONARCH_EXPORT DIR* fdopendir(int fd) {
  DIR* dir = open_listed(fd);
  return dir ? dir : next<DIR*(int)>(Hook::fdopendir)(fd);
}
MONARCH_EXPORT int closedir(DIR* dir) { return close_directory(dir); }

MONARCH_EXPORT struct dirent* readdir(DIR* dir) {
  return reinterpret_cast<struct dirent*>(read_name(Hook::readdir, dir));
}
MONARCH_EXPORT struct dirent64* readdir64(DIR* dir) { return read_name(Hook::readdir64, dir); }
MONARCH_EXPORT int readdir_r(DIR* dir, struct dirent* name, struct dirent** result) {
  return read_name(Hook::readdir_r, dir, reinterpret_cast<struct dirent64*>(name),
                   reinterpret_cast<struct dirent64**>(result));
}
MONARCH_EXPORT int readdir64_r(DIR* dir, struct dirent64* name, struct dirent64** result) {
  return read_name(Hook::readdir64_r, dir, name, result);
}
MONARCH_EXPORT long telldir(DIR* dir) noexcept {
  const ListedDirectory listed(dir);
  return listed ? listed.position() : next<long(DIR*)>(Hook::telldir)(listed.real());
}
MONARCH_EXPORT void seekdir(DIR* dir, long position) noexcept {
  const ListedDirectory listed(dir);
  return listed ? listed.seek(position) : next<void(DIR*, long)>(Hook::seekdir)(listed.real(), position);
}
MONARCH_EXPORT void rewinddir(DIR* dir) noexcept {
  const ListedDirectory listed(dir);
  return listed ? listed.rewind() : next<void(DIR*)>(Hook::rewinddir)(listed.real());
}
MONARCH_EXPORT int dirfd(DIR* dir) noexcept {
  const ListedDirectory listed(dir);
  return listed ? listed.descriptor() : next<int(DIR*)>(Hook::dirfd)(listed.real());
}

#define MONARCH_SCANDIR(symbol, Name)                                                                        \
  MONARCH_EXPORT int symbol(const char* path, struct Name*** result, int (*select)(const struct Name*),      \
                            int (*compare)(const struct Name**, const struct Name**)) {                      \
    return scan_listed(AT_FDCWD, path, reinterpret_cast<struct dirent64***>(result),                         \
                       reinterpret_cast<Select>(select), reinterpret_cast<Compare>(compare),                 \
                       [&] { return next<decltype(symbol)>(Hook::symbol)(path, result, select, compare); }); \
  }
#define MONARCH_SCANDIRAT(symbol, Name)                                                                     \
  MONARCH_EXPORT int symbol(int dirfd, const char* path, struct Name*** result,                             \
                            int (*select)(const struct Name*),                                              \
                            int (*compare)(const struct Name**, const struct Name**)) {                     \
    return scan_listed(dirfd, path, reinterpret_cast<struct dirent64***>(result),                           \
                       reinterpret_cast<Select>(select), reinterpret_cast<Compare>(compare), [&] {          \
                         return next<decltype(symbol)>(Hook::symbol)(dirfd, path, result, select, compare); \
                       });                                                                                  \
  }
MONARCH_SCANDIR(scandir, dirent)
MONARCH_SCANDIR(scandir64, dirent64)
MONARCH_SCANDIRAT(scandirat, dirent)
MONARCH_SCANDIRAT(scandirat64, dirent64)
