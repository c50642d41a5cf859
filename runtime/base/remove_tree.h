// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/base/result.h"

namespace monarch {

// Removes the tree at `name` in the directory `dirfd`, `name` itself included, whatever its size, depth,
// names and permissions: descriptors, memory and recursion are bounded. Follows no symbolic link, leaves
// other file systems alone. A missing tree is success. What fails is passed over; the first error is
// returned. Large trees are removed by several threads: on some file systems an unlink waits for milliseconds
// (doc/design.md has figures). The threads end before it returns.
Status remove_tree(int dirfd, const std::string& name);

}  // namespace monarch
