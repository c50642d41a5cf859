// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace monarch {

constexpr size_t kMostEscaped = 4096;

// `text` as one line that shows what is in it, whoever chose it: control characters, line separators,
// characters that change the direction of what follows, backslashes and bytes that are not UTF-8 become \n,
// \t, \\ or \xNN (of each of their bytes). At most `most` bytes; "..." stands for what was cut. For logs,
// answers of one line and terminals. open_log() applies it to each message.
std::string escaped(std::string_view text, size_t most = kMostEscaped);

// Whether all of it is UTF-8.
bool is_utf8(std::string_view text);

}  // namespace monarch
