// SPDX-License-Identifier: Apache-2.0
// How long opens took, from a task's shard to a report.
#include "runtime/node/open_times.h"

#include <memory>

#include "runtime/layout/board_client.h"
#include "runtime/metadata/board.h"
#include "runtime/node/accounting.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

TEST(OpenTimes, ABucketEndsBeforeItsBound) {
  EXPECT_EQ(bucket_of(0), 0u);
  for (uint32_t b = 0; b + 1 < kOpenBuckets; ++b) {
    EXPECT_EQ(bucket_of(bound_ns(b) - 1), b);
    EXPECT_EQ(bucket_of(bound_ns(b)), b + 1);
  }
  EXPECT_EQ(bucket_of(UINT64_MAX), kOpenBuckets - 1) << "the last one has no bound";
}

TEST(OpenTimes, OfTiersCopiesTheFirstOfSoManyIsTimed) {
  const auto shard = std::make_unique<CounterShard>();
  uint64_t timed = 0;
  for (uint64_t open = 0; open < 3 * kOneTimedOf; ++open) {
    const bool is_timed = is_open_timed(*shard, kMaxTiers);
    EXPECT_EQ(is_timed, open % kOneTimedOf == 0) << open;
    timed += is_timed ? 1 : 0;
    ++shard->opens_tier[open % kMaxTiers];  // whichever tier it is
  }
  EXPECT_EQ(timed, 3u);
  ++shard->task[static_cast<uint32_t>(TaskCounter::opens_pfs)];
  EXPECT_TRUE(is_open_timed(*shard, kMaxTiers)) << "others do not count";
}

TEST(OpenTimes, TellWithinWhatTimeMostOpensWere) {
  OpenTimes times;
  for (const uint64_t percent : {1u, 50u, 99u, 100u})
    EXPECT_EQ(within_ns(times, OpenKind::kTier, percent), std::nullopt) << "of none nothing is known";
  uint64_t* tier = times.of(OpenKind::kTier);
  tier[2] = 50;
  tier[5] = 49;
  tier[9] = 1;
  EXPECT_EQ(within_ns(times, OpenKind::kTier, 50), bound_ns(2));
  EXPECT_EQ(within_ns(times, OpenKind::kTier, 51), bound_ns(5));
  EXPECT_EQ(within_ns(times, OpenKind::kTier, 99), bound_ns(5));
  EXPECT_EQ(within_ns(times, OpenKind::kTier, 100), bound_ns(9));
  tier[9] = 2;
  EXPECT_EQ(within_ns(times, OpenKind::kTier, 50), bound_ns(5)) << "50 of 101 are less than a half";
  tier[kOpenBuckets - 1] = 200;
  EXPECT_EQ(within_ns(times, OpenKind::kTier, 50), std::nullopt) << "the last bucket has no bound";
}

TEST(OpenTimes, AddUpToAboutWhatThreadsSpentInThem) {
  struct {
    uint64_t tier_0, tier_2, pfs_2, pfs_last, tier, wait_ns, ns;
  } const cases[] = {{0, 0, 0, 0, 9, 7, 7},              // no copy was timed, and waits are known
                     {0, 0, 2, 0, 0, 7, 3007},           // bucket 2 is of 1 to 2 us
                     {1, 1, 0, 0, 100, 0, 87500},        // two stand for 100
                     {0, 0, 0, 1, 0, 0, bound_ns(22)}};  // the last one has no middle
  for (const auto& c : cases) {
    OpenTimes times;
    times.of(OpenKind::kTier)[0] = c.tier_0, times.of(OpenKind::kTier)[2] = c.tier_2;
    times.of(OpenKind::kPfs)[2] = c.pfs_2, times.of(OpenKind::kPfs)[kOpenBuckets - 1] = c.pfs_last;
    times.of(OpenKind::kWaited)[5] = 9;
    EXPECT_DOUBLE_EQ(spent_ns(times, c.tier, c.wait_ns), static_cast<double>(c.ns));
  }
}

TEST(OpenTimes, StayWithinBoundsWhateverIsWritten) {
  const auto board = std::make_unique<Board>();
  board->shards[7].open_times[0][3] = kMostCount;
  EXPECT_TRUE(plausible(counters_of(*board)));
  ++board->shards[8].open_times[0][3];
  EXPECT_FALSE(plausible(counters_of(*board)));
  OpenTimes times;
  for (auto& kind : times.counts)
    for (uint64_t& n : kind) n = kMostCount;
  EXPECT_EQ(timed(times, OpenKind::kPfs), kMostCount);
  EXPECT_EQ(within_ns(times, OpenKind::kPfs, 99), bound_ns(0));
  OpenTimes sum = times;
  add(&sum, times);
  EXPECT_EQ(sum.of(OpenKind::kTier)[7], kMostCount);
  sum.of(OpenKind::kTier)[7] = UINT64_MAX;
  const Result<OpenTimes> read = open_times_of(*Json::parse(open_times_json(sum).dump()));
  ASSERT_TRUE(read.ok()) << read.error().text;
  EXPECT_EQ(read->of(OpenKind::kTier)[7], kMostCount);
}

TEST(OpenTimes, AreReadAsTheyWereWritten) {
  OpenTimes times;
  times.of(OpenKind::kTier)[0] = 7;
  times.of(OpenKind::kTier)[1] = 8;
  times.of(OpenKind::kWaited)[kOpenBuckets - 1] = 9;
  const std::optional<Json> written = Json::parse(open_times_json(times).dump());
  EXPECT_EQ(written, Json::parse(R"({"tier": {"0.5": 7, "1": 8}, "waited": {"more": 9}, "pfs": {}})"));
  const Result<OpenTimes> read = open_times_of(written);
  ASSERT_TRUE(read.ok()) << read.error().text;
  for (const OpenKind kind : kAllOpenKinds)
    for (uint32_t b = 0; b < kOpenBuckets; ++b) EXPECT_EQ(read->of(kind)[b], times.of(kind)[b]);
  for (const char* bad : {"null", "[]", "{}", R"({"tier": {}, "waited": {}})",
                          R"({"tier": {}, "waited": {}, "pfs": {}, "x": {}})"})
    EXPECT_FALSE(open_times_of(*Json::parse(bad)).ok()) << bad;
  for (const std::string bad : {R"({"3": 1})", R"({"2": -1})", R"({"2": 1e3})", R"({"2": "1"})",
                                R"({"2": 2305843009213693952})", "[]"})
    EXPECT_FALSE(open_times_of(*Json::parse(R"({"tier": {}, "waited": {}, "pfs": )" + bad + "}")).ok())
        << bad;
}

}  // namespace
}  // namespace monarch
