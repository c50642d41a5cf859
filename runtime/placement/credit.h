// SPDX-License-Identifier: Apache-2.0
// What prefetch may cost the PFS for nothing: a burst after the start, so that it runs while programs import
// their modules, and as much again as the job has read. What the job has read of prefetched files comes back.
// So a job that reads a part of its dataset once costs the PFS at most twice that part, and the burst.
#pragma once

#include <cstdint>

#include "runtime/base/mutex.h"
#include "runtime/placement/context.h"
#include "runtime/placement/staging.h"
#include "runtime/placement/tier_health.h"

namespace monarch {

// All members may be called from any thread; with the queue's lock held, affords(), reserve(), give_back()
// and next_look_ns() only.
class PrefetchCredit {
 public:
  // Of the burst, where the configuration leaves it to Monarch: this part of the dataset, and these bounds.
  static constexpr uint64_t kPart = 20, kLeastBurst = 64 << 20, kMostBurst = uint64_t{10} << 30;
  // An open costs the PFS as much as so many bytes.
  static constexpr uint64_t kOpenBytes = 64 << 10;

  // `health` knows the usual size of a file.
  PrefetchCredit(const PlacementContext* context, const TierHealth* health)
      : context_(context), health_(health) {}

  // Whether a file of `bytes` can be prefetched now. Changes nothing.
  bool affords(uint64_t bytes) EXCLUDES(lock_);
  // The same, and reserves that much, so that other threads do not open files with the same credit; of 0
  // bytes the size is not known, and the usual one is meant. Nothing: it cannot be prefetched now.
  Reserved reserve(uint64_t bytes) EXCLUDES(lock_);
  void give_back(uint64_t reserved) EXCLUDES(lock_);
  // Whether a file that was opened can be prefetched, in the place of what was reserved for it; then it is
  // paid for, and else its open alone.
  bool take(uint64_t bytes, Reserved* reserved) EXCLUDES(lock_);
  // How long to wait before what was not afforded is asked for again: longer each time that nothing has
  // changed.
  int64_t next_look_ns() EXCLUDES(lock_);

 private:
  bool affords_now(uint64_t bytes) REQUIRES(lock_);
  uint64_t burst() const;
  uint64_t earned() const;

  const PlacementContext* const context_;
  const TierHealth* const health_;
  Mutex lock_;
  uint64_t taken_ GUARDED_BY(lock_) = 0;   // what was paid for, and opens
  uint64_t held_ GUARDED_BY(lock_) = 0;    // what is reserved
  uint64_t credit_ GUARDED_BY(lock_) = 0;  // as counted last
  int64_t counted_ns_ GUARDED_BY(lock_) = 0;
  uint64_t credit_then_ GUARDED_BY(lock_) = 0;  // at the last next_look_ns()
  int64_t nap_ns_ GUARDED_BY(lock_) = 0;
};

}  // namespace monarch
