// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/ledger.h"

#include "runtime/layout/catalog_layout.h"
#include "runtime/node/job_dirs.h"
#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

// A tier of 100 MiB, and jobs whose agent is this process.
class LedgerTest : public NodeTest {
 protected:
  JobRecord record(uint32_t job) const {
    JobRecord r = NodeTest::record(job);
    r.agent = *identify(::getpid());
    r.serial = 1000 + job;
    r.tiers.clear();
    return r;
  }

  std::vector<TierConfig> tiers() const {
    TierConfig tier;
    tier.name = "nvme";
    tier.path = tier_;
    tier.quota.bytes = 100 * kMiB;
    return {tier};
  }

  // The quota that it gets, with so many of the node's four cores.
  uint64_t begin(uint32_t job, uint32_t cores = 4) { return begin_at(state_, job, cores); }
  uint64_t begin_at(const StateDir& state, uint32_t job, uint32_t cores, int patience_ms = 60000) {
    JobRecord r = record(job);
    const Result<Fd> lock = state.lock_job(r.job, true, 60000);  // as a start does
    EXPECT_TRUE(lock.ok());
    std::vector<TierConfig> wanted = tiers();
    const Result<std::vector<uint64_t>> capacity =
        grant_shares(state, {cores, 4, 0, 0}, &wanted, &r, patience_ms);
    EXPECT_TRUE(capacity.ok());
    if (capacity.ok()) capacity_ = capacity->empty() ? 0 : capacity->at(0);
    EXPECT_EQ(r.tiers.at(0).quota, wanted[0].quota.bytes);
    EXPECT_EQ(r.tiers.at(0).limit, 100 * kMiB);
    EXPECT_EQ(r.tiers.at(0).share, cores * 25 * kMiB);
    EXPECT_TRUE(tell_granted(state, r).ok());
    return r.tiers.at(0).quota;
  }
  void end(uint32_t job) { EXPECT_TRUE(state_.remove_job(record(job).job.key()).ok()); }

  // The removal of a job that has ended, which had that much of the tier.
  JobRecord remove(uint64_t bytes) {
    JobRecord gone = record(9);
    gone.tiers = {{"nvme", "nvme", tier_, TierConfig::Kind::kDirectory, bytes, 100 * kMiB}};
    EXPECT_TRUE(state_.make_removal(gone).ok());
    return gone;
  }
  void occupies(JobRecord* gone, uint64_t bytes) const {
    gone->tiers[0].occupied = bytes;
    EXPECT_TRUE(state_.write_removal(*gone).ok());
  }
  // What jobs and removals have together.
  uint64_t sum(const StateDir& state) const {
    const Result<Fd> lock = state.lock_ledger(60000);
    EXPECT_TRUE(lock.ok());
    uint64_t bytes = 0;
    for (const std::string& key : state.jobs())
      if (const Result<JobRecord> r = state.read_record(key); r.ok()) bytes += r->tiers.at(0).quota;
    for (const std::string& name : state.removals())
      if (const Result<JobRecord> r = state.read_removal(name); r.ok()) bytes += r->tiers.at(0).charged();
    return bytes;
  }

  void change(uint32_t job, const std::function<void(JobRecord*)>& how) {
    Result<JobRecord> r = state_.read_record(record(job).job.key());
    ASSERT_TRUE(r.ok());
    how(&*r);
    ASSERT_TRUE(state_.write_record(*r).ok());
    ASSERT_TRUE(tell_granted(state_, *r).ok());
  }
  // It has that, and is to have no more.
  void pin(uint32_t job, uint64_t bytes) {
    change(job, [=](JobRecord* r) { r->tiers[0].quota = r->tiers[0].share = bytes; });
  }
  TierRecord tier_of(uint32_t job) const { return state_.read_record(record(job).job.key())->tiers[0]; }
  uint64_t quota(uint32_t job) const { return tier_of(job).quota; }
  static std::string line(uint64_t bytes) { return "nvme " + std::to_string(bytes) + "\n"; }
  std::string told(uint32_t job) const {
    const Result<std::string> text = state_.read(record(job).grants());
    return text.ok() ? *text : "";
  }

