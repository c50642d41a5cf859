// SPDX-License-Identifier: Apache-2.0
// runtime/base: escaped(), and the log that applies it.
#include "runtime/base/escape.h"

#include <gtest/gtest.h>

#include "runtime/base/log.h"
#include "tests/logged.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

TEST(Escape, WhatIsPlainStaysAndNothingMakesAnotherLineOrMovesTheCursor) {
  for (const char* plain : {"", "open /scratch/x: Permission denied", "Größe 数据 🙂"})
    EXPECT_EQ(escaped(plain), plain);
  using namespace std::string_view_literals;
  for (const auto& [text, out] : std::vector<std::pair<std::string_view, std::string>>{
           {"x\n2026-11-22 root: all is well\r", "x\\n2026-11-22 root: all is well\\x0d"},
           {"\0\t\x1b[2J\x7f"sv, "\\x00\\t\\x1b[2J\\x7f"},
           {"\xc2\x85|\xe2\x80\xa8|\xe2\x80\xae", "\\xc2\\x85|\\xe2\\x80\\xa8|\\xe2\\x80\\xae"},
           {"a\\nb", "a\\\\nb"},
           // Bytes that are not UTF-8:
           {"\xff\xfe", "\\xff\\xfe"},
           {"\xc3", "\\xc3"},                              // cut in the middle
           {"\xc0\x8a", "\\xc0\\x8a"},                     // a line break in two bytes
           {"\xe0\x80\x8a", "\\xe0\\x80\\x8a"},            // and in three
           {"\xed\xa0\x80", "\\xed\\xa0\\x80"},            // half of a pair
           {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}})  // beyond the last character
    EXPECT_EQ(escaped(text), out);
}

TEST(Escape, IsCutAtWholeCharacters) {
  EXPECT_EQ(escaped("abcdefgh", 8), "abcdefgh");
  EXPECT_EQ(escaped("abcdefghi", 8), "abcde...");
  EXPECT_EQ(escaped("abc\n\n\n", 8), "abc\\n...");
  EXPECT_EQ(escaped("ööööö", 8), "öö...");
  for (size_t most = 0; most < 12; ++most) EXPECT_LE(escaped("ö\n\xff ö\n\xff", most).size(), most);
  EXPECT_EQ(escaped(std::string(1 << 20, '\n')).size(), kMostEscaped - 1);
}

TEST(Escape, TheLogAppliesItToEachMessage) {
  const Scratch scratch;
  const auto before = spdlog::default_logger();
  ASSERT_TRUE(open_log(scratch / "log", "info").ok());
  spdlog::info("JobId={} clean up: remove {}", 7, "x\n2026-11-22T00:00:00.000 monarchd[1]: info: JobId=8");
  spdlog::set_default_logger(before);
  const std::string text = contents(scratch / "log");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("remove x\\n2026-11-22T00:00:00.000"), std::string::npos) << text;
}

}  // namespace
}  // namespace monarch
