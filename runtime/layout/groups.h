// SPDX-License-Identifier: Apache-2.0
// Whose group's files a process may read, as one number: the agent's stands in the catalog, and tasks compare
// theirs. libc's syscall(2) only; async-signal-safe.
#pragma once

#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/layout/catalog_layout.h"

namespace monarch {

inline constexpr long kMostGroups = 1024;

// A hash of the set of the effective and the supplementary groups, in the numbers of the process's user
// namespace. 0: there are more than kMostGroups, or the kernel does not tell.
inline uint32_t own_groups() {
  uint32_t groups[kMostGroups];
  const long n = syscall(SYS_getgroups, kMostGroups, groups);
  if (n < 0) return 0;
  const auto effective = static_cast<uint32_t>(syscall(SYS_getegid));
  uint32_t sum = inode_hash(0, effective);
  for (long i = 0; i < n; ++i)  // the kernel keeps them sorted
    if (groups[i] != effective && (i == 0 || groups[i] != groups[i - 1])) sum += inode_hash(0, groups[i]);
  return sum != 0 ? sum : 1;
}

}  // namespace monarch
