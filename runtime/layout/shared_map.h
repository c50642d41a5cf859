// SPDX-License-Identifier: Apache-2.0
// Mapping the files of a run directory. libc's syscall(2) only: used by the agent, by tools and, inside
// application processes, by the preload library; async-signal-safe, keeps no descriptor.
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace monarch {

// Maps `name` of the directory `dir` (an absolute path) from its start, for `bytes`. Returns nullptr if
// it is missing, shorter than that, not a regular file, or cannot be mapped; errno is then undefined.
inline void* map_shared(const char* dir, const char* name, uint64_t bytes, bool writable) {
  const int flags = (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW;
  const long at = syscall(SYS_openat, AT_FDCWD, dir, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
  if (at < 0) return nullptr;
  const long fd = syscall(SYS_openat, static_cast<int>(at), name, flags, 0);
  syscall(SYS_close, static_cast<int>(at));
  if (fd < 0) return nullptr;
  void* address = nullptr;
  struct statx st;
  const long rc = syscall(SYS_statx, static_cast<int>(fd), "", AT_EMPTY_PATH, STATX_TYPE | STATX_SIZE, &st);
  if (rc == 0 && S_ISREG(st.stx_mode) && st.stx_size >= bytes) {
    // mmap(2) through libc would be seen by wrappers that count an application's mappings.
    const long map = syscall(SYS_mmap, nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED,
                             static_cast<int>(fd), 0L);
    if (map != -1) address = reinterpret_cast<void*>(map);
  }
  syscall(SYS_close, static_cast<int>(fd));
  return address;
}

}  // namespace monarch
