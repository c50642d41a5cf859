// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

#include "runtime/base/result.h"

namespace monarch {

// Writes a file of a directory anew, by another one that takes its name: a reader sees the one
// or the other. Others may put anything there at any time: no link is followed, and nothing is waited for.
// `mode` is as open(2)'s. If it fails, the old file stays.
Status replace_file(int dir, const std::string& name, const void* data, size_t bytes, mode_t mode);

}  // namespace monarch
