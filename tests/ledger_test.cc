// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/ledger.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "runtime/layout/board_layout.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/state.h"
#include "tests/faulty_os.h"
#include "tests/logged.h"
#include "tests/private_mounts.h"
#include "tests/scratch.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uid_t kNobody = 65534;

// A tier of 100 MiB, and jobs whose agent is this process.
class LedgerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    Result<StateDir> state = StateDir::open(scratch_ / "state");
    ASSERT_TRUE(state.ok()) << state.error().text;
    state_ = state.take();
  }

  JobRecord record(uint32_t job) const {
    JobRecord r;
    r.job = {job, "n1", "c"};
    r.name = "c." + std::to_string(job) + ".0.n1";
    r.user = {kNobody, kNobody, {}};
    r.agent = *identify(::getpid());
    r.boot = boot_id();
    r.run_dir = "/run/x";
    r.serial = 1000 + job;
    return r;
  }

  std::vector<TierConfig> tiers() const {
    TierConfig tier;
    tier.name = "nvme";
    tier.path = tier_;
    tier.quota.bytes = 100 * kMiB;
    return {tier};
  }

  // The quota that it gets.
  uint64_t begin(uint32_t job) {
    JobRecord r = record(job);
    (void)state_.lock_job(r.job, true, 0);
    std::vector<TierConfig> wanted = tiers();
    EXPECT_TRUE(reserve(state_, &wanted, &r, 1000).ok());
    EXPECT_EQ(r.tiers.at(0).quota, wanted[0].quota.bytes);
    EXPECT_EQ(r.tiers.at(0).limit, 100 * kMiB);
    EXPECT_TRUE(tell_quotas(state_, r).ok());
    return quota(job);
  }

  void change(uint32_t job, const std::function<void(JobRecord*)>& how) {
    Result<JobRecord> r = state_.read_record(record(job).job.key());
    ASSERT_TRUE(r.ok());
    how(&*r);
    ASSERT_TRUE(state_.write_record(*r).ok());
    ASSERT_TRUE(tell_quotas(state_, *r).ok());
  }
  void set_quota(uint32_t job, uint64_t bytes) {
    change(job, [=](JobRecord* r) { r->tiers[0].quota = bytes; });
  }
  uint64_t quota(uint32_t job) const { return state_.read_record(record(job).job.key())->tiers[0].quota; }
  std::string told(uint32_t job) const {
    const Result<std::string> text = state_.read(record(job).grants());
    return text.ok() ? *text : "";
  }

  const Scratch scratch_;
  const std::string tier_ = scratch_.dir("tier");
  StateDir state_;
};

TEST_F(LedgerTest, AJobGetsWhatOthersLeave) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  set_quota(1, 30 * kMiB);
  EXPECT_EQ(begin(3), 70 * kMiB);
  EXPECT_EQ(begin(1), 30 * kMiB) << "its own does not count against it";
}

TEST_F(LedgerTest, WhatIsRemovedCountsByWhatItOccupies) {
  JobRecord gone = record(1);
  gone.tiers.push_back({"nvme", "nvme", tier_, TierConfig::Kind::kDirectory, 60 * kMiB, 100 * kMiB, {}, ""});
  gone.tiers.push_back({"ssd", "ssd", "/other", TierConfig::Kind::kDirectory, 90 * kMiB, 90 * kMiB, {}, ""});
  ASSERT_TRUE(state_.make_removal(gone).ok());
  EXPECT_EQ(begin(2), 40 * kMiB) << "unknown: its quota, of this tier";
  ASSERT_TRUE(state_.remove_job(record(2).job).ok());
  gone.tiers[0].occupied = 10 * kMiB;
  ASSERT_TRUE(state_.write_removal(gone).ok());
  EXPECT_EQ(begin(2), 90 * kMiB);
}

TEST_F(LedgerTest, WithoutTheLockThereIsNoSpace) {
  const Result<Fd> lock = state_.lock_ledger(0);
  JobRecord r = record(1);
  (void)state_.lock_job(r.job, true, 0);
  std::vector<TierConfig> wanted = tiers();
  const std::string log = logged(scratch_, [&] { EXPECT_TRUE(reserve(state_, &wanted, &r, 10).ok()); });
  EXPECT_NE(log.find("begins without space on the tiers: "), std::string::npos) << log;
  EXPECT_EQ(wanted[0].quota.bytes, 0u);
  EXPECT_EQ(quota(1), 0u);
  EXPECT_TRUE(can_grant(state_)) << "it was not told";
  EXPECT_TRUE(tell_quotas(state_, r).ok());
  grant(state_);
  EXPECT_EQ(quota(1), 0u) << "still locked";
}

