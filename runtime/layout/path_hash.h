// SPDX-License-Identifier: Apache-2.0
// The hash under which the path index keeps an entry. Part of the shared layout.
#pragma once

#include <stdint.h>
#include <stddef.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace monarch {

// Hash of a path below root number `root`: `path` is relative, without leading, trailing or doubled
// slashes and without "." and ".." components.
inline uint32_t path_hash(uint32_t root, const char* path, size_t len) {
  const uint64_t h = XXH3_64bits_withSeed(path, len, root);
  return static_cast<uint32_t>(h ^ h >> 32);
}

}  // namespace monarch
