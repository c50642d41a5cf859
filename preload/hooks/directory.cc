// SPDX-License-Identifier: Apache-2.0
// The directory family: opendir(3) and what works on its result. See listings.h.
#include <dirent.h>

#include "preload/decide/listings.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"

namespace monarch::preload {
namespace {

struct dirent64* read_name(Hook hook, DIR* dir) {
  Stream* s = stream_of(&dir);
  return s ? next_name(s, nullptr) : call_next<struct dirent64*>(hook, dir);
}

int read_name(Hook hook, DIR* dir, struct dirent64* name, struct dirent64** result) {
  Stream* s = stream_of(&dir);
  if (!s) return call_next<int>(hook, dir, name, result);
  const int saved = errno;
  errno = 0;
  *result = next_name(s, name);
  const int error = errno;
  errno = saved;
  return error;
}

}  // namespace

EXPORT DIR* opendir(const char* path) {
  DIR* dir = open_listed(path);
  return dir ? dir : call_next<DIR*>(Hook::opendir, path);
}
EXPORT DIR* fdopendir(int fd) {
  DIR* dir = open_listed(fd);
  return dir ? dir : call_next<DIR*>(Hook::fdopendir, fd);
}
EXPORT int closedir(DIR* dir) { return close_directory(dir); }

EXPORT struct dirent* readdir(DIR* dir) {
  return reinterpret_cast<struct dirent*>(read_name(Hook::readdir, dir));
}
HOOK(struct dirent64*, readdir64, (DIR * dir), read_name, dir)
EXPORT int readdir_r(DIR* dir, struct dirent* name, struct dirent** result) {
  return read_name(Hook::readdir_r, dir, reinterpret_cast<struct dirent64*>(name),
                   reinterpret_cast<struct dirent64**>(result));
}
HOOK(int, readdir64_r, (DIR * dir, struct dirent64* name, struct dirent64** result), read_name, dir, name,
     result)

// A hook that is `ours` of a listed stream, *s.
#define STREAM_HOOK(Result, name, parameters, ours, ...)          \
  EXPORT Result name parameters noexcept {                        \
    Stream* s = stream_of(&dir);                                  \
    return s ? ours : call_next<Result>(Hook::name, __VA_ARGS__); \
  }
STREAM_HOOK(long, telldir, (DIR * dir), position_of(*s), dir)
STREAM_HOOK(void, seekdir, (DIR * dir, long position), seek(s, position), dir, position)
STREAM_HOOK(void, rewinddir, (DIR * dir), rewind(s), dir)
STREAM_HOOK(int, dirfd, (DIR * dir), descriptor_of(s), dir)

}  // namespace monarch::preload
