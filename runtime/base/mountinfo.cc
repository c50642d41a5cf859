// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/mountinfo.h"

#include <cstdlib>
#include <fstream>
#include <string_view>
#include <vector>

namespace monarch {
namespace {

// Space, tab, newline and backslash are \ooo there.
std::string unescaped(std::string_view text) {
  std::string out;
  const auto octal = [&](size_t i) { return i < text.size() && text[i] >= '0' && text[i] <= '7'; };
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && octal(i + 1) && octal(i + 2) && octal(i + 3)) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

// One blank between two words: a word may be empty.
std::vector<std::string> words_of(const std::string& line) {
  std::vector<std::string> words(1);
  for (const char c : line) {
    if (c == ' ')
      words.emplace_back();
    else
      words.back() += c;
  }
  return words;
}

}  // namespace

bool parse_mount_line(const std::string& line, MountLine* out) {
  const std::vector<std::string> words = words_of(line);
  size_t dash = 6;
  while (dash < words.size() && words[dash] != "-") ++dash;
  if (dash + 3 >= words.size()) return false;
  *out = {std::atoll(words[0].c_str()), std::atoll(words[1].c_str()), words[2],
          unescaped(words[3]),          unescaped(words[4]),          words[5],
          unescaped(words[dash + 1]),   unescaped(words[dash + 2]),   words[dash + 3]};
  return true;
}

bool find_mount(int64_t id, MountLine* out) {
  std::ifstream in("/proc/self/mountinfo");
  for (std::string line; std::getline(in, line);)
    if (parse_mount_line(line, out) && out->id == id) return true;
  return false;
}

bool has_mount_option(const std::string& options, const std::string& option) {
  return ("," + options + ",").find("," + option + ",") != std::string::npos;
}

}  // namespace monarch
