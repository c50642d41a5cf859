// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/size.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace monarch {

Result<uint64_t> parse_size(std::string_view text) {
  const auto fail = [&] {
    return bad_input("'" + std::string(text) + "' is not a size; write for example 500M, 10G or 1.5T");
  };
  double number = 0;
  const char* end = text.data() + text.size();
  const auto [rest, ec] = std::from_chars(text.data(), end, number, std::chars_format::fixed);
  if (ec != std::errc() || !(number >= 0)) return fail();
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  double factor = 1;
  if (!unit.empty()) {
    constexpr std::string_view kUnits = "KMGTP";
    const size_t at = kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
    if (at == std::string_view::npos) return fail();
    factor = std::pow(1024.0, static_cast<double>(at + 1));
    unit.remove_prefix(1);
    if (!unit.empty() && unit != "B" && unit != "iB") return fail();
  }
  const double bytes = number * factor;
  if (!(bytes < 9.2e18)) return fail();
  return static_cast<uint64_t>(bytes);
}

std::string format_size(uint64_t bytes) {
  if (bytes < 1024) return std::to_string(bytes);
  constexpr char kUnits[] = "KMGTPE";
  double value = static_cast<double>(bytes) / 1024;
  int unit = 0;
  while (value >= 999.5 && unit < 5) {
    value /= 1024;
    ++unit;
  }
  char out[32];
  const int decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  std::snprintf(out, sizeof out, "%.*f%c", decimals, value, kUnits[unit]);
  return out;
}

}  // namespace monarch
