// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/escape.h"

#include <cstdint>

namespace monarch {
namespace {

// The bytes of the UTF-8 character that `text` begins with, and which one it is; 0: it begins with none.
size_t decode(std::string_view text, uint32_t* character) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t bytes = lead < 0x80   ? 1
                       : lead < 0xc2 ? 0
                       : lead < 0xe0 ? 2
                       : lead < 0xf0 ? 3
                       : lead < 0xf5 ? 4
                                     : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  *character = bytes == 1 ? lead : lead & (0x7fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    *character = *character << 6 | (byte(i) & 0x3f);
  }
  const uint32_t c = *character;
  const bool other_form = (bytes == 3 && c < 0x800) || (bytes == 4 && (c < 0x10000 || c > 0x10ffff));
  return other_form || (c >= 0xd800 && c < 0xe000) ? 0 : bytes;
}

bool is_plain(uint32_t c) {
  if (c < 0x20 || (c >= 0x7f && c < 0xa0) || c == '\\') return false;
  const bool direction = c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) ||
                         (c >= 0x2066 && c <= 0x2069);
  const bool line = c == 0x2028 || c == 0x2029;
  return !direction && !line;
}

std::string escape(std::string_view bytes) {
  static constexpr char kDigits[] = "0123456789abcdef";
  if (bytes == "\n") return "\\n";
  if (bytes == "\t") return "\\t";
  if (bytes == "\\") return "\\\\";
  std::string out;
  for (const char c : bytes) {
    const auto value = static_cast<unsigned char>(c);
    out += {'\\', 'x', kDigits[value >> 4], kDigits[value & 15]};
  }
  return out;
}

}  // namespace

bool is_utf8(std::string_view text) {
  uint32_t character = 0;
  while (!text.empty()) {
    const size_t bytes = decode(text, &character);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

std::string escaped(std::string_view text, size_t most) {
  static constexpr std::string_view kCut = "...";
  std::string out;
  size_t whole = 0;  // up to there the sign of a cut has room behind it
  while (!text.empty()) {
    uint32_t character = 0;
    const size_t bytes = decode(text, &character);
    const std::string_view next = text.substr(0, bytes ? bytes : 1);
    const std::string shown = bytes && is_plain(character) ? std::string(next) : escape(next);
    if (out.size() + shown.size() > most) {
      out.resize(whole);
      return out.append(kCut.substr(0, most - whole));
    }
    out += shown;
    if (out.size() + kCut.size() <= most) whole = out.size();
    text.remove_prefix(next.size());
  }
  return out;
}

}  // namespace monarch
