// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/hierarchy.h"

#include <fcntl.h>

#include <algorithm>

#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"

namespace monarch {
namespace {

// Whether the tier has room for `bytes` behind `*before`; else what it has room for is taken from that.
bool has_room_behind(const Tier& tier, uint64_t bytes, uint64_t* before) {
  const uint64_t room = tier.room();
  if (room >= *before + tier.space_of(bytes)) return true;
  *before -= std::min(*before, room);
  return false;
}

}  // namespace

Result<Hierarchy> Hierarchy::open(const std::vector<TierConfig>& tiers, const std::string& job_dir,
                                  Clock& clock, const std::vector<StoreEnds>& stores) {
  Hierarchy hierarchy;
  hierarchy.tiers_.reserve(tiers.size());
  std::vector<TierConfig> own;
  for (const TierConfig& config : tiers) {
    const auto root = std::find_if(stores.begin(), stores.end(),
                                   [&](const StoreEnds& ends) { return ends.tier == config.name; });
    if (root == stores.end()) own.push_back(config);
    Result<Tier> tier = Tier::open(config, job_dir, clock, root == stores.end() ? nullptr : &*root);
    if (!tier.ok()) {
      (void)remove_job_dirs(own, job_dir).ok();
      return tier.error();
    }
    hierarchy.tiers_.push_back(tier.take());
  }
  return hierarchy;
}

int Hierarchy::reserve(uint64_t bytes, uint64_t before) {
  for (size_t i = 0; i < tiers_.size(); ++i)
    if ((before == 0 || has_room_behind(tiers_[i], bytes, &before)) && tiers_[i].reserve(bytes))
      return static_cast<int>(i);
  return -1;
}

bool Hierarchy::has_room(uint64_t bytes, uint64_t before) const {
  return std::any_of(tiers_.begin(), tiers_.end(),
                     [&](const Tier& tier) { return has_room_behind(tier, bytes, &before); });
}

int Hierarchy::reserve_part(uint64_t bytes, uint64_t unit, uint64_t* got) {
  for (size_t i = 0; i < tiers_.size(); ++i) {
    *got = std::min(bytes, tiers_[i].room() / unit * unit);
    if (*got > 0 && tiers_[i].reserve(*got)) return static_cast<int>(i);
  }
  return -1;
}

uint64_t Hierarchy::room() const {
  uint64_t most = 0;
  for (const Tier& t : tiers_) most = std::max(most, t.room());
  return most;
}

Status remove_job_dirs(const std::vector<TierConfig>& tiers, const std::string& job_dir) {
  Status first;
  for (const TierConfig& config : tiers) {
    Fd base(os::openat(AT_FDCWD, config.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const Status s = !base                     ? Status(errno_error("open " + config.path))
                     : is_run_of_user(job_dir) ? remove_user_dir(base.get(), job_dir)
                                               : remove_tree(base.get(), job_dir);
    if (!s.ok() && first.ok()) first = Error{s.error().code, "tier " + config.name + ": " + s.error().text};
  }
  return first;
}

}  // namespace monarch
