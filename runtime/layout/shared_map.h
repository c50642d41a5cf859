// SPDX-License-Identifier: Apache-2.0
// Mapping the files of a run directory. libc's syscall(2) only: used by the agent, by tools and, inside
// application processes, by the preload library; async-signal-safe, keeps no descriptor.
//
// The name of a run directory outlives the job, and another user may give it to a directory of its own. So
// nothing is believed but files that this process's user owns and that nobody else has access to, in a
// directory that is likewise, or root's. That holds in any user namespace: where an owner that has no name
// there shows as somebody's, the kernel opens what has mode 0600 for its owner only.
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/layout/statx.h"

namespace monarch {

inline bool is_own(const struct statx& st, uint32_t kind, uint32_t forbidden) {
  return (st.stx_mode & S_IFMT) == kind && (st.stx_mode & forbidden) == 0 &&
         st.stx_uid == static_cast<uint32_t>(syscall(SYS_geteuid));
}

// A run directory by its path, and which directory that was when something of it was mapped first.
struct RunDirectory {
  const char* path = nullptr;  // absolute; must outlive this
  uint32_t dev_major = 0, dev_minor = 0;
  uint64_t ino = 0;  // 0: nothing was mapped yet
};

// kUnknown: it cannot be opened or looked at; errno says why.
enum class RunDirectoryIs { kOwn, kForeign, kUnknown };

inline bool may_be_roots(const struct statx& st) {
  constexpr uint32_t kNobody = 65534;  // who has no name in this user namespace: root, mostly
  return st.stx_uid == 0 || st.stx_uid == kNobody;
}

// Whether the directory `st` is one in which nobody else can replace the run directory by another of this
// user's: root's, this user's, or sticky.
inline bool keeps_names(const struct statx& st) {
  return (st.stx_mode & S_ISVTX) != 0 || may_be_roots(st) ||
         st.stx_uid == static_cast<uint32_t>(syscall(SYS_geteuid));
}

// Whether `opened`, of which `st` is known, is root's, with a board of this user's: as Slurm's jobs have it.
inline bool is_roots_for_user(int opened, const struct statx& st) {
  struct statx board;
  return S_ISDIR(st.stx_mode) && (st.stx_mode & 022) == 0 && may_be_roots(st) &&
         ask_statx(opened, "board", AT_SYMLINK_NOFOLLOW, STATX_TYPE | STATX_MODE | STATX_UID, &board) &&
         is_own(board, S_IFREG, 077);
}

// Whether `opened`, a run directory, is this user's alone, and the same as before.
inline RunDirectoryIs whose_run_directory(int opened, RunDirectory* dir) {
  constexpr unsigned kAsked = STATX_TYPE | STATX_MODE | STATX_UID | STATX_INO;
  struct statx st, above;
  if (!ask_statx(opened, "", AT_EMPTY_PATH, kAsked, &st)) return RunDirectoryIs::kUnknown;
  bool own = is_own(st, S_IFDIR, 077) || is_roots_for_user(opened, st);
  if (own && dir->ino == 0) {
    if (!ask_statx(opened, "..", AT_SYMLINK_NOFOLLOW, kAsked, &above)) return RunDirectoryIs::kUnknown;
    own = keeps_names(above);
  } else if (own) {
    own = st.stx_ino == dir->ino && st.stx_dev_major == dir->dev_major && st.stx_dev_minor == dir->dev_minor;
  }
  if (!own) return RunDirectoryIs::kForeign;
  dir->dev_major = st.stx_dev_major;
  dir->dev_minor = st.stx_dev_minor;
  dir->ino = st.stx_ino;
  return RunDirectoryIs::kOwn;
}

// Opens the directory as *fd, with O_PATH, if it is kOwn.
inline RunDirectoryIs open_run_directory(RunDirectory* dir, int* fd) {
  const auto opened = static_cast<int>(
      syscall(SYS_openat, AT_FDCWD, dir->path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0));
  if (opened < 0) return RunDirectoryIs::kUnknown;
  const RunDirectoryIs is = whose_run_directory(opened, dir);
  if (is == RunDirectoryIs::kOwn)
    *fd = opened;
  else
    syscall(SYS_close, opened);
  return is;
}

// Maps `name` of the directory from its start, for `bytes`. Returns nullptr if it or the directory is missing
// or not this user's own, if others have access to it, if it is shorter than that, not a regular file, or
// cannot be mapped; errno is then undefined.
inline void* map_shared(RunDirectory* dir, const char* name, uint64_t bytes, bool writable) {
  int run = -1;
  if (open_run_directory(dir, &run) != RunDirectoryIs::kOwn) return nullptr;
  const long fd =
      syscall(SYS_openat, run, name, (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0);
  syscall(SYS_close, run);
  if (fd < 0) return nullptr;
  void* address = nullptr;
  struct statx st;
  const bool known = ask_statx(static_cast<int>(fd), "", AT_EMPTY_PATH,
                               STATX_TYPE | STATX_MODE | STATX_UID | STATX_SIZE, &st);
  if (known && is_own(st, S_IFREG, 077) && st.stx_size >= bytes) {
    // mmap(2) through libc would be seen by wrappers that count an application's mappings.
    const long map = syscall(SYS_mmap, nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED,
                             static_cast<int>(fd), 0L);
    if (map != -1) address = reinterpret_cast<void*>(map);
  }
  syscall(SYS_close, static_cast<int>(fd));
  return address;
}

}  // namespace monarch
