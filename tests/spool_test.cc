// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/spool.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

TEST(Spool, ALineIsTriedEverMoreSeldom) {
  EXPECT_EQ(next_try(1000, 1000), 1001);
  EXPECT_EQ(next_try(1000, 1001), 1002);
  EXPECT_EQ(next_try(1000, 1002), 1004);
  EXPECT_EQ(next_try(1000, 1100), 1200);
  EXPECT_EQ(next_try(1000, 1300), 1600);
  EXPECT_EQ(next_try(1000, 9000), 9300) << "at most five minutes later";
  EXPECT_EQ(next_try(9000, 1000), 1001) << "the clock was set back";
}

std::vector<Spooled> lines(int count, int64_t first) {
  std::vector<Spooled> all;
  for (int i = 0; i < count; ++i) all.push_back({"l" + std::to_string(i), first + i, 0});
  return all;
}

TEST(Spool, OldLinesAreDropped) {
  const SpoolConfig config{2, 100};
  const int64_t now = 1000000;
  const std::vector<Spooled> out = excess(
      {{"young", now - 10, 0}, {"old", now - 2 * 86400 - 1, 0}, {"just", now - 2 * 86400, 0}}, config, now);
  ASSERT_EQ(out.size(), 1u);
  EXPECT_EQ(out[0].name, "old");
}

TEST(Spool, OfTooManyTheOldestAreDropped) {
  const SpoolConfig config{7, 100};
  EXPECT_TRUE(excess(lines(100, 5000), config, 6000).empty());
  const std::vector<Spooled> out = excess(lines(101, 5000), config, 6000);
  ASSERT_EQ(out.size(), 6u) << "a twentieth is free afterwards";
  EXPECT_EQ(out[0].name, "l0");
  EXPECT_EQ(out[5].name, "l5");
  EXPECT_TRUE(excess({}, config, 6000).empty());
}

}  // namespace
}  // namespace monarch
