// SPDX-License-Identifier: Apache-2.0
// The directory family: opendir(3) and what works on its result. See listings.h.
//
// This file defines readdir and readdir64 side by side, so it is built without _FILE_OFFSET_BITS.
#include <dirent.h>

#include "preload/decide/listings.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"

namespace monarch::preload {
namespace {

static_assert(sizeof(struct dirent) == sizeof(struct dirent64), "one layout of names");

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
  DIR* dir = open_listed(AT_FDCWD, path);
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
EXPORT struct dirent64* readdir64(DIR* dir) { return read_name(Hook::readdir64, dir); }
EXPORT int readdir_r(DIR* dir, struct dirent* name, struct dirent** result) {
  return read_name(Hook::readdir_r, dir, reinterpret_cast<struct dirent64*>(name),
                   reinterpret_cast<struct dirent64**>(result));
}
EXPORT int readdir64_r(DIR* dir, struct dirent64* name, struct dirent64** result) {
  return read_name(Hook::readdir64_r, dir, name, result);
}
EXPORT long telldir(DIR* dir) noexcept {
  Stream* s = stream_of(&dir);
  return s ? position_of(*s) : call_next<long>(Hook::telldir, dir);
}
EXPORT void seekdir(DIR* dir, long position) noexcept {
  Stream* s = stream_of(&dir);
  s ? seek(s, position) : call_next<void>(Hook::seekdir, dir, position);
}
EXPORT void rewinddir(DIR* dir) noexcept {
  Stream* s = stream_of(&dir);
  s ? rewind(s) : call_next<void>(Hook::rewinddir, dir);
}
EXPORT int dirfd(DIR* dir) noexcept {
  Stream* s = stream_of(&dir);
  return s ? descriptor_of(s) : call_next<int>(Hook::dirfd, dir);
}

}  // namespace monarch::preload
