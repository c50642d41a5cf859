// SPDX-License-Identifier: Apache-2.0
// Whom a node asks, and whom it leaves alone.
#include "runtime/peer/members.h"

#include <gtest/gtest.h>

namespace monarch {
namespace {

constexpr int64_t kSecond = Members::kSecond;
constexpr NodeIndex kOwn = 2;
constexpr uint32_t kNodes = 8;

class MembersTest : public ::testing::Test {
 protected:
  // A file whose home and deputy are neither this node.
  static FileKey foreign() {
    for (int i = 0;; ++i) {
      const FileKey key = file_key(0, std::to_string(i));
      if (home_of(key, kNodes) != kOwn && deputy_of(key, kNodes) != kOwn) return key;
    }
  }
  // From when on the node is asked again, to a tenth of a second.
  int64_t alone_for(NodeIndex node, int64_t from) const {
    int64_t later = from;
    while (!members.can_ask(node, later)) later += kSecond / 10;
    return later - from;
  }
  Members members{kOwn, kNodes};
  const FileKey key = foreign();
  const NodeIndex home = home_of(key, kNodes), deputy = deputy_of(key, kNodes);
};

TEST_F(MembersTest, TheDeputyIsAskedWhileTheHomeIsNotToBeReached) {
  EXPECT_EQ(members.keeper_of(key, 0), home);
  members.unreachable(home, 0);
  EXPECT_EQ(members.keeper_of(key, 0), deputy);
  members.late(deputy, 0);
  EXPECT_EQ(members.keeper_of(key, 0), std::nullopt);
  EXPECT_EQ(members.keeper_of(key, kSecond), home);
}

TEST_F(MembersTest, WhoCannotBeReachedIsTriedEverMoreSeldom) {
  int64_t now = 7;
  for (const int seconds : {1, 2, 4, 8, 16, 30, 30}) {
    members.unreachable(home, now);
    EXPECT_EQ(alone_for(home, now), seconds * kSecond);
    now += seconds * kSecond;
  }
  EXPECT_FALSE(members.met(home, 1)) << "the first time";
  members.unreachable(home, now);
  EXPECT_EQ(alone_for(home, now), kSecond);
}

TEST_F(MembersTest, WhoRefusesIsTriedAgainSoon) {
  int64_t now = 0;
  for (const int64_t later : {kSecond / 20, kSecond / 10}) {
    for (int i = 0; i < 3; ++i) members.unreachable(home, now, true);  // by three threads
    EXPECT_FALSE(members.can_ask(home, now + later - 1));
    EXPECT_TRUE(members.can_ask(home, now += later));
  }
  members.unreachable(home, now);
  EXPECT_EQ(alone_for(home, now), kSecond) << "it is silent now";
}

TEST_F(MembersTest, WhoIsLateIsSuspectForLonger) {
  int64_t now = 7;
  for (const int seconds : {5, 10, 20, 40, 80, 160, 300, 300}) {
    members.late(home, now);
    members.late(home, now + kSecond);  // another question of the same time
    EXPECT_EQ(alone_for(home, now), seconds * kSecond);
    now += seconds * kSecond;
  }
  members.answered(home);
  EXPECT_TRUE(members.can_ask(home, now));
  members.late(home, now);
  members.unreachable(home, now);
  EXPECT_EQ(alone_for(home, now), 5 * kSecond) << "not sooner";
}

TEST_F(MembersTest, WhoAnswersAfterAllIsAskedUnlessItWasLateAgain) {
  members.late(home, 0);
  members.answered_late(home);
  EXPECT_TRUE(members.can_ask(home, 1));
  members.late(home, 1);
  members.answered_late(home);
  EXPECT_EQ(alone_for(home, 1), 10 * kSecond);
  members.answered(home);
  members.late(home, 2);
  members.unreachable(home, 2);
  members.answered_late(home);
  EXPECT_EQ(alone_for(home, 2), 5 * kSecond) << "it is gone since";
}

TEST_F(MembersTest, WhoLiesThreeTimesIsNotBelievedAgain) {
  EXPECT_FALSE(members.wrong(home));
  members.answered(home);
  EXPECT_FALSE(members.wrong(home));
  EXPECT_TRUE(members.can_ask(home, 0));
  EXPECT_TRUE(members.wrong(home));
  EXPECT_FALSE(members.wrong(home)) << "that was told";
  members.answered(home);
  EXPECT_FALSE(members.can_ask(home, 1000 * kSecond));
  EXPECT_EQ(members.keeper_of(key, 0), deputy);
}

TEST_F(MembersTest, ANewAgentIsToldFromTheOldOne) {
  EXPECT_FALSE(members.met(home, 5));
  EXPECT_FALSE(members.met(home, 5));
  EXPECT_TRUE(members.met(home, 6));
  EXPECT_FALSE(members.met(deputy, 5));
}

}  // namespace
}  // namespace monarch
