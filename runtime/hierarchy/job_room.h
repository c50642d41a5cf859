// SPDX-License-Identifier: Apache-2.0
// What memory a job of Slurm's uses on this node, and what that leaves of the job's allocation for a tier
// which is charged to it (monarch.conf(5), charge). The job's control group is only read: Slurm limits it.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.h"

namespace monarch {

// A file of a control group, or of /proc, as a whole; at most 64 KiB.
Result<std::string> read_group_file(const std::string& path);
// The one in which the kernel tells what the group uses.
std::string memory_usage_file(const std::string& group);

// What the processes of the group use, in bytes: all that counts but pages of files that are as on disk,
// which the kernel takes back before it lacks memory. An error: it cannot be told, for example since the
// group is gone between two steps.
Result<uint64_t> memory_used(const std::string& group);

// What is left to the job beside the tier: a sixteenth of what Slurm allocated, but 32 MiB to 8 GiB. One
// core fills no more with new pages between two looks.
uint64_t memory_margin(uint64_t allocated);

constexpr int64_t kLeastRoomWait = 10, kMostRoomWait = 600;  // seconds

// What the job's memory leaves to the tier.
struct MemoryRoom {
  uint64_t bytes = 0;
  int64_t since = 0;              // seconds of CLOCK_MONOTONIC, not 0; 0: what the job uses is not known yet
  int64_t wait = kLeastRoomWait;  // so long it does not grow
  bool grew = false;              // it is larger than before
  bool operator==(const MemoryRoom&) const = default;
};

// The room at `now`, where it was `last`, of a job that uses `used` of `allocated` bytes, for a tier that has
// `most` at most. Does not follow each change: it gets smaller at once, by all that lacks to a whole margin,
// when half of the margin is used up; and larger when a whole margin is free beyond it, by half of what is
// free, no sooner than `wait` after the last change. That is four times as long each time when what was given
// has to be taken back, and half as long each time when more is given: copies that go and come cost the PFS
// more than they spare it.
MemoryRoom next_room(const MemoryRoom& last, uint64_t allocated, uint64_t used, uint64_t most, int64_t now);

}  // namespace monarch
