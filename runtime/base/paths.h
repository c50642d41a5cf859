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

// Where another part of Monarch is: beside this program in a build tree, else where it was installed, found
// from where this program is, so that an installed tree can be moved; else in `installed`. Nothing of it
// comes from the environment.
std::string part_of_monarch(const char* name, const char* from_bin, const char* installed);

// Whether `path` is `dir` or below it, as text; both absolute and clean.
bool is_below(std::string_view path, std::string_view dir);

}  // namespace monarch
