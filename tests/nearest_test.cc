// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/nearest.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(Nearest, IsAWordWithATypingErrorOrTwo) {
  const std::vector<std::string> known = {"peer", "status", "top", "threads", "walk_threads"};
  for (const auto& [word, meant] :
       std::vector<std::pair<std::string, std::string>>{{"stauts", "status"},
                                                        {"stats", "status"},
                                                        {"statuses", "status"},
                                                        {"tpo", "top"},
                                                        {"pear", "peer"},
                                                        {"thread", "threads"},
                                                        {"walk-threads", "walk_threads"},
                                                        {"tier", ""},
                                                        {"report", ""},
                                                        {"p", ""},
                                                        {"", ""},
                                                        {std::string(1 << 20, 'x'), ""}})
    EXPECT_EQ(nearest(word, known), meant) << word;
  EXPECT_EQ(nearest("abcd1", {"abcd23", "abcd2", "abcd3"}), "abcd2") << "the nearest, of several the first";
  EXPECT_EQ(nearest("top", known), "") << "is known";
}

}  // namespace
}  // namespace monarch
