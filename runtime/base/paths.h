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

}  // namespace monarch
