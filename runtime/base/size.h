// SPDX-License-Identifier: Apache-2.0
// Sizes as Slurm and admins write them: 512M, 1.5T; K, M, G, T and P are powers of 1024.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/base/result.h"

namespace monarch {

inline constexpr uint64_t kSpaceBlock = 4096;  // in which space is counted

// a - b, or 0 if b is larger.
inline uint64_t sub_sat(uint64_t a, uint64_t b) { return a - std::min(a, b); }

// Bytes of "10G", "512K", "1.5T", "4096"; a B or iB may follow the unit.
Result<uint64_t> parse_size(std::string_view text);

// "12.4G": three significant digits and a unit; plain bytes below 1K.
std::string format_size(uint64_t bytes);

}  // namespace monarch
