// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/key.h"

#include <string>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace monarch {
namespace {

uint32_t share(uint64_t hash, uint32_t of) {
  return static_cast<uint32_t>((static_cast<unsigned __int128>(hash) * of) >> 64);
}

}  // namespace

FileKey file_key(uint32_t root, std::string_view path) {
  const XXH128_hash_t hash = XXH3_128bits_withSeed(path.data(), path.size(), uint64_t{root} << 32);
  return {hash.high64, hash.low64};
}

// No path begins like this.
FileKey key_of_inode(uint32_t root, uint64_t inode) { return file_key(root, "/" + std::to_string(inode)); }

NodeIndex home_of(const FileKey& key, uint32_t nodes) { return share(key.high, nodes); }

NodeIndex deputy_of(const FileKey& key, uint32_t nodes) {
  if (nodes < 2) return 0;
  const NodeIndex other = share(key.low, nodes - 1);
  return other < home_of(key, nodes) ? other : other + 1;
}

}  // namespace monarch