  const std::string tier_ = scratch_.dir("tier");
  std::atomic<uint64_t> capacity_{0};  // of who began last
};

TEST_F(LedgerTest, AJobGetsItsShareOrWhatIsLeftOfIt) {
  EXPECT_EQ(begin(1, 1), 25 * kMiB) << "also while it is alone";
  EXPECT_EQ(told(1), line(25 * kMiB));
  EXPECT_EQ(begin(2, 2), 50 * kMiB);
  EXPECT_EQ(begin(3, 2), 25 * kMiB);
  EXPECT_EQ(capacity_, 25 * kMiB);
  EXPECT_EQ(begin(3, 2), 25 * kMiB) << "its own does not count against it";
  EXPECT_EQ(begin(4), 0u);
  EXPECT_EQ(quota(1) + quota(2), 75 * kMiB) << "of the others nothing is taken";
  EXPECT_FALSE(can_grant(state_)) << "all is taken, and all know";
}

// Each looks at the sum once it has begun, or once it has freed or granted something.
TEST_F(LedgerTest, JobsThatBeginAtOnceAndBesideARemovalHaveNoMoreThanTheQuotaTogether) {
  constexpr uint32_t kJobs = 6;
  JobRecord gone = remove(60 * kMiB);
  Threads(kJobs + 1, [&](uint32_t i) {
    const Result<StateDir> state = StateDir::open(state_.path());
    ASSERT_TRUE(state.ok());
    if (i < kJobs) {
      begin_at(*state, i + 1, 2);
      EXPECT_LE(sum(*state), 100 * kMiB);
      return;
    }
    for (uint64_t left = 60; left > 0;) {
      left -= 6;
      occupies(&gone, left * kMiB);
      grant(*state);
      EXPECT_LE(sum(*state), 100 * kMiB);
    }
  }).join();
  grant(state_);
  EXPECT_EQ(sum(state_), 100 * kMiB);
}

TEST_F(LedgerTest, WhatARemovalHoldsFollowsOnceItIsFree) {
  JobRecord gone = remove(60 * kMiB);
  EXPECT_EQ(begin(1, 2), 40 * kMiB) << "what it occupies is not known: its quota";
  EXPECT_EQ(capacity_, 50 * kMiB) << "what is to come counts";
  EXPECT_EQ(begin(2, 2), 0u);
  EXPECT_EQ(capacity_, 50 * kMiB);
  EXPECT_FALSE(can_grant(state_));
  occupies(&gone, 20 * kMiB);
  EXPECT_TRUE(can_grant(state_));
  const std::string log = logged([&] { grant(state_); });
  EXPECT_TRUE(has(log, "JobId=1 node=n1 has 10.0M more of the tiers: ended jobs have left it\n")) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 2) << "and the same of job 2: " << log;
  EXPECT_EQ(told(1), line(50 * kMiB));
  EXPECT_EQ(told(2), line(30 * kMiB));
  EXPECT_FALSE(can_grant(state_));
  occupies(&gone, 0);
  grant(state_);
  EXPECT_EQ(told(2), line(50 * kMiB));
  end(1);
  EXPECT_FALSE(can_grant(state_)) << "nobody gets more than the share that it had at its start";
}

TEST_F(LedgerTest, OfWhatIsRemovedThatTierCountsByWhatItOccupies) {
  JobRecord gone = remove(60 * kMiB);
  gone.tiers.push_back({"ssd", "ssd", "/other", TierConfig::Kind::kDirectory, 90 * kMiB, 90 * kMiB});
  occupies(&gone, 10 * kMiB);
  EXPECT_EQ(begin(2), 90 * kMiB);
}

