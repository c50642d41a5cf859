// SPDX-License-Identifier: Apache-2.0
// Who is told to read a file, and who to get it from whom.
#include "runtime/peer/directory.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace monarch {
namespace {

constexpr int64_t kMs = 1'000'000, kLeaseMs = Directory::kLeaseNs / kMs;
constexpr size_t kMany = 1000;

FileKey key(int n) { return file_key(0, "f" + std::to_string(n)); }
FileIdentity identity(uint64_t bytes = 100) { return {bytes, 1, 2, 3, 4}; }

class DirectoryTest : public ::testing::Test {
 protected:
  uint64_t lease(const Directory::Answer& answer) const {
    const Read* read = std::get_if<Read>(&answer);
    EXPECT_TRUE(read) << "answer " << answer.index();
    return read ? read->lease : 0;
  }
  Directory::Answer want(int n, NodeIndex asks, int64_t now_ms = 0) {
    return directory.want(key(n), asks, now_ms * kMs);
  }
  void done(int n, NodeIndex reader, uint64_t lease_id, ReadResult result) {
    directory.done({key(n), lease_id, result, identity()}, reader);
  }
  std::vector<NodeIndex> holders(const Directory::Answer& answer) const {
    const Have* have = std::get_if<Have>(&answer);
    EXPECT_TRUE(have) << "answer " << answer.index();
    return have ? have->holders : std::vector<NodeIndex>();
  }
  Directory directory{kMany, 1};
};

TEST(KeyTest, EveryNodeHasItsShareOfHomesAndDeputies) {
  constexpr int kFiles = 20000;
  for (const uint32_t nodes : {1u, 2u, 3u, 8u, 100u}) {
    std::vector<int> homes(nodes), deputies(nodes);
    std::set<std::pair<NodeIndex, NodeIndex>> pairs;
    for (int i = 0; i < kFiles; ++i) {
      const NodeIndex home = home_of(key(i), nodes), deputy = deputy_of(key(i), nodes);
      ASSERT_TRUE(home < nodes && deputy < nodes && (nodes == 1 || home != deputy));
      ++homes[home];
      ++deputies[deputy];
      pairs.emplace(home, deputy);
    }
    const double share = 1.0 * kFiles / nodes;
    for (const std::vector<int>& all : {homes, deputies})
      for (const int files : all) EXPECT_NEAR(files, share, share / 2) << "of " << nodes;
    EXPECT_TRUE(nodes != 8 || pairs.size() == 8 * 7) << "all others are a home's deputies";
  }
  for (const FileKey& other : {file_key(2, "a/b"), file_key(1, "a/c")}) EXPECT_NE(file_key(1, "a/b"), other);
}

TEST_F(DirectoryTest, TheFirstOneReadsAndTheOthersFollow) {
  const uint64_t id = lease(want(1, 5));
  EXPECT_NE(id, 0u);
  EXPECT_EQ(std::get<Busy>(want(1, 6)).reader, 5u);
  done(1, 5, id, ReadResult::kHeld);
  const Directory::Answer answer = want(1, 6);
  EXPECT_EQ(holders(answer), std::vector<NodeIndex>{5});
  EXPECT_EQ(std::get<Have>(answer).identity, identity());
  EXPECT_EQ(directory.read_again(), 0u);
}

TEST_F(DirectoryTest, AReaderThatMovesKeepsItsLease) {
  const uint64_t id = lease(want(1, 5, 0));
  for (int64_t now = 1500; now <= 9000; now += 1500) directory.progress(key(1), 5, now * kMs);
  EXPECT_EQ(std::get<Busy>(want(1, 6, 9000 + kLeaseMs - 1)).reader, 5u);
  directory.progress(key(1), 6, (9000 + kLeaseMs - 1) * kMs);
  directory.progress(key(2), 5, (9000 + kLeaseMs - 1) * kMs);
  EXPECT_NE(lease(want(1, 6, 9000 + kLeaseMs)), id);
  EXPECT_EQ(directory.read_again(), 1u);
}

TEST_F(DirectoryTest, AReaderThatCannotBeReachedHasNoLeaseUntilItMoves) {
  (void)want(1, 5, 0);
  (void)want(2, 6, 0);
  directory.announce({key(3), 5, identity()});
  directory.silent(5, 100 * kMs);
  EXPECT_EQ(std::get<Busy>(want(2, 7, 100)).reader, 6u);
  EXPECT_EQ(holders(want(3, 7, 100)), std::vector<NodeIndex>{5});
  directory.progress(key(1), 5, 100 * kMs);
  EXPECT_EQ(std::get<Busy>(want(1, 7, 100)).reader, 5u);
  directory.silent(5, 200 * kMs);
  (void)lease(want(1, 7, 200));
}

TEST_F(DirectoryTest, ALostLeaseStaysLost) {
  const uint64_t first = lease(want(1, 5, 0)), second = lease(want(1, 6, kLeaseMs));
  EXPECT_EQ(directory.read_again(), 1u);
  directory.progress(key(1), 5, (2 * kLeaseMs - 100) * kMs);
  EXPECT_EQ(std::get<Busy>(want(1, 7, 2 * kLeaseMs - 1)).reader, 6u);
  done(1, 5, first, ReadResult::kNotHeld);
  EXPECT_EQ(std::get<Busy>(want(1, 7, 2 * kLeaseMs - 1)).reader, 6u) << "the end of another one's lease";
  EXPECT_NE(lease(want(1, 7, 2 * kLeaseMs)), second);
}

TEST_F(DirectoryTest, WhatIsReadByAnotherNodesLeaseIsFollowedUnlessItIsKnown) {
  directory.reading({key(1), 5, 77}, 0);
  directory.progress(key(1), 5, 1500 * kMs);
  EXPECT_EQ(std::get<Busy>(want(1, 6, 3400)).reader, 5u);
  directory.reading({key(1), 6, 78}, 3400 * kMs);
  EXPECT_EQ(std::get<Busy>(want(1, 7, 3400)).reader, 5u);
  done(1, 5, 77, ReadResult::kHeld);
  directory.reading({key(1), 6, 78}, 3400 * kMs);
  EXPECT_EQ(holders(want(1, 7, 3400)), std::vector<NodeIndex>{5});
  directory.reading({key(2), 5, 77}, 0);
  done(2, 5, 77, ReadResult::kNotHeld);
  EXPECT_EQ(directory.size(), 1u);
}

TEST_F(DirectoryTest, HoldersThatDisagreeAreNotBelieved) {
  directory.announce({key(1), 5, identity(100)});
  directory.announce({key(1), 6, identity(100)});
  directory.announce({key(1), 5, identity(100)});
  EXPECT_EQ(holders(want(1, 7)), (std::vector<NodeIndex>{5, 6})) << "each is one";
  directory.announce({key(1), 7, identity(101)});
  EXPECT_TRUE(std::holds_alternative<Pass>(want(1, 8)));
}

TEST_F(DirectoryTest, WhatTheLastHolderLostIsReadAgain) {
  for (const NodeIndex holder : {4u, 5u, 6u}) directory.announce({key(1), holder, identity()});
  EXPECT_EQ(holders(want(1, 4)), (std::vector<NodeIndex>{5, 6})) << "who asks has it no longer";
  directory.lost(key(1), 7);
  directory.lost(key(2), 5);
  EXPECT_EQ(holders(want(1, 8)), (std::vector<NodeIndex>{5, 6}));
  directory.lost(key(1), 5);
  EXPECT_EQ(holders(want(1, 8)), std::vector<NodeIndex>{6});
  directory.lost(key(1), 6);
  EXPECT_EQ(directory.size(), 0u);
  EXPECT_NE(lease(want(1, 8)), 0u);
  directory.lost(key(1), 8);
  EXPECT_EQ(std::get<Busy>(want(1, 9)).reader, 8u) << "it is only reading";
}

TEST_F(DirectoryTest, ANodeThatIsGoneHoldsAndReadsNothing) {
  directory.announce({key(1), 5, identity()});
  directory.announce({key(2), 5, identity()});
  directory.announce({key(2), 6, identity()});
  (void)want(3, 5);
  (void)want(4, 6);
  directory.gone(5);
  EXPECT_EQ(directory.size(), 2u);
  EXPECT_NE(lease(want(1, 7)), 0u);
  EXPECT_EQ(holders(want(2, 7)), std::vector<NodeIndex>{6});
  EXPECT_NE(lease(want(3, 7)), 0u) << "at once, not after the lease";
  EXPECT_EQ(std::get<Busy>(want(4, 7)).reader, 6u);
  EXPECT_EQ(directory.read_again(), 0u);
}

// Who follows a reader may have it all before the reader has said so.
TEST_F(DirectoryTest, AnnouncedWhileItIsReadItIsGotFromTheHolder) {
  const uint64_t id = lease(want(1, 5));
  directory.announce({key(1), 6, identity()});
  EXPECT_EQ(directory.read_again(), 0u);
  EXPECT_EQ(holders(want(1, 7)), std::vector<NodeIndex>{6});
  directory.progress(key(1), 5, 0);
  done(1, 5, id, ReadResult::kHeld);
  EXPECT_EQ(holders(want(1, 7)), (std::vector<NodeIndex>{6, 5}));
}

TEST_F(DirectoryTest, WhatIsKnownOfAFile) {
  NodeIndex reader = 0;
  int64_t until = 0;
  const auto known = [&](int n, int64_t now) { return directory.known(key(n), now, &reader, &until); };
  EXPECT_EQ(known(1, 0), Directory::Known::kNo);
  directory.announce({key(1), 5, identity(1)});
  EXPECT_EQ(known(1, 0), Directory::Known::kYes);
  directory.reading({key(2), 7, 0}, 100);
  EXPECT_EQ(known(2, 99 + Directory::kLeaseNs), Directory::Known::kYes);
  EXPECT_EQ(known(2, 100 + Directory::kLeaseNs), Directory::Known::kSilent);
  EXPECT_EQ(reader, 7u);
  EXPECT_EQ(until, 100 + Directory::kLeaseNs);
}

TEST_F(DirectoryTest, NobodyEndsWhatIsNotItsOwn) {
  const uint64_t before = lease(want(1, 5)), id = lease(want(1, 5));
  done(1, 5, before, ReadResult::kNotHeld);
  EXPECT_EQ(std::get<Busy>(want(1, 7)).reader, 5u) << "it reads by another lease";
  done(1, 6, id, ReadResult::kNotHeld);
  EXPECT_EQ(std::get<Busy>(want(1, 7)).reader, 5u) << "that is another one's";
  directory.announce({key(2), 5, identity()});
  done(2, 0, 0, ReadResult::kNotHeld);
  EXPECT_EQ(holders(want(2, 7)), std::vector<NodeIndex>{5}) << "nobody reads it";
}

TEST_F(DirectoryTest, WithoutRoomForEntriesWhoAsksReads) {
  Directory small(2, 1);
  EXPECT_NE(lease(small.want(key(1), 5, 0)), 0u);
  small.announce({key(2), 5, identity()});
  small.announce({key(3), 5, identity()});
  small.reading({key(3), 5, 77}, 0);
  EXPECT_EQ(small.size(), 2u);
  for (const int n : {3, 4}) EXPECT_EQ(lease(small.want(key(n), 6, 0)), 0u) << n;
  small.done({key(3), 0, ReadResult::kHeld, identity()}, 6);
  small.done({key(3), 0, ReadResult::kNotHeld, {}}, 6);
  EXPECT_EQ(small.size(), 2u);
  EXPECT_EQ(holders(small.want(key(2), 6, 0)), std::vector<NodeIndex>{5}) << "what it knows it knows";
  small.announce({key(2), 6, identity(9)});
  EXPECT_TRUE(std::holds_alternative<Pass>(small.want(key(2), 6, 0)));
}

}  // namespace
}  // namespace monarch
