// SPDX-License-Identifier: Apache-2.0
// How often and how long the remover tries, and what it charges meanwhile.

#include <list>

#include "runtime/node/job_dirs.h"
#include "runtime/node/memory_tier.h"
#include "tests/private_mounts.h"
#include "tests/remover_fixture.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

class OneAttemptTest : public RemoverTest {
 protected:
  std::string log_of(
      std::vector<Removal> removals, const Intercept::Handler& unlink = [](Arguments&) { return 0; }) const {
    static std::optional<LaterBy> later;
    const Intercept looks(Call::kOpenat, [](Arguments& a) {
      if (!later && a.path == kRemoval) later.emplace(3600);
      return 0;
    });
    const Intercept removes(Call::kUnlinkat, unlink);
    return logged([&] { EXPECT_FALSE(remove(std::move(removals), kLong)); });
  }
};

TEST_F(OneAttemptTest, WhatWasNotMeasuredWholeIsChargedAsBefore) {
  std::vector<Removal> removals = aside_one(record(1));
  fill_stuck(scratch_ / ("tier/monarch/" + kRemoval));
  static std::optional<LaterBy> too_late;
  const Intercept measures(Call::kFdopendir, [](Arguments&) {
    if (!too_late) too_late.emplace(3600);
    return 0;
  });
  (void)log_of(std::move(removals), [](Arguments& a) { return std::string(a.path) == "stuck" ? EIO : 0; });
  EXPECT_EQ(state_.read_removal(kRemoval)->given_up, 1u);
  EXPECT_EQ(occupied(), std::nullopt);
}

// Seconds from when a removal that was given up three times is given up once more to when it is tried again.
class GivenUpTest : public RemoverTest {
 protected:
  static constexpr int64_t kLater = 31;  // than when it began: nothing gets smaller for longer than is tried
  int64_t pause_of(JobRecord r) const {
    r.given_up = 3;
    fill_run(state_.path() + "/run/" + kRemoval);
    std::vector<Removal> removals;
    removals.push_back({r, state_.make_removal(r).take()});
    static std::optional<LaterBy> later;
    const Intercept looks(Call::kOpenat, [this](Arguments& a) {
      if (hung_ == a.path) hangs_.here();
      if (!later && a.path == kRemoval) later.emplace(kLater);
      return 0;
    });
    const Stuck stuck;
    log_ = logged([&] { EXPECT_FALSE(remove(std::move(removals), kLong)); });
    const Result<JobRecord> left = state_.read_removal(kRemoval);
    times_ = left.ok() ? left->given_up : 0;
    return left.ok() ? left->next_try - ::time(nullptr) - kLater : -1;
  }
  void expect_pause(const JobRecord& r, int64_t seconds) const {
    const int64_t pause = pause_of(r);
    EXPECT_GE(pause, seconds - 30);
    EXPECT_LE(pause, seconds);
  }
  void expect_as_before() const {
    EXPECT_EQ(log_, "") << "it was told before";
    EXPECT_EQ(times_, 4u);
  }
  // On its first tier.
  void fill_what_stays() const { fill_stuck(scratch_ / ("tier/monarch/" + kRemoval)); }
  std::string hung_;  // who opens that hangs
  const Hung hangs_;
  mutable std::string log_;
  mutable uint32_t times_ = 0;  // that it was given up
};

TEST_F(GivenUpTest, ATierThatIsAwayIsLookedAtAsSoonAsEver) {
  JobRecord r = record(1);
  r.tiers[0].file_system = "of another disk";
  r.away_since = ::time(nullptr);
  expect_pause(r, 60);
  expect_as_before();
}

TEST_F(GivenUpTest, WhatIsStuckBesideATierThatIsAwayIsTriedEverMoreSeldom) {
  fill_what_stays();
  JobRecord r = record(1);
  r.tiers.insert(r.tiers.begin(), tier("away", kMiB));
  r.tiers[0].file_system = "of another disk";
  make_tier("away");
  expect_pause(r, 480);
  expect_as_before();
}

// While it was away nobody has tried.
TEST_F(GivenUpTest, WhatIsStuckOnATierThatIsBackIsToldAndTriedSoon) {
  fill_what_stays();
  JobRecord r = record(1);
  r.tiers[0].away = true;
  r.away_since = ::time(nullptr) - 300;
  expect_pause(r, 60);
  EXPECT_EQ(times_, 1u);
  EXPECT_NE(log_.find("what could not be removed is left as"), std::string::npos) << log_;
}

TEST_F(GivenUpTest, ATierThatDoesNotAnswerIsLookedAtAsSoonAsEver) {
  hung_ = scratch_ / "tier";
  clock_.pass_once([&] { return hangs_.now(); });
  expect_pause(record(1), 60);
  expect_as_before();
}

TEST_F(GivenUpTest, WhatCannotBeRemovedIsTriedEverMoreSeldom) {
  fill_what_stays();
  expect_pause(record(1), 480);
  expect_as_before();
}

class LateTest : public RemoverTest {
 protected:
  enum class Measured { kWhole, kInPart };

  // Whether all is removed where the first attempts are late, each by more than is tried while nothing gets
  // smaller; else it is given up.
  bool removed_after(int late_attempts, Measured measured) {
    std::vector<Removal> removals = aside_one(record(1));
    fs::remove_all(record(1).run_dir);
    const Hung hung;
    const Shared<std::atomic<int>> late;
    *late = late_attempts;
    const Intercept removes(Call::kUnlinkat, [&](Arguments& a) {
      if (a.flags == 0 && late->fetch_sub(1) > 0) hung.here();  // a file
      return 0;
    });
    static std::list<LaterBy> later;
    clock_.pass_once([&, self = ::getpid()] {
      if (::getpid() == self || !hung.now()) return false;
      later.emplace_back(31);
      return true;
    });
    const Intercept measures(Call::kFdopendir, [=](Arguments&) {
      if (measured == Measured::kInPart) later.emplace_back(3600);
      return 0;
    });
    return remove(std::move(removals), kLong);
  }
};

TEST_F(LateTest, WhatGetsSmallerIsNotGivenUp) {
  EXPECT_TRUE(removed_after(1, Measured::kWhole));
  nothing_is_left();
}

TEST_F(LateTest, WhatDoesNotIsGivenUp) {
  EXPECT_FALSE(removed_after(100, Measured::kWhole));
  EXPECT_EQ(state_.read_removal(kRemoval)->given_up, 1u);
}

TEST_F(LateTest, WhatNobodyHasCountedMayGetSmaller) {
  EXPECT_TRUE(removed_after(2, Measured::kInPart));
  nothing_is_left();
}

}  // namespace
}  // namespace monarch
