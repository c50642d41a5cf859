// SPDX-License-Identifier: Apache-2.0
// How jobs divide a tier's quota: numbers only (doc/slurm.md, "Shares").
#pragma once

#include <cstdint>
#include <vector>

namespace monarch {

// What one job has of a tier, in bytes.
struct Claim {
  uint64_t quota = 0;          // what counts as the job's
  uint64_t told = 0;           // what its agent is told: that, or less while it is asked to give back
  uint64_t share = 0;          // what it should have reserved
  uint64_t reserved = 0;       // what it is never asked to give back; at most the share
  bool equal = false;          // has the same reserved as all of these
  bool lives = true;           // else it gets nothing, and gives nothing back
  bool late = false;           // was asked, and has not given back in time: nobody counts on that
  uint64_t most = UINT64_MAX;  // what it gets, whatever is free; may get less while it has more
};

// What jobs that have ended still occupy: what is being removed, and what nobody could remove.
struct Leftovers {
  uint64_t coming = 0, stuck = 0;
};

// Divides `limit` among `claims`, those that began first standing first:
// - Who has less reserved than his share reserves what nobody has reserved.
// - What is free goes to who has less than he has reserved, and then to all, so that their quotas are as
//   what they have reserved.
// - Who has more than his most is asked to give that back, whether anybody needs it or not.
// - If that is not enough for what is reserved, and no removal is about to free as much, who has more than he
//   has reserved is asked to give back, in proportion to what that is; and not any more once it is enough.
// Quotas only grow. The sum of all and of what is left over is at most `limit` if it was before, and else
// grows no further.
void divide(uint64_t limit, const Leftovers& left, std::vector<Claim>* claims);

}  // namespace monarch
