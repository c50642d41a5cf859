// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/shares.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace monarch {
namespace {

constexpr uint64_t kMiB = 1 << 20, kAll = 100 * kMiB;

// As the ledger does: what nobody has given back yet counts.
class Shares {
 public:
  explicit Shares(uint64_t limit = kAll) : limit_(limit) {}

  // A job that is to have so many MiB reserved.
  size_t begin(uint64_t share, bool equal = false) {
    Claim c;
    c.share = share;
    c.equal = equal;
    claims.push_back(c);
    divide(limit_, left, &claims);
    return claims.size() - 1;
  }
  void go_on() { divide(limit_, left, &claims); }
  // Its agent has removed what it was asked to.
  void give_back(size_t job) { claims[job].quota = claims[job].told; }
  void give_back_all() {
    for (size_t i = 0; i < claims.size(); ++i) give_back(i);
    go_on();
  }
  void end(size_t job) { claims.erase(claims.begin() + static_cast<ptrdiff_t>(job)); }
  std::vector<uint64_t> quotas() const {
    std::vector<uint64_t> all;
    for (const Claim& c : claims) all.push_back(c.quota / kMiB);
    return all;
  }
  std::vector<uint64_t> told() const {
    std::vector<uint64_t> all;
    for (const Claim& c : claims) all.push_back(c.told / kMiB);
    return all;
  }
  uint64_t sum() const {
    uint64_t all = left.coming + left.stuck;
    for (const Claim& c : claims) all += c.quota;
    return all;
  }

  std::vector<Claim> claims;
  Leftovers left;

 private:
  const uint64_t limit_;
};

using Bytes = std::vector<uint64_t>;

TEST(SharesTest, AJobHasNoMoreThanItsMostWhateverIsFree) {
  Shares s;
  Claim capped;
  capped.share = 10 * kMiB;
  capped.most = 20 * kMiB;
  s.claims.push_back(capped);
  s.go_on();
  EXPECT_EQ(s.quotas(), Bytes{20});
  s.begin(25 * kMiB);
  EXPECT_EQ(s.quotas(), (Bytes{20, 80})) << "the rest is others'";
}

TEST(SharesTest, WhatOneMayNotHaveIsOthers) {
  Shares s;
  s.left.coming = kAll;
  s.begin(10 * kMiB);
  s.begin(10 * kMiB);
  s.claims[0].most = 20 * kMiB;
  s.left.coming = 0;
  s.go_on();
  EXPECT_EQ(s.quotas(), (Bytes{20, 80}));
}

TEST(SharesTest, NobodyIsToldForLittleThatLessIsNeeded) {
  Shares s;
  s.begin(10 * kMiB);
  s.begin(50 * kMiB);
  s.claims[0].quota = 50 * kMiB;
  s.claims[0].told = 30 * kMiB;
  s.claims[1].quota = s.claims[1].told = 30 * kMiB + kMiB / 2;
  s.left.stuck = kAll - s.claims[0].quota - s.claims[1].quota;
  s.go_on();
  EXPECT_EQ(s.claims[0].told, 30 * kMiB) << "half a MiB more will come than is needed";
  s.claims[1].quota = s.claims[1].told = 31 * kMiB;
  s.left.stuck = kAll - s.claims[0].quota - s.claims[1].quota;
  s.go_on();
  EXPECT_EQ(s.claims[0].told, 31 * kMiB);
}

TEST(SharesTest, WhatIsMoreThanTheMostIsGivenBackThoughNobodyNeedsIt) {
  Shares s;
  s.begin(50 * kMiB);
  EXPECT_EQ(s.quotas(), Bytes{100});
  s.claims[0].most = 30 * kMiB;
  s.go_on();
  EXPECT_EQ(s.told(), Bytes{30});
  EXPECT_EQ(s.quotas(), Bytes{100}) << "until it has given it back";
  EXPECT_EQ(s.claims[0].reserved, 30 * kMiB);
  s.go_on();
  EXPECT_EQ(s.told(), Bytes{30}) << "and is not told otherwise";
  s.claims[0].late = true;
  s.go_on();
  EXPECT_EQ(s.told(), Bytes{30});
  s.claims[0].late = false;
  s.begin(50 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{30, 0})) << "what comes is enough for another one";
  s.give_back_all();
  EXPECT_EQ(s.quotas(), (Bytes{30, 70}));
  s.claims[0].most = 0;
  s.claims[0].share = 50 * kMiB;
  s.go_on();
  EXPECT_EQ(s.told(), (Bytes{0, 70}));
  s.give_back_all();
  EXPECT_EQ(s.quotas(), (Bytes{0, 100}));
  s.claims[0].most = 60 * kMiB;
  s.claims[0].share = 50 * kMiB;
  s.go_on();
  EXPECT_EQ(s.claims[0].reserved, 50 * kMiB) << "its share is as it was";
  EXPECT_EQ(s.told(), (Bytes{0, 50}));
  s.give_back_all();
  EXPECT_EQ(s.quotas(), (Bytes{50, 50}));
}