TEST_F(LedgerTest, FreedSpaceGoesToTheEarliestThatRuns) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  EXPECT_EQ(begin(3), 0u);
  EXPECT_FALSE(can_grant(state_)) << "all is taken, and all know";
  set_quota(1, 40 * kMiB);
  change(1, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota; });  // it may not grow again
  change(2, [](JobRecord* r) { r->serial = 5000; });                       // it began after 3
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(quota(1), 40 * kMiB);
  EXPECT_EQ(quota(2), 0u);
  EXPECT_EQ(quota(3), 60 * kMiB);
  EXPECT_EQ(told(3), "nvme " + std::to_string(60 * kMiB) + "\n");
  EXPECT_FALSE(can_grant(state_));
}

TEST_F(LedgerTest, NothingIsGivenToWhatHasEndedOrIsBeingEnded) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  set_quota(1, 0);
  change(1, [](JobRecord* r) { ++r->agent.start_time; });
  EXPECT_FALSE(can_grant(state_)) << "its agent has ended";
  grant(state_);
  EXPECT_EQ(quota(1), 0u);

  change(1, [](JobRecord* r) { --r->agent.start_time; });
  {
    const Result<Fd> lock = state_.lock_job(record(1).job, false, 0);
    ASSERT_TRUE(lock.ok());
    grant(state_);
    EXPECT_EQ(quota(1), 0u) << "who has the job's lock starts or ends it";
  }
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB);
}

TEST_F(LedgerTest, LittleIsNotWorthATellingUnlessItIsTheLast) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  change(1, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota = 99 * kMiB + 1; });
  EXPECT_FALSE(can_grant(state_)) << "a byte less than a MiB";
  grant(state_);
  EXPECT_EQ(quota(2), 0u);
  change(1, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota = 99 * kMiB; });
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(quota(2), kMiB);

  change(2, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota + 10; });
  EXPECT_FALSE(can_grant(state_)) << "all is taken";
  change(1, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota = 10 * kMiB; });
  change(2, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota + 10; });
  EXPECT_FALSE(can_grant(state_)) << "its limit is less than what all have";
  change(2, [](JobRecord* r) {
    r->tiers[0].limit = 100 * kMiB;
    r->tiers[0].quota = 100 * kMiB - 10;
  });
  change(1, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota = 0; });
  EXPECT_TRUE(can_grant(state_)) << "the last ten bytes";
  grant(state_);
  EXPECT_EQ(quota(2), 100 * kMiB);
}

TEST_F(LedgerTest, WhatWasNotToldIsToldAgain) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  ASSERT_TRUE(state_.write(record(1).grants(), "nvme 5\n").ok());
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(told(1), "nvme " + std::to_string(100 * kMiB) + "\n");
  ASSERT_EQ(::unlink((state_.path() + "/" + record(1).grants()).c_str()), 0);
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(told(1), "nvme " + std::to_string(100 * kMiB) + "\n");
  struct stat st;
  ASSERT_EQ(::stat((state_.path() + "/" + record(1).grants()).c_str(), &st), 0);
  EXPECT_EQ(st.st_mode & 07777, 0644u) << "for its agent";
}

TEST_F(LedgerTest, ATierThatCannotBeUsedIsLeftOut) {
  Config config;
  config.tiers = tiers();
  config.tiers.push_back(config.tiers[0]);
  config.tiers[0].path = scratch_ / "missing";
  config.tiers[1].quota.percent = 50;
  const std::vector<TierConfig> found = tiers_for({1, "n1", "c"}, config);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].path, tier_);
  EXPECT_GT(found[0].quota.bytes, kMiB);
  EXPECT_LT(found[0].quota.percent, 0) << "bytes, from now on";
  EXPECT_EQ(found[0].min_free.percent, 5);

  config.tiers = tiers();
  config.tiers[0].kind = TierConfig::Kind::kTmpfs;
  EXPECT_EQ(tiers_for({1, "n1", "c"}, config).at(0).min_free.bytes, 0u);
  EXPECT_LT(tiers_for({1, "n1", "c"}, config).at(0).min_free.percent, 0) << "nobody else is on it";
  config.tiers.clear();
  for (uint32_t i = 0; i < kMaxTiers + 2; ++i) {
    config.tiers.push_back(tiers()[0]);
    config.tiers.back().path = scratch_.dir("tier" + std::to_string(i));
  }
  EXPECT_EQ(tiers_for({1, "n1", "c"}, config).size(), kMaxTiers) << "as many as a catalog can name";
}