TEST_F(LedgerTest, WithoutTheLockThereIsNoSpaceAtFirst) {
  {
    const Result<Fd> lock = state_.lock_ledger(0);
    const std::string log = logged([&] { EXPECT_EQ(begin_at(state_, 1, 2, 10), 0u); });
    EXPECT_TRUE(has(log, "begins without space on the tiers: ")) << log;
    EXPECT_EQ(capacity_, 0u);
    EXPECT_TRUE(can_grant(state_));
    clock_.pass_once([] { return true; });
    grant(state_);
    EXPECT_EQ(quota(1), 0u) << "still locked";
  }
  grant(state_);
  EXPECT_EQ(quota(1), 50 * kMiB);
}

TEST_F(LedgerTest, FreedSpaceGoesToTheEarliestThatRuns) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  EXPECT_EQ(begin(3), 0u);
  pin(1, 40 * kMiB);
  change(2, [](JobRecord* r) { r->serial = 5000; });  // it began after 3
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(quota(1), 40 * kMiB);
  EXPECT_EQ(quota(2), 0u);
  EXPECT_EQ(quota(3), 60 * kMiB);
  EXPECT_FALSE(can_grant(state_));
}

TEST_F(LedgerTest, NothingIsGivenToWhatHasEndedOrIsBeingEnded) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  change(1, [](JobRecord* r) { r->tiers[0].quota = 0; });
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
  EXPECT_EQ(mode_of(state_.path() + "/" + record(1).grants()), 0644u) << "for its agent";
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
  const std::string log = logged([&] { EXPECT_TRUE(tiers_for({1, "n1", "c"}, config).empty()); });
  EXPECT_TRUE(has(log, "tier nvme (" + tier_ + "): Input/output error")) << log;
}

TEST_F(LedgerTest, ADirectoryIsOneTierAndItsPathIsText) {
  Config config;
  config.tiers = tiers();
  config.tiers.push_back(tiers()[0]);
  ASSERT_EQ(::symlink(tier_.c_str(), (scratch_ / "link").c_str()), 0);
  config.tiers[1].path = scratch_ / "link";
  config.tiers.push_back(tiers()[0]);
  config.tiers[2].path = scratch_.dir("tier\xff");
  for (const char* name : {"tier #1", "tier ;1"}) {  // the agent would read /.../tier
    config.tiers.push_back(tiers()[0]);
    config.tiers.back().path = scratch_.dir(name);
  }
  const std::vector<TierConfig> found = tiers_for({1, "n1", "c"}, config);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].path, tier_);
}

TEST_F(LedgerTest, WhileARecordIsSpoiltNothingIsGranted) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  pin(1, 10 * kMiB);
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

// Its limit is as it was when it began.
TEST_F(LedgerTest, WhatATierHasIsWhatWhoRunsWasTold) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  change(1, [](JobRecord* r) { r->tiers[0].quota = 50 * kMiB; });
  change(2, [](JobRecord* r) {
    r->tiers[0].limit = 10 * kMiB;
    ++r->agent.start_time;
  });
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB);
}

TEST_F(LedgerTest, ARecordThatIsAnotherRunsByNowIsLeftAlone) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  change(1, [](JobRecord* r) { r->tiers[0].quota = 40 * kMiB; });
  const int status = in_child([&] {
    const auto begin_anew = [&](CallArguments a) {
      std::error_code none;
      const std::string path =
          std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(a[0]), none).string();
      if (!has(path, "/jobs/c.1.n1")) return 0;
      change(1, [](JobRecord* r) { r->serial = 77; });
      return 0;
    };
    if (!before_call(SYS_flock, begin_anew)) return 99;
    grant(state_);
    return 0;
  });
  if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(state_.read_record("c.1.n1")->serial, 77u);
  EXPECT_EQ(quota(1), 40 * kMiB);
}

