// SPDX-License-Identifier: Apache-2.0
// Whom a keeper of entries asks what there is, and for how long it says nothing.
#include "runtime/peer/gathering.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

namespace monarch {
namespace {

constexpr int64_t kPatience = patience::kPeerSilenceMs * Members::kMs, kSecond = Members::kSecond;
using Nodes = std::vector<NodeIndex>;

class GatheringTest : public ::testing::Test {
 protected:
  static constexpr NodeIndex kOwn = 1, kNodes = 5;
  // Whom it asks for a file of this home and deputy; whether it waits.
  Nodes ask(NodeIndex home, NodeIndex deputy, bool waits) {
    Nodes asked;
    looked.clear();
    EXPECT_EQ(gathering.waits(home, deputy, now, kPatience, &asked, &looked), waits);
    return asked;
  }
  bool hear(NodeIndex node, NodeIndex home, uint64_t next, uint8_t ended = 1, uint8_t earlier = 0,
            std::optional<uint64_t> from = {}, uint64_t log = 7) {
    Gathered gathered;
    gathered.share = home;
    gathered.from = from.value_or(gathering.question(home, node).from);
    gathered.log = log;
    gathered.next = next;
    gathered.ended = ended;
    gathered.earlier = earlier;
    more = false;
    return gathering.heard(node, gathered, now, &more);
  }
  bool hear_all(const Nodes& nodes, NodeIndex home, uint64_t next) {
    return std::all_of(nodes.begin(), nodes.end(), [&](NodeIndex node) { return hear(node, home, next); });
  }
  // As the deputy of node 3's files: it has asked all others, and knows what they hold.
  void know_all_as_deputy() {
    EXPECT_EQ(ask(3, kOwn, true), kOthers);
    EXPECT_TRUE(hear_all(kOthers, 3, 9));
    EXPECT_EQ(ask(3, kOwn, false), Nodes{});
  }
  const Nodes kOthers = {0, 1, 2, 4};
  int64_t now = 10 * kSecond;
  bool more = false;
  Nodes looked;  // whom it had looked at
  Members members{kOwn, kNodes};
  Gathering gathering{&members};
};

TEST_F(GatheringTest, AHomeAsksTheDeputyOfAFileFirst) {
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{3});
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{}) << "it has been asked";
  EXPECT_TRUE(hear(3, kOwn, 0));
  EXPECT_FALSE(more);
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{}) << "nobody went without it";
  EXPECT_EQ(ask(kOwn, 4, true), Nodes{4});
}

TEST_F(GatheringTest, WhatIsLongIsAskedForInParts) {
  (void)ask(kOwn, 3, true);
  EXPECT_EQ(gathering.question(kOwn, 3).from, 0u);
  EXPECT_TRUE(hear(3, kOwn, 256, 0));
  EXPECT_TRUE(more);
  EXPECT_EQ(gathering.question(kOwn, 3).from, 256u);
  EXPECT_EQ(gathering.question(kOwn, 3).log, 7u);
  now += kPatience - 1;
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{});
  EXPECT_TRUE(hear(3, kOwn, 300));
  EXPECT_FALSE(more);
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{});
}

TEST_F(GatheringTest, NobodyGoesRoundInCircles) {
  EXPECT_FALSE(hear(3, kOwn, 5)) << "nobody has asked for anything";
  EXPECT_FALSE(more);
  (void)ask(kOwn, 3, true);
  EXPECT_TRUE(hear(3, kOwn, 5, 0));
  EXPECT_FALSE(hear(3, kOwn, 5, 0)) << "it says the same again";
  EXPECT_FALSE(more);
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{});
}

// Honest nodes come to an end: a question takes them a millisecond.
TEST_F(GatheringTest, WhoHasEverMoreToSayIsNotHeardForEver) {
  (void)ask(kOwn, 3, true);
  uint64_t place = 0;
  const auto talks = [&] { return hear(3, kOwn, ++place, 0) && more; };
  const int64_t begin = now;
  while (talks() && now - begin < kSecond * 100) now += kSecond / 10;
  EXPECT_EQ((now - begin) / kSecond, Gathering::kLongestNs / kSecond);
  now += kPatience;
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{});
  EXPECT_FALSE(members.can_ask(3, now)) << "as if it were silent";
  now = members.alone_until(3);
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{3});
  EXPECT_EQ(gathering.question(kOwn, 3).from, place) << "it goes on";
}

