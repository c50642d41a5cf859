// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/result.h"

namespace monarch {

// Removes the tree at `name` in the directory `dirfd`, `name` itself included: one that Monarch made, of
// whatever size, but few levels. Every step is by descriptor: follows no symbolic link, and never enters a
// mount. A missing tree is success. What fails is passed over; the first error is returned, with the path in
// the tree. Large trees are removed by several threads: on some file systems an unlink waits for milliseconds
// (dev/bench removal measures it). The threads end before it returns.
Status remove_tree(int dirfd, const std::string& name);

// What becomes of a file's contents before it is removed: whoever has it open keeps what is left.
enum class Contents { kKeep, kCut };

// The same of all that is in the directory `dirfd`, which may have been opened with O_PATH.
Status empty_directory(int dirfd, Contents contents = Contents::kKeep);

// What a tree occupies, of its own: of a file with several names a part for each.
struct Usage {
  uint64_t bytes = 0;
  uint64_t files = 0;     // directories included, the topmost left out
  bool complete = false;  // all of it was seen in time
};

// Measures what is in the directory `dirfd`, which may have been opened with O_PATH, for at most
// `patience_ms`. Changes nothing, and keeps to the tree as remove_tree() does.
Usage measure_tree(int dirfd, int patience_ms);

}  // namespace monarch