TEST_F(LedgerTest, ATierThatDoesNotTellItsSizeIsLeftOut) {
  Config config;
  config.tiers = tiers();
  const Intercept broken(Call::kFstatvfs, EIO);
  const std::string log = logged(scratch_, [&] { EXPECT_TRUE(tiers_for({1, "n1", "c"}, config).empty()); });
  EXPECT_NE(log.find("tier nvme (" + tier_ + "): Input/output error"), std::string::npos) << log;
}

TEST_F(LedgerTest, WhereNoneAreNamedTiersAreDiscovered) {
  const std::vector<TierConfig> some = tiers_for({1, "n1", "c"}, {});
  EXPECT_LE(some.size(), kMaxTiers);
  const int status = in_child([&] {
    const auto hide = [](CallArguments a) {
      return std::string(reinterpret_cast<const char*>(a[1])).ends_with("/mountinfo") ? EACCES : 0;
    };
    if (!before_call(SYS_openat, hide)) return 99;
    const std::string log = logged(scratch_, [&] { (void)tiers_for({1, "n1", "c"}, {}); });
    return log.find("JobId=1 discovery of tiers: ") == std::string::npos ? 1 : 0;
  });
  if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(status, 0);
}

TEST_F(LedgerTest, ADirectoryIsOneTierAndItsPathIsText) {
  Config config;
  config.tiers = tiers();
  config.tiers.push_back(tiers()[0]);
  ASSERT_EQ(::symlink(tier_.c_str(), (scratch_ / "link").c_str()), 0);
  config.tiers[1].path = scratch_ / "link";
  config.tiers.push_back(tiers()[0]);
  config.tiers[2].path = scratch_.dir("tier\xff");
  const std::vector<TierConfig> found = tiers_for({1, "n1", "c"}, config);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].path, tier_);
}

TEST_F(LedgerTest, WhileARecordIsSpoiltNothingIsGranted) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  change(1, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota = 10 * kMiB; });
  for (const char* spoilt : {"jobs/c.3.n1", "removing/c.3.0.n1.1003"}) {
    scratch_.file(std::string("state/") + spoilt + "/record.json", "{");
    EXPECT_FALSE(can_grant(state_)) << "nobody knows what that one has";
    grant(state_);
    EXPECT_EQ(quota(2), 0u);
    std::filesystem::remove_all(state_.path() + "/" + spoilt);
  }
  scratch_.dir("state/jobs/c.4.n1");  // one that begins
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(quota(2), 90 * kMiB);
}

TEST_F(LedgerTest, MemoryIsMadeLargerBeforeItIsTold) {
  const User user = {kNobody, kNobody, {}};
  const auto memory = [](JobRecord* r) { r->tiers[0].kind = TierConfig::Kind::kTmpfs; };
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->check(begin(1) == 100 * kMiB && begin(2) == 0, "one has all");
    change(2, memory);
    TierConfig tier = tiers()[0];
    tier.kind = TierConfig::Kind::kTmpfs;
    tier.quota.bytes = 4096;
    m->check(make_job_dir(state_, tier, record(2).name, user).ok(), "the other one's memory");
    change(1, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota = 10 * kMiB; });
    grant(state_);
    struct statfs fs {};
    m->check(::statfs((tier_ + "/monarch/" + record(2).name).c_str(), &fs) == 0 &&
                 static_cast<uint64_t>(fs.f_blocks) * static_cast<uint64_t>(fs.f_bsize) == 90 * kMiB,
             "it is as large as was told");
    m->check(told(2) == "nvme " + std::to_string(90 * kMiB) + "\n", told(2));
    m->check(!can_grant(state_), "and nothing is left to do");
    ::umount2((tier_ + "/monarch/" + record(2).name).c_str(), MNT_DETACH);
    change(1, [](JobRecord* r) { r->tiers[0].limit = r->tiers[0].quota = 0; });
    grant(state_);
    m->check(told(2) == "nvme " + std::to_string(90 * kMiB) + "\n", "what cannot be made larger is not told");
    m->check(quota(2) == 100 * kMiB && can_grant(state_), "and tried again");
  });
}

}  // namespace
}  // namespace monarch
