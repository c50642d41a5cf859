// SPDX-License-Identifier: Apache-2.0
// Numbers in texts.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

namespace monarch {

// The number that is all of `text`, as std::from_chars reads it; nothing: it is none, or out of its type's
// range.
template <typename Number>
std::optional<Number> to_number(std::string_view text) {
  Number number{};
  // cppcheck-suppress invalidLifetime
  const char* end = text.data() + text.size();
  // cppcheck-suppress invalidLifetime
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && rest == end ? std::optional<Number>(number) : std::nullopt;
}

}  // namespace monarch
