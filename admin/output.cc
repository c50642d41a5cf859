// SPDX-License-Identifier: Apache-2.0
#include "admin/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string_view>

#include "runtime/base/escape.h"

namespace monarch::admin {
namespace {

bool has_colours() {
  const char* no = ::getenv("NO_COLOR");
  const char* terminal = ::getenv("TERM");
  return ::isatty(STDOUT_FILENO) && !(no && *no) && terminal && std::string_view(terminal) != "dumb";
}

// What a reader sees of it: not the bytes that set a colour, and a character of UTF-8 once.
size_t width(const std::string& text) {
  size_t n = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\033')
      i = text.find('m', i);
    else if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80)
      ++n;
  }
  return n;
}

}  // namespace

int fail(const char* command, const std::string& text) {
  std::fprintf(stderr, "monarchctl %s: %s\n", command, escaped(text).c_str());
  return kFailure;
}

const char* remedy_for_dataset(int code) {
  return code == EACCES ? "give yourself the right to list it (chmod), or ask its owner"
                        : "name its directory";
}

void print_json(const Json& json) { std::puts(json.dump_ascii(2).c_str()); }

Status write_page(const std::string& file, const std::string& text) {
  if (file == "-") {
    std::cout << text << std::flush;
    return std::cout ? Status() : Status(errno_error("write the page"));
  }
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out) return errno_error("write " + file);
  return {};
}

bool is_output_written() {
  errno = 0;
  const bool written = std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
  if (!written && errno == 0) errno = EIO;
  return written;
}

std::string word(const std::string& text) {
  std::string out;
  for (const char c : escaped(text)) out += c == ' ' ? "\\040" : std::string(1, c);
  return out.empty() ? "-" : out;
}

void print_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.empty() ? 0 : rows[0].size());
  for (const auto& row : rows)
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i + 1 < row.size(); ++i)
      line += row[i] + std::string(widths[i] - width(row[i]) + 2, ' ');
    std::puts((line + row.back()).c_str());
  }
}

void print_fact(const char* what, const std::string& text) { std::printf("%-11s %s\n", what, text.c_str()); }

std::string counted(uint64_t n, const char* one, const char* several) {
  const std::string number = std::to_string(n) + " ";
  return n == 1 ? number + one : several ? number + several : number + one + "s";
}

std::string time_text(uint64_t seconds) {
  char digits[64];
  std::snprintf(digits, sizeof digits, "%llu:%02u:%02u", static_cast<unsigned long long>(seconds / 3600),
                static_cast<unsigned>(seconds / 60 % 60), static_cast<unsigned>(seconds % 60));
  return digits;
}

std::string paint(Colour colour, const std::string& text) {
  static const bool on = has_colours();
  if (!on) return text;
  constexpr const char* kCodes[] = {"32", "33", "31;1", "1"};
  return std::string("\033[") + kCodes[static_cast<size_t>(colour)] + "m" + text + "\033[0m";
}

}  // namespace monarch::admin