TEST(SharesTest, WhatIsNotNeededAnyMoreIsAskedForStillIfItIsMoreThanTheMost) {
  Shares s;
  s.begin(25 * kMiB);
  s.begin(75 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{25, 0}));
  s.claims[0].most = 60 * kMiB;
  s.end(1);
  s.go_on();
  EXPECT_EQ(s.told(), Bytes{60});
  s.claims[0].lives = false;
  s.claims[0].told = 100 * kMiB;
  s.go_on();
  EXPECT_EQ(s.told(), Bytes{100}) << "who has ended gives nothing back";
}

TEST(SharesTest, AloneAJobHasAllThatIsFree) {
  Shares s;
  s.left.stuck = 10 * kMiB;
  s.begin(25 * kMiB);
  EXPECT_EQ(s.quotas(), Bytes{90});
  EXPECT_EQ(s.told(), Bytes{90});
  EXPECT_EQ(s.claims[0].reserved, 25 * kMiB);
  s.left.stuck = 0;
  s.go_on();
  EXPECT_EQ(s.claims[0].quota, kAll) << "to the byte";
}

TEST(SharesTest, TheNextOnesShareIsTakenFromWhatTheFirstHasAboveItsOwn) {
  Shares s;
  s.begin(25 * kMiB);
  s.begin(50 * kMiB);
  EXPECT_EQ(s.quotas(), (Bytes{100, 0})) << "nothing is free yet";
  EXPECT_EQ(s.told(), (Bytes{50, 0})) << "no more than the next one has reserved";
  s.go_on();
  EXPECT_EQ(s.told(), (Bytes{50, 0})) << "and it is not asked twice";
  s.give_back_all();
  EXPECT_EQ(s.quotas(), (Bytes{50, 50}));
  s.begin(25 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{25, 50, 0})) << "of who has more than his share";
  s.give_back_all();
  EXPECT_EQ(s.quotas(), (Bytes{25, 50, 25}));
  s.begin(25 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{25, 50, 25, 0})) << "all is reserved";
  EXPECT_EQ(s.claims[3].reserved, 0u);
  s.end(1);
  s.go_on();
  EXPECT_EQ(s.claims[2].reserved, 25 * kMiB) << "who waits reserves what another one had";
  EXPECT_GE(s.claims[2].quota, 25 * kMiB);
  EXPECT_GT(s.sum() + kMiB, kAll) << "nothing is left unused";
}

TEST(SharesTest, ItIsTakenInProportionToWhatEachHasAbove) {
  Shares s;
  s.begin(10 * kMiB);
  s.claims[0].quota = s.claims[0].told = 40 * kMiB;
  s.begin(30 * kMiB);
  s.claims[1].quota = s.claims[1].told = 60 * kMiB;
  s.begin(12 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{34, 54, 0})) << "30 above each";
  s.claims[0].quota = s.claims[0].told = 20 * kMiB;
  s.claims[1].quota = s.claims[1].told = 80 * kMiB;
  s.go_on();
  EXPECT_EQ(s.told(), (Bytes{18, 70, 0})) << "10 above, and 50: a sixth, and five";
}

TEST(SharesTest, WhatIsFreeGoesToSharesFirstAndThenInProportion) {
  Shares s;
  s.left.coming = 100 * kMiB;
  s.begin(10 * kMiB);
  s.begin(30 * kMiB);
  s.left.coming = 80 * kMiB;
  s.go_on();
  EXPECT_EQ(s.quotas(), (Bytes{5, 15}));
  s.left.coming = 20 * kMiB;
  s.go_on();
  EXPECT_EQ(s.quotas(), (Bytes{20, 60}));
  s.begin(0);
  s.left.coming = 0;
  s.go_on();
  EXPECT_EQ(s.quotas(), (Bytes{25, 75, 0}));
  s.end(1);
  s.go_on();
  EXPECT_GT(s.sum() + kMiB, kAll) << "nothing is left unused";
}

TEST(SharesTest, WhoIsBehindComesFirst) {
  Shares s;
  s.begin(10 * kMiB);
  s.begin(10 * kMiB);
  s.give_back_all();
  EXPECT_EQ(s.quotas(), (Bytes{90, 10}));
  s.claims[0].quota = s.claims[0].told = 50 * kMiB;
  s.go_on();
  EXPECT_EQ(s.quotas(), (Bytes{50, 50}));
}

