// SPDX-License-Identifier: Apache-2.0
// Where paths hold: a mount namespace, and what is the process's root directory in it.
#pragma once

#include <cstdint>

namespace monarch {

// By the inode of /proc/self/ns/mnt, and st_ino and the mount of "/"; the kernel may not tell the latter (0).
// 0: not known.
constexpr uint64_t space_hash(uint64_t mount_namespace, uint64_t root_mount, uint64_t root_ino) {
  if (mount_namespace == 0) return 0;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, by words
  for (const uint64_t word : {mount_namespace, root_mount, root_ino}) hash = (hash ^ word) * 0x100000001b3;
  return hash | 1;
}

}  // namespace monarch