// It was asked twice, since the first question seemed lost.
TEST_F(GatheringTest, AnAnswerThatComesTwiceIsOne) {
  (void)ask(kOwn, 3, true);
  EXPECT_TRUE(hear(3, kOwn, 256, 0));
  EXPECT_TRUE(hear(3, kOwn, 256, 0, 0, 0));
  EXPECT_FALSE(more);
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{}) << "the rest is still to come";
  EXPECT_TRUE(hear(3, kOwn, 300));
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{});
  EXPECT_TRUE(hear(3, kOwn, 400, 0));
  EXPECT_FALSE(more);
}

TEST_F(GatheringTest, AnotherLogIsBegunAnewAndAPartOfItIsNoneOfThisOne) {
  (void)ask(kOwn, 3, true);
  EXPECT_TRUE(hear(3, kOwn, 256, 0));
  constexpr uint64_t kAnother = 8;
  EXPECT_TRUE(hear(3, kOwn, 300, 1, 0, 256, kAnother));
  EXPECT_FALSE(more);
  EXPECT_EQ(gathering.question(kOwn, 3).log, 7u);
  EXPECT_EQ(gathering.question(kOwn, 3).from, 256u);
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{}) << "its own answer is still to come";
  EXPECT_TRUE(hear(3, kOwn, 9, 0, 0, 0, kAnother));
  EXPECT_TRUE(more);
  EXPECT_EQ(gathering.question(kOwn, 3).log, kAnother);
  EXPECT_EQ(gathering.question(kOwn, 3).from, 9u);
}

TEST_F(GatheringTest, WhoDoesNotAnswerIsNotWaitedForLong) {
  (void)ask(kOwn, 3, true);
  for (int64_t ms = 0; ms <= 4000; ms += 50, now += 50 * Members::kMs) {
    EXPECT_EQ(ask(kOwn, 3, true), Nodes{}) << "slow is not dead";
    EXPECT_EQ(looked, ms != 0 && ms % patience::kPeerLookMs == 0 ? Nodes{3} : Nodes{}) << ms;
  }
  now += kPatience;
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{});
  EXPECT_EQ(ask(2, kOwn, true), (Nodes{0, 1, 4})) << "it costs that once";
  now = members.alone_until(3);
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{3});
  members.unreachable(3, now);
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{}) << "who is away has nothing";
  now += Members::kFirstRetry;
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{3});
}

TEST_F(GatheringTest, WhileTheHomeMayBeInUseADeputyAsksAgain) {
  know_all_as_deputy();
  members.unreachable(3, now);
  now += Members::kFirstRetry - 1;
  EXPECT_EQ(ask(3, kOwn, false), Nodes{}) << "nobody else uses it";
  now += Gathering::kFreshNs + 1;
  EXPECT_EQ(ask(3, kOwn, true), kOthers);
  EXPECT_EQ(gathering.question(3, 2).from, 9u) << "what has come since";
}

// One node that is away for good, or hangs, does not make what is known of the others old.
TEST_F(GatheringTest, ADeputyAsksTheOthersAgainThoughOneIsAwayOrHangs) {
  EXPECT_EQ(ask(3, kOwn, true), kOthers);
  EXPECT_TRUE(hear_all({0, 1, 2}, 3, 9));
  now += kPatience + 1;
  EXPECT_EQ(ask(3, kOwn, true), (Nodes{0, 1, 2})) << "it hangs";
  EXPECT_TRUE(hear_all({0, 1, 2}, 3, 9));
  members.unreachable(4, now);
  EXPECT_EQ(ask(3, kOwn, false), Nodes{});
  now += Gathering::kFreshNs + 1;
  members.unreachable(4, now);
  EXPECT_EQ(ask(3, kOwn, true), (Nodes{0, 1, 2}));
  EXPECT_TRUE(hear_all({0, 1, 2}, 3, 9));
  now = members.alone_until(4);
  EXPECT_EQ(ask(3, kOwn, true), kOthers) << "it is asked once it can be";
}