TEST_F(LedgerTest, MemoryIsMadeLargerBeforeItIsTold) {
  const auto memory = [](JobRecord* r) {
    r->layout = 2;
    r->tiers[0].kind = TierConfig::Kind::kTmpfs;
  };
  const std::string dir = tier_ + "/monarch/" + record(2).removal();
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->check(begin(1) == 100 * kMiB && begin(2) == 0, "one has all");
    change(2, memory);
    TierConfig tier = tiers()[0];
    tier.kind = TierConfig::Kind::kTmpfs;
    tier.quota.bytes = 4096;
    m->check(make_job_dir(state_, tier, record(2).removal(), kUid).ok(), "the other one's memory");
    pin(1, 10 * kMiB);
    grant(state_);
    struct statfs fs {};
    m->check(::statfs(dir.c_str(), &fs) == 0 &&
                 static_cast<uint64_t>(fs.f_blocks) * static_cast<uint64_t>(fs.f_bsize) == 90 * kMiB,
             "it is as large as was told");
    m->check(told(2) == "nvme " + std::to_string(90 * kMiB) + "\n", told(2));
    m->check(!can_grant(state_), "and nothing is left to do");
    ::umount2(dir.c_str(), MNT_DETACH);
    pin(1, 0);
    const std::string log = logged([&] { grant(state_); });
    m->check(has(log, "JobId=2 share of the tiers: "), "it is logged: " + log);
    m->check(!has(log, "more of the tiers"), "and not that it has more: " + log);
    m->check(told(2) == "nvme " + std::to_string(90 * kMiB) + "\n", "what cannot be made larger is not told");
    m->check(quota(2) == 100 * kMiB && can_grant(state_), "and tried again");
  });
}

// A job with 640 MiB, and a tier that is charged to it. No process runs for it.
class ChargedTest : public LedgerTest {
 protected:
  void begin_charged() {
    JobRecord r = record(1);
    (void)state_.lock_job(r.job, true, 0);
    std::vector<TierConfig> wanted = tiers();
    wanted[0].charge = TierConfig::Charge::kJob;
    EXPECT_TRUE(grant_shares(state_, {4, 4, 640 * kMiB, 0}, &wanted, &r, 60000).ok());
    EXPECT_TRUE(tier_of(1).to_job);
    EXPECT_EQ(r.memory, 640 * kMiB);
    EXPECT_TRUE(tell_granted(state_, r).ok());
  }
  // It was looked for so long ago; and the job began, so long ago.
  void looked(int seconds) {
    change(1, [&](JobRecord* r) { r->memory_looked = ::time(nullptr) - seconds; });
  }
  void began(int seconds) {
    const uint64_t now_s = static_cast<uint64_t>(::time(nullptr) - seconds);
    change(1, [&](JobRecord* r) { r->serial = now_s * 1'000'000'000; });
  }
};

TEST_F(ChargedTest, ItsAgentIsToldWhereTheJobsMemoryCounts) {
  begin_charged();
  EXPECT_EQ(told(1), line(100 * kMiB)) << "which is not known yet";
  NodeTest::change(record(1).job, [](JobRecord* r) { r->memory_group = "/sys/group"; });
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(told(1), line(100 * kMiB) + "memory " + std::to_string(640 * kMiB) + " /sys/group\n");
  EXPECT_FALSE(can_grant(state_));
}

TEST_F(ChargedTest, ItsControlGroupIsLookedForEachSecondAndLaterSeldom) {
  begin_charged();
  began(0);
  {
    const Result<Fd> lock = state_.lock_job(record(1).job, false, 0);
    grant(state_);
    EXPECT_EQ(recorded(record(1).job).memory_looked, 0) << "who begins or ends is looked for later";
  }
  EXPECT_TRUE(can_grant(state_));
  EXPECT_EQ(logged([&] { grant(state_); }), "");
  EXPECT_TRUE(can_grant(state_)) << "each second";
  began(12);
  EXPECT_FALSE(can_grant(state_));
  looked(12);
  EXPECT_TRUE(can_grant(state_));
  const std::string log = logged([&] { grant(state_); });
  EXPECT_TRUE(
      has(log,
          "JobId=1 node=n1 goes without the tier that is charged to it: no control group of the job's "
          "counts its memory; set TaskPlugin=task/cgroup in slurm.conf and ConstrainRAMSpace=yes"))
      << log;
  EXPECT_FALSE(can_grant(state_));
  looked(12);
  EXPECT_EQ(logged([&] { grant(state_); }), "") << "it is said once";
}

}  // namespace
}  // namespace monarch
