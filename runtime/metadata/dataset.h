// SPDX-License-Identifier: Apache-2.0
// The declared dataset: its roots on the PFS, and under which paths tasks reach them.
#pragma once

#include <string>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/metadata/catalog.h"

namespace monarch {

struct DatasetRoot {
  std::string path;  // realpath(3)
  Fd fd;             // the directory, O_PATH
  uint64_t dev = 0;
  // False: on FUSE, the names in the directory have other inode numbers than their files. Then the kernel
  // makes numbers up, and new ones whenever it has forgotten the old ones, so nobody could prove a file by
  // its number.
  bool numbers_stay = true;
};

struct Dataset {
  std::vector<DatasetRoot> roots;
  std::vector<PrefixView> prefixes;  // longest first
  std::string exclude;               // globs, with colons, of files that are no part of it

  // Opens the directories `paths` (absolute, clean). A directory inside another one on the same file
  // system becomes a prefix of that one's root; a path that leads through a symbolic link is known by
  // both names.
  static Result<Dataset> open(const std::vector<std::string>& paths);

  std::vector<RootView> root_views() const;
  // Whether `exclude` names a file, in any of the ways in which tasks may name it.
  bool excludes(uint32_t root, const std::string& below) const;
};

}  // namespace monarch
