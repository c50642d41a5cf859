// SPDX-License-Identifier: Apache-2.0
// What copies with holes count: less than their size, so it is remembered until they are removed.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <unordered_map>

#include "runtime/base/mutex.h"
#include "runtime/hierarchy/tier.h"

namespace monarch {

// All members may be called from any thread.
class SparseCopies {
 public:
  // The copy of an entry, for which `bytes` were reserved, is complete: what it does not occupy is given
  // back. Returns the space that stays counted.
  uint64_t add(Tier* tier, Ref ref, const struct stat& copy, uint64_t bytes) EXCLUDES(lock_) {
    const MutexLock hold(lock_);
    return spaces_[ref] = tier->release_holes(copy, bytes);
  }
  // A copy of `bytes`, sparse or not, is removed: the space that it counts.
  uint64_t remove(const Tier& tier, Ref ref, uint64_t bytes) EXCLUDES(lock_) {
    const MutexLock hold(lock_);
    const auto at = spaces_.find(ref);
    if (at == spaces_.end()) return tier.space_of(bytes);
    const uint64_t space = at->second;
    spaces_.erase(at);
    return space;
  }

 private:
  Mutex lock_;
  std::unordered_map<Ref, uint64_t> spaces_ GUARDED_BY(lock_);  // bytes
};

}  // namespace monarch
