// SPDX-License-Identifier: Apache-2.0
#include "preload/client/client.h"

#include "preload/client/room.h"
#include "preload/next/kernel.h"
#include "runtime/layout/globs.h"

namespace monarch::preload {

bool excludes_program(const char* globs) {
  Room room;
  char* exe = room.take(kPathBytes);
  const KeepErrno errno_stays;
  const long n = !exe ? -1 : syscall(SYS_readlinkat, AT_FDCWD, "/proc/self/exe", exe, kPathBytes - 1);
  if (n <= 0) return false;
  exe[n] = '\0';
  return any_glob_matches(globs, exe, exe);
}

bool excludes_file(const Client& c, const RelPath& path) {
  Room room;
  const CatalogFacts& facts = c.catalog.facts();
  for (uint32_t i = 0; i < facts.prefix_count; ++i) {
    const Prefix& prefix = facts.prefixes[i];
    if (prefix.root != path.root || prefix.below_len != 0) continue;
    const char* full = path_below(prefix.path, prefix.len, path, &room);
    if (!full || any_glob_matches(c.exclude, full, full + prefix.len + 1)) return true;
  }
  return false;
}

}  // namespace monarch::preload
