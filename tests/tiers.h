// SPDX-License-Identifier: Apache-2.0
// Tiers in a test's scratch directory.
#pragma once

#include "runtime/hierarchy/tier.h"
#include "runtime/layout/catalog_layout.h"
#include "tests/scratch.h"

namespace monarch {

// A tier at a directory of that name, with no space kept free for others.
inline TierConfig tier_config(const Scratch& scratch, const std::string& name, uint64_t quota) {
  TierConfig config;
  config.name = name;
  config.path = scratch.dir(name);
  config.quota.bytes = quota;
  config.min_free = Quota{};
  return config;
}

inline std::string path_of_copy(const Tier& tier, Ref entry) {
  char name[kCopyNameBytes];
  copy_name(entry, name);
  return tier.copies_path() + "/" + name;
}

// With the times that the file has.
inline Status publish(Tier* tier, const Fd& file, Ref entry) {
  struct stat st = {};
  EXPECT_EQ(::fstat(file.get(), &st), 0);
  return tier->publish(file, entry, st, &st);
}
inline Status publish_part(Tier* tier, const Fd& file, Ref entry) {
  struct stat st = {};
  EXPECT_EQ(::fstat(file.get(), &st), 0);
  return tier->publish_part(file, entry, st, &st);
}

// Files below the tier's directory, whatever their names, but for the nameless ones of root's store.
inline int files_on(const Tier& tier) {
  int files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(tier.copies_path()))
    files += !entry.is_directory() && entry.path().parent_path().filename() != "new";
  return files;
}

}  // namespace monarch
