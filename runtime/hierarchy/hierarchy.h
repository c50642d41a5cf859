// SPDX-License-Identifier: Apache-2.0
// The storage hierarchy (MONARCH, section III): the tiers in the order in which they are filled. The
// last level, the PFS, is not in the list: it is read-only and always there.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/hierarchy/tier.h"

namespace monarch {

class Hierarchy {
 public:
  // Opens the job's directory `job_dir` on each tier, with root's stores of those that have one. On an error,
  // what was made is removed again.
  static Result<Hierarchy> open(const std::vector<TierConfig>& tiers, const std::string& job_dir,
                                Clock& clock = system_clock(), const std::vector<StoreEnds>& stores = {});

  std::vector<Tier>& tiers() { return tiers_; }
  const std::vector<Tier>& tiers() const { return tiers_; }

  // Reserves space for a file of `bytes` on the first tier that has room and returns the tier's number;
  // -1 if none has. Nothing is evicted for it: the placed subset is stable over epochs. So many bytes
  // `before` it are left room for, on the first tiers.
  int reserve(uint64_t bytes, uint64_t before = 0);
  // Whether it could be reserved now.
  bool has_room(uint64_t bytes, uint64_t before) const;

  // The same for as much of `bytes` as one tier can take, in whole units of `unit`; *got is how much. For
  // files that are worth keeping in part.
  int reserve_part(uint64_t bytes, uint64_t unit, uint64_t* got);

  // The most that a file may have to be reserved now.
  uint64_t room() const;

 private:
  std::vector<Tier> tiers_;
};

// Removes the job's directory from each tier. Returns the first error, after trying all.
Status remove_job_dirs(const std::vector<TierConfig>& tiers, const std::string& job_dir);

}  // namespace monarch
