// SPDX-License-Identifier: Apache-2.0
#include "runtime/agent/grant_watch.h"

#include <poll.h>

#include "tests/scratch.h"

namespace monarch {
namespace {

class GrantWatchTest : public ::testing::Test {
 protected:
  // As root does it: a whole file takes the place of the last.
  void grant(const std::string& text) const {
    scratch_.file("grants.new", text);
    std::filesystem::rename(scratch_ / "grants.new", file_);
  }
  static bool is_told(const GrantWatch& watch) {
    pollfd p = {watch.fd(), POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
  }
  const Scratch scratch_;
  const std::string file_ = scratch_ / "grants";
};

TEST_F(GrantWatchTest, WithoutAFileNothingIsWaitedFor) {
  GrantWatch watch("");
  EXPECT_EQ(watch.fd(), -1);
  EXPECT_EQ(watch.wait_ms(), -1);
  EXPECT_FALSE(watch.look());
  EXPECT_EQ(watch.wait_ms(), -1);
}

TEST_F(GrantWatchTest, EachChangeIsToldOnce) {
  grant("nvme 5\n");
  GrantWatch watch(file_);
  auto seen = watch.look();
  ASSERT_TRUE(seen && seen->tiers.size() == 1);
  EXPECT_EQ(seen->tiers.at(0).quota, 5u);
  EXPECT_EQ(watch.wait_ms(), -1) << "the kernel tells";
  EXPECT_FALSE(is_told(watch));
  EXPECT_FALSE(watch.look());
  for (const uint64_t quota : {6u, 7u}) {
    grant("nvme " + std::to_string(quota) + "\n");
    EXPECT_TRUE(is_told(watch));
    seen = watch.look();
    ASSERT_TRUE(seen && seen->tiers.size() == 1);
    EXPECT_EQ(seen->tiers.at(0).quota, quota);
    EXPECT_FALSE(is_told(watch)) << "nothing new: an agent that is idle stays so";
    EXPECT_FALSE(watch.look());
  }
}

TEST_F(GrantWatchTest, AFileThatIsNotThereIsLookedForNowAndThen) {
  GrantWatch watch(file_);
  EXPECT_FALSE(watch.look());
  EXPECT_EQ(watch.wait_ms(), GrantWatch::kLookMs);
  std::filesystem::create_symlink(scratch_.file("elsewhere", "nvme 9\n"), file_);
  EXPECT_FALSE(watch.look()) << "a link is not followed";
  std::filesystem::remove(file_);
  grant("nvme 5\n");
  EXPECT_TRUE(watch.look());
  EXPECT_EQ(watch.wait_ms(), -1);
}

}  // namespace
}  // namespace monarch
