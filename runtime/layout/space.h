// SPDX-License-Identifier: Apache-2.0
// Where paths hold: a mount namespace, and what is the process's root directory in it. The agent's stands in
// the catalog, and tasks compare theirs. libc's syscall(2) only; async-signal-safe; errno may change.
#pragma once

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "runtime/layout/statx.h"

namespace monarch {

// By the inode of /proc/self/ns/mnt, and st_ino and the mount of "/"; the kernel may not tell the latter (0).
// 0: not known.
constexpr uint64_t space_hash(uint64_t mount_namespace, uint64_t root_mount, uint64_t root_ino) {
  if (mount_namespace == 0) return 0;
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a, by words
  for (const uint64_t word : {mount_namespace, root_mount, root_ino}) hash = (hash ^ word) * 0x100000001b3;
  return hash | 1;
}

// STATX_MNT_ID and STATX_MNT_ID_UNIQUE, whichever the kernel knows; the latter is no other mount's ever.
inline constexpr unsigned kMountId = 0x1000 | 0x4000;

// The mount that a statx with kMountId told of; 0: the kernel does not tell. libc's header may be too old to
// name it.
inline uint64_t mount_id(const struct statx& st) {
  constexpr size_t kAt = 0x90;
  uint64_t id = 0;
  if ((st.stx_mask & kMountId) != 0) memcpy(&id, reinterpret_cast<const char*>(&st) + kAt, sizeof id);
  return id;
}

// The inode of a namespace of the process (/proc/self/ns/...); 0: not to be had now.
inline uint64_t namespace_inode(const char* link) {
  struct statx st;
  return ask_statx(AT_FDCWD, link, 0, STATX_INO, &st) ? st.stx_ino : 0;
}

// The process's space_hash(). After chroot(2) its paths lead elsewhere, in the same namespace.
inline uint64_t own_space() {
  struct statx root;
  const uint64_t names = namespace_inode("/proc/self/ns/mnt");
  if (!ask_statx(AT_FDCWD, "/", AT_STATX_DONT_SYNC, STATX_INO | kMountId, &root)) return 0;
  return space_hash(names, mount_id(root), root.stx_ino);
}

}  // namespace monarch
