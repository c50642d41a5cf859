// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace monarch {

// `path` made absolute against the working directory, without doubled or trailing slashes and without
// "." components. Symbolic links and ".." stay as they are.
Result<std::string> absolute_path(std::string_view path);

// realpath(3).
Result<std::string> real_path(const std::string& path);

// Whether `path` is `dir` or below it, as text; both absolute and clean.
bool is_below(std::string_view path, std::string_view dir);

// Removes the tree at `name` in the directory `dirfd`, `name` itself included, whatever its depth, names and
// permissions: descriptors and recursion are bounded, since what lies deep is moved up first. Follows no
// symbolic link, leaves other file systems alone. A missing tree is success. What fails is passed over; the
// first error is returned.
Status remove_tree(int dirfd, const std::string& name);

}  // namespace monarch