TEST_F(GatheringTest, AReaderThatIsSilentMayHaveToldTheHome) {
  know_all_as_deputy();
  now += 10;
  gathering.doubt(3, 2, now);
  EXPECT_EQ(ask(3, kOwn, true), Nodes{2});
  EXPECT_TRUE(hear(2, 3, 9));
  gathering.doubt(3, 2, now);
  EXPECT_EQ(ask(3, kOwn, false), Nodes{}) << "once";
}

TEST_F(GatheringTest, WhoIsGoneIsAskedForAll) {
  (void)ask(kOwn, 3, true);
  EXPECT_TRUE(hear(3, kOwn, 5));
  gathering.gone(3);
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{3});
  EXPECT_EQ(gathering.question(kOwn, 3).from, 0u);
  gathering.gone(2);
  EXPECT_TRUE(hear(3, kOwn, 5));
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{2}) << "whoever is the deputy";
}

TEST_F(GatheringTest, AHomeIsToldThatItMissedSomething) {
  (void)ask(kOwn, 3, true);
  EXPECT_TRUE(hear(3, kOwn, 5));
  gathering.missed(2, false, now);
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{2}) << "it held what it could not tell";
  EXPECT_TRUE(hear(2, kOwn, 5));
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{});
  gathering.missed(3, true, now);
  EXPECT_EQ(ask(kOwn, 3, true), (Nodes{0, 2, 3, 4})) << "and others could not, either";
  EXPECT_TRUE(hear_all({0, 2, 3, 4}, kOwn, 5));
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{});
  gathering.missed(2, true, now + 1);
  EXPECT_EQ(ask(kOwn, 3, true), Nodes{2}) << "the others have just been asked";
  EXPECT_TRUE(hear(2, kOwn, 5));
  now += Gathering::kFreshNs + 1;
  gathering.missed(2, true, now);
  EXPECT_EQ(ask(kOwn, 3, true), (Nodes{0, 2, 3, 4}));
}

TEST_F(GatheringTest, WhatWasAskedOfWhoIsAwayIsAskedAnew) {
  (void)ask(3, kOwn, true);
  gathering.disconnected(2);
  EXPECT_EQ(ask(3, kOwn, true), Nodes{2});
  EXPECT_TRUE(hear_all(kOthers, 3, 9));
  EXPECT_EQ(ask(3, kOwn, false), Nodes{});
  gathering.disconnected(3);
  EXPECT_EQ(ask(3, kOwn, true), kOthers) << "the home was there meanwhile";
}

TEST_F(GatheringTest, WhatAHomeKnowsOfItsOwnStaysKnown) {
  (void)ask(kOwn, 3, true);
  EXPECT_TRUE(hear(3, kOwn, 5, 1, 1));
  EXPECT_EQ(ask(kOwn, 3, true), (Nodes{0, 2, 4}));
  EXPECT_TRUE(hear_all({0, 2, 4}, kOwn, 5));
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{});
  now += 2 * Gathering::kFreshNs;
  EXPECT_EQ(ask(kOwn, 3, false), Nodes{}) << "nobody else enters anything while it is there";
}

// Not every home can be gone. Homes come and go: what counts are those that are away together.
TEST_F(GatheringTest, AHomeThatIsBackMakesPlaceForAnother) {
  constexpr NodeIndex kMany = 100;
  Members many(kOwn, kMany);
  Gathering of_many(&many);
  NodeIndex home = 2;
  const auto waits = [&] {
    Nodes asked;
    many.unreachable(home, now);
    return of_many.waits(home++, kOwn, now, kPatience, &asked, &looked);
  };
  for (size_t i = 0; i < Gathering::kMostShares; ++i) EXPECT_TRUE(waits());
  EXPECT_FALSE(waits()) << "so many are away";
  many.answered(5);
  EXPECT_FALSE(waits()) << "it was just away";
  now += Gathering::kUnusedNs + 1;
  for (NodeIndex one = 2; one < kMany; ++one)
    if (one != 5) many.unreachable(one, now);
  EXPECT_TRUE(waits());
  EXPECT_FALSE(waits());
  Gathered late;
  late.share = 5;
  late.ended = 1;
  EXPECT_TRUE(of_many.heard(7, late, now, &more)) << "it had been asked";
  EXPECT_FALSE(more);
  Nodes asked;
  EXPECT_TRUE(of_many.waits(kOwn, 5, now, kPatience, &asked, &looked)) << "its own is never left out";
}

}  // namespace
}  // namespace monarch
