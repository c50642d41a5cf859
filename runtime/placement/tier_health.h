// SPDX-License-Identifier: Apache-2.0
// Whether tiers take files, and when what they did not take is tried again: tiers that failed or are full,
// and an agent that is short of descriptors or memory, which says nothing about a tier.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "runtime/base/result.h"
#include "runtime/placement/context.h"
#include "runtime/placement/queue.h"

namespace monarch {

// All members may be called from any thread; with the queue's lock held, due(), is_short() and least_uses()
// only.
class TierHealth {
 public:
  TierHealth(PlacementContext* context, WorkQueue* queue) : context_(context), queue_(queue) {}

  // No tier had room for a file, which stays on the PFS. After some in a row, and with no room for one of
  // usual size, prefetch ends and opens do not ask.
  void no_room(Ref ref);
  // A tier's quota has grown: what did not fit is tried again.
  void room_grew();
  // Copies were removed: the same, if that has left room for a file of usual size.
  void room_is_left();
  // The tier takes no new copies until a probe succeeds; one whose device fails (EIO) is not read either. An
  // error of one name or file (is_of_one_file) closes nothing.
  void failed(int tier, const Error& error);
  // The agent lacks descriptors or memory: prefetch rests, and what was put off is tried again later.
  void ran_short(int error);
  void put_off(Ref ref, int error);
  // A tier had room for a file.
  void found_room() { misfits_ = 0; }
  // A copy succeeded.
  void placed();
  // A file of the dataset has this size.
  void note_size(uint64_t bytes);
  // The mean of all that was noted.
  uint64_t usual_size() const { return bytes_seen_ / std::max<uint64_t>(1, files_seen_); }

  // Whether the agent lacked something just now: prefetch rests.
  bool is_short() const { return short_until_ns_ != 0; }
  // So many bytes are to have room before a file that is used in so many epochs.
  uint64_t before(uint32_t uses) const;
  // In how many epochs a file is used at least for which these leave room.
  uint32_t least_uses() const;
  // When look() is due, by the clock; INT64_MAX: not at all.
  int64_t due() const;
  // Probes the tiers for which it is time. What they, or an agent that was short, did not take is tried again
  // if they do now. One thread at a time.
  void look();

 private:
  // Whether a file of usual size has room.
  bool has_room() const;

  PlacementContext* const context_;
  WorkQueue* const queue_;
  std::atomic<uint64_t> files_seen_{0}, bytes_seen_{0};
  std::atomic<int> misfits_{0};    // files in a row for which there was no room
  std::atomic<bool> kept_{false};  // what waits has left no room for a file
  // When what was put off is tried again, by the clock; 0: nothing was.
  std::atomic<int64_t> short_until_ns_{0};
  std::atomic<int64_t> shortage_ns_{0};  // how long the last pause was
};

}  // namespace monarch
