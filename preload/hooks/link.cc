// SPDX-License-Identifier: Apache-2.0
// The link family: a link to a descriptor (/proc/PID/fd/N) of a tier's copy shows the dataset's file.
#include <stdlib.h>

#include "preload/decide/changes.h"
#include "preload/next/next.h"
#include "preload/resolve/originals.h"
#include "preload/resolve/paths.h"

namespace monarch::preload {
namespace {

// Whether `path` is a link to a descriptor of a copy, in whatever process, however written: the last of it is
// a number.
bool names_copy(int dirfd, const char* path, Original* original) {
  if (unreadable(path)) return false;
  const char* slash = strrchr(path, '/');
  if (number_of_descriptor(slash ? slash + 1 : path) < 0) return false;
  *original = copy_led_to(dirfd, path);
  return original->entry != nullptr;
}

// What `ask` says of a link to the file on the PFS, if that has its name still; else what it says of `path`.
// `failed`: what it gives without success.
template <typename Answer, typename Ask>
Answer of_original(const Original& original, const char* path, Answer failed, Ask ask) {
  const int saved = errno;
  Answer answer = failed;
  on_original(original, [&](const char* link) { return answer = ask(link), 0; });
  if (answer != failed) return answer;
  errno = saved;
  return ask(path);
}

// `ask` writes where its caller says, and no more than is right.
template <typename Ask>
ssize_t read_link(int dirfd, const char* path, Ask ask) {
  Original original;
  return names_copy(dirfd, path, &original) ? of_original(original, path, ssize_t{-1}, ask) : ask(path);
}

// A path is resolved; /dev/stdin is a link to a link to a descriptor.
template <typename Ask>
char* real_path(const char* path, Ask ask) {
  Original original;
  const bool copy =
      names_copy(AT_FDCWD, path, &original) || (!unreadable(path) && strcmp(path, "/dev/stdin") == 0 &&
                                                original_of_descriptor(STDIN_FILENO, &original));
  return copy ? of_original<char*>(original, path, nullptr, ask) : ask(path);
}

}  // namespace

#define READLINK_HOOK(name, dirfd, parameters, ...)                                                  \
  EXPORT ssize_t name parameters noexcept {                                                          \
    return read_link(dirfd, path,                                                                    \
                     [&](const char* link) { return call_next<ssize_t>(Hook::name, __VA_ARGS__); }); \
  }
READLINK_HOOK(readlink, AT_FDCWD, (const char* path, char* out, size_t bytes), link, out, bytes)
READLINK_HOOK(readlinkat, dirfd, (int dirfd, const char* path, char* out, size_t bytes), dirfd, link, out,
              bytes)
READLINK_HOOK(__readlink_chk, AT_FDCWD, (const char* path, char* out, size_t bytes, size_t room), link, out,
              bytes, room)
READLINK_HOOK(__readlinkat_chk, dirfd, (int dirfd, const char* path, char* out, size_t bytes, size_t room),
              dirfd, link, out, bytes, room)

#define REALPATH_HOOK(name, parameters, ...)                                                             \
  EXPORT char* name parameters noexcept {                                                                \
    return real_path(path, [&](const char* link) { return call_next<char*>(Hook::name, __VA_ARGS__); }); \
  }
REALPATH_HOOK(realpath, (const char* path, char* out), link, out)
REALPATH_HOOK(__realpath_chk, (const char* path, char* out, size_t room), link, out, room)
REALPATH_HOOK(canonicalize_file_name, (const char* path), link)

}  // namespace monarch::preload
