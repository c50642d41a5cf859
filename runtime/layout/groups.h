// SPDX-License-Identifier: Apache-2.0
// Whose group's files a process may read, as one number: the agent's stands in the catalog, and tasks compare
// theirs. libc's syscall(2) only; async-signal-safe.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/layout/catalog_layout.h"

namespace monarch {

inline constexpr long kMostGroups = 1024;

// A hash of the set of the effective and the supplementary groups, in the numbers of the process's user
// namespace. 0: there are more than kMostGroups, or the kernel does not tell. Many groups take pages of their
// own for the moment: this may run on a signal handler's stack.
inline uint32_t own_groups() {
  constexpr long kFew = 64;
  uint32_t few[kFew];
  const long most = syscall(SYS_getgroups, 0, nullptr);
  const size_t bytes = static_cast<size_t>(most < 0 ? 0 : most) * sizeof *few;
  const long pages =
      most > kFew && most <= kMostGroups
          ? syscall(SYS_mmap, nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0L)
          : 0;
  if (most < 0 || most > kMostGroups || pages == -1) return 0;
  uint32_t* groups = pages != 0 ? reinterpret_cast<uint32_t*>(pages) : few;
  const long n = syscall(SYS_getgroups, most, groups);
  const auto effective = static_cast<uint32_t>(syscall(SYS_getegid));
  uint32_t sum = inode_hash(0, effective);
  for (long i = 0; i < n; ++i)  // the kernel keeps them sorted
    if (groups[i] != effective && (i == 0 || groups[i] != groups[i - 1])) sum += inode_hash(0, groups[i]);
  if (pages != 0) syscall(SYS_munmap, pages, bytes);
  if (n < 0) return 0;
  return sum != 0 ? sum : 1;
}

}  // namespace monarch