TEST(SharesTest, ARemovalIsWaitedForInsteadOfAskingOthers) {
  Shares s;
  s.begin(25 * kMiB);
  s.claims[0].quota = s.claims[0].told = 50 * kMiB;
  s.left.coming = 50 * kMiB;
  s.begin(50 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{50, 0}));
  s.left = {0, 50 * kMiB};
  s.go_on();
  EXPECT_EQ(s.told(), (Bytes{25, 0})) << "nobody could remove it";
  s.left = {};
  s.go_on();
  EXPECT_EQ(s.told(), (Bytes{50, 50})) << "and nothing is asked for any more";
  EXPECT_EQ(s.quotas(), (Bytes{50, 50}));
}

TEST(SharesTest, NobodyCountsOnWhoIsLate) {
  Shares s;
  s.begin(20 * kMiB);
  s.claims[0].quota = s.claims[0].told = 50 * kMiB;
  s.begin(20 * kMiB);
  s.claims[1].quota = s.claims[1].told = 50 * kMiB;
  s.begin(20 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{40, 40, 0}));
  s.claims[0].late = true;
  s.go_on();
  EXPECT_EQ(s.told(), (Bytes{40, 30, 0})) << "the other one is asked for all of it";
  s.give_back(1);
  s.go_on();
  EXPECT_EQ(s.quotas(), (Bytes{50, 30, 20}));
  EXPECT_EQ(s.told(), (Bytes{50, 30, 20})) << "and the late one for nothing any more";
}

TEST(SharesTest, WhoHasEndedGetsNothingAndGivesNothing) {
  Shares s;
  s.begin(25 * kMiB);
  s.claims[0].lives = false;
  s.begin(25 * kMiB);
  EXPECT_EQ(s.quotas(), (Bytes{100, 0}));
  EXPECT_EQ(s.told(), (Bytes{100, 0}));
  EXPECT_EQ(s.claims[1].reserved, 0u) << "it is there as long as its removal takes";
  s.claims[0].quota = 10 * kMiB;
  s.go_on();
  EXPECT_EQ(s.quotas(), (Bytes{10, 90}));
}

TEST(SharesTest, WhoHasEndedWasAskedInVain) {
  Shares s;
  s.begin(10 * kMiB);
  s.claims[0].quota = 40 * kMiB;
  s.claims[0].told = 30 * kMiB;
  s.claims[0].lives = false;
  s.begin(10 * kMiB);
  s.begin(20 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{40, 40, 0}));
}

TEST(SharesTest, EqualOnesHaveTheSameReserved) {
  Shares s;
  s.begin(kAll, true);
  EXPECT_EQ(s.claims[0].reserved, kAll);
  s.begin(kAll, true);
  EXPECT_EQ(s.told(), (Bytes{50, 0}));
  s.give_back_all();
  EXPECT_EQ(s.quotas(), (Bytes{50, 50}));
  s.begin(kAll, true);
  s.begin(kAll, true);
  s.give_back_all();
  EXPECT_EQ(s.quotas(), (Bytes{25, 25, 25, 25}));
  s.begin(25 * kMiB);
  EXPECT_EQ(s.claims[4].reserved, 0u) << "all is theirs";
  s.claims[0].lives = false;
  s.go_on();
  EXPECT_EQ(s.claims[1].reserved, 25 * kMiB);
}

TEST(SharesTest, LittleIsNotWorthATellingUnlessItIsTheLast) {
  Shares s;
  s.begin(50 * kMiB);
  s.claims[0].quota = s.claims[0].told = kAll - kMiB + 1;
  s.begin(25 * kMiB);
  EXPECT_EQ(s.claims[1].quota, 0u) << "a byte less than a MiB is free";
  s.claims[0].quota = s.claims[0].told = 75 * kMiB + 1;
  s.claims[1].quota = s.claims[1].told = 25 * kMiB - 1;
  s.go_on();
  EXPECT_EQ(s.claims[0].told, 75 * kMiB + 1) << "nobody removes files for a byte";
  s.claims[0].quota = s.claims[0].told = 75 * kMiB;
  s.go_on();
  EXPECT_EQ(s.claims[1].quota, 25 * kMiB) << "the last byte of what it has reserved";
}

TEST(SharesTest, WhatIsTooLittleForEachGoesToSome) {
  Shares s(20 * kMiB);
  for (int i = 0; i < 20; ++i) s.begin(kMiB / 2);
  s.give_back_all();
  EXPECT_GT(s.sum(), 20 * kMiB - kMiB) << "all but less than a MiB is used";
  for (const Claim& c : s.claims) EXPECT_GE(c.quota, kMiB / 2);
}

TEST(SharesTest, WhatIsLittleIsAsTheQuota) {
  Shares s(320 << 10);
  s.begin(40 << 10);
  s.begin(160 << 10);
  s.claims[0].quota = s.claims[0].told = 40 << 10;
  s.go_on();
  EXPECT_EQ(s.claims[0].quota, 64u << 10);
  EXPECT_EQ(s.claims[1].quota, 256u << 10);
}

TEST(SharesTest, OfThatWhoIsBehindComesFirst) {
  constexpr uint64_t kKiB = 1 << 10, kMore = 49 * kMiB + 400 * kKiB, kLess = 49 * kMiB + 200 * kKiB;
  for (const auto& [first, second] : {std::pair(kMore, kLess), std::pair(kLess, kMore)}) {
    Shares s;
    for (const uint64_t quota : {first, second}) {
      s.begin(10 * kMiB);
      s.claims.back().quota = s.claims.back().told = quota;
    }
    s.go_on();
    EXPECT_EQ(s.claims[0].quota, first == kLess ? kAll - kMore : kMore);
    EXPECT_EQ(s.sum(), kAll);
  }
}

TEST(SharesTest, WhatIsAskedForIsNoMoreThanWhatIsNeeded) {
  Shares s;
  s.begin(10 * kMiB);
  s.begin(20 * kMiB);
  s.begin(30 * kMiB);
  EXPECT_EQ(s.told(), (Bytes{50, 0, 0}));
  s.end(2);
  s.go_on();
  EXPECT_EQ(s.told(), (Bytes{80, 0}));
  s.end(1);
  s.go_on();
  EXPECT_EQ(s.told(), Bytes{100});
}

// Jobs that begin and end, and agents that give back, or part of it, or not, in any order.
TEST(SharesTest, TheSumIsNeverAboveTheQuotaAndNobodyShrinksBelowWhatItHasReserved) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](uint64_t n) { return random() % n; };
    const uint64_t limit = 1 + below(2) * 4096 * below(1000) + below(300) * kMiB;
    Shares s(limit);
    for (int step = 0; step < 200; ++step) {
      std::vector<Claim> before = s.claims;
      const size_t job = s.claims.empty() ? 0 : below(s.claims.size());
      switch (s.claims.empty() ? 0 : below(8)) {
        case 0:
        case 1:
          before.emplace_back();
          if (below(4) == 0)
            s.begin(limit, true);
          else
            s.begin(below(3) == 0 ? limit : below(limit + 1));
          break;
        case 2:
          s.left.coming += s.claims[job].quota;
          s.end(job);
          before.erase(before.begin() + static_cast<ptrdiff_t>(job));
          break;
        case 3:
          (below(2) ? s.left.coming : s.left.stuck) = 0;
          break;
        case 4:
          std::swap(s.left.coming, s.left.stuck);
          break;
        case 5:
          s.claims[job].quota -= below(s.claims[job].quota - s.claims[job].told + 1);
          before = s.claims;
          break;
        case 6:
          s.claims[job].late = !s.claims[job].late;
          break;
        default:
          s.give_back(job);
          before = s.claims;
      }
      s.go_on();
      ASSERT_LE(s.sum(), limit) << "seed " << seed << " step " << step;
      uint64_t reserved = 0;
      for (size_t i = 0; i < s.claims.size(); ++i) {
        const Claim& c = s.claims[i];
        ASSERT_GE(c.quota, before[i].quota) << "nothing is taken that was not given back";
        ASSERT_LE(c.told, c.quota);
        ASSERT_GE(c.told, std::min(c.reserved, c.quota)) << "seed " << seed << " step " << step;
        ASSERT_TRUE(c.equal || c.reserved >= before[i].reserved) << "what is reserved stays";
        ASSERT_LE(c.reserved, c.share);
        reserved += c.reserved;
      }
      ASSERT_LE(reserved, limit) << "seed " << seed << " step " << step;
    }
    // In the end all give back, and what is removed is gone.
    s.left = {};
    for (Claim& c : s.claims) c.late = false;
    for (int i = 0; i < 10; ++i) s.give_back_all();
    if (s.claims.empty()) continue;
    EXPECT_GT(s.sum() + kMiB, limit) << "nothing is left unused: seed " << seed;
    for (const Claim& c : s.claims) {
      EXPECT_TRUE(c.quota >= c.reserved || c.reserved - c.quota < kMiB) << "each is served: seed " << seed;
      EXPECT_EQ(c.told, c.quota) << seed;
    }
  }
}

}  // namespace
}  // namespace monarch
