// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/ledger.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>

#include "runtime/layout/board_layout.h"
#include "runtime/metadata/board.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/job_memory.h"
#include "runtime/node/life.h"
#include "runtime/node/slurmstepds.h"
#include "runtime/node/state.h"
#include "tests/manual_clock.h"
#include "tests/faulty_os.h"
#include "tests/hanging_fs.h"
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
    std::filesystem::permissions(scratch_.path(), std::filesystem::perms(0755));
    Result<StateDir> state = StateDir::open(scratch_ / "state", clock_);
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
    r.run_dir = scratch_ / ("run" + std::to_string(job));
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

  // The quota that it gets; with so many of the node's four cores, or nobody knows how many.
  uint64_t begin(uint32_t job, uint32_t cores = 0, TierConfig::Share share = TierConfig::Share::kCpus) {
    JobRecord r = record(job);
    (void)state_.lock_job(r.job, true, 0);
    std::vector<TierConfig> wanted = tiers();
    wanted[0].share = share;
    EXPECT_TRUE(reserve(state_, {cores, 4, 0, 0}, &wanted, &r, 1000).ok());
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
  // It has that, and is to have it.
  void pin(uint32_t job, uint64_t bytes) {
    change(job, [=](JobRecord* r) {
      TierRecord& t = r->tiers[0];
      t.quota = t.share = t.reserved = bytes;
      t.asked.reset();
    });
  }
  // The keeper comes again each second: on a busy machine a board may not be read in time.
  static void grant(const StateDir& state) {
    for (int i = 0; i < 3; ++i) monarch::grant(state, 5000);
  }
  // What its agent says that it keeps to; or its owner, what he likes.
  std::string says(uint32_t job, uint64_t bytes) {
    const std::string run_dir = record(job).run_dir;
    std::filesystem::remove_all(run_dir);
    std::filesystem::create_directory(run_dir);
    Result<BoardFile> board = BoardFile::create(run_dir);
    EXPECT_TRUE(board.ok());
    (*board)->granted[0] = bytes;
    struct stat st;
    const std::string file = state_.path() + "/" + record(job).grants();
    if (::stat(file.c_str(), &st) == 0 && st.st_mtim.tv_sec + 1 >= ::time(nullptr)) told_before(job, 2);
    for (const std::string& path : {run_dir, run_dir + "/board"})
      EXPECT_EQ(::chown(path.c_str(), kNobody, kNobody), 0);
    return run_dir + "/board";
  }
  // 0: just now, however long the test takes.
  void told_before(uint32_t job, int seconds) const {
    const timespec then = {::time(nullptr) + (seconds == 0 ? 3600 : -seconds), 0};
    const timespec times[2] = {then, then};
    const std::string file = state_.path() + "/" + record(job).grants();
    EXPECT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0);
  }
  TierRecord tier_of(uint32_t job) const { return state_.read_record(record(job).job.key())->tiers[0]; }
  static std::string line(uint64_t bytes) { return "nvme " + std::to_string(bytes) + "\n"; }
  uint64_t quota(uint32_t job) const { return state_.read_record(record(job).job.key())->tiers[0].quota; }
  std::string told(uint32_t job) const {
    const Result<std::string> text = state_.read(record(job).grants());
    return text.ok() ? *text : "";
  }

  const Scratch scratch_;
  const std::string tier_ = scratch_.dir("tier");
  PatientClock clock_;
  StateDir state_;
};

TEST_F(LedgerTest, AJobGetsWhatOthersLeave) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  pin(1, 30 * kMiB);
  pin(2, 0);
  EXPECT_EQ(begin(3), 70 * kMiB);
  EXPECT_EQ(begin(3), 70 * kMiB) << "its own does not count against it";
  EXPECT_EQ(begin(4), 0u);
  EXPECT_EQ(tier_of(4).share, 100 * kMiB);
  EXPECT_EQ(tier_of(4).reserved, 0u) << "and others have reserved all";
}

TEST_F(LedgerTest, AShareIsAsTheJobsPartOfTheNode) {
  EXPECT_EQ(begin(1, 1), 100 * kMiB) << "alone it has all";
  EXPECT_EQ(tier_of(1).reserved, 25 * kMiB);
  EXPECT_EQ(told(1), line(100 * kMiB));
  const std::string log = logged(scratch_, [&] { EXPECT_EQ(begin(2, 2), 0u); });
  EXPECT_EQ(tier_of(2).reserved, 50 * kMiB);
  EXPECT_EQ(quota(1), 100 * kMiB) << "until it has given it back";
  EXPECT_EQ(told(1), line(50 * kMiB)) << "at once";
  EXPECT_NE(log.find("JobId=1 node=n1 is asked to give back 50.0M of the tiers"), std::string::npos) << log;
  EXPECT_TRUE(can_grant(state_)) << "what it gives back is looked for";
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB);
  says(1, 50 * kMiB);
  told_before(1, 0);
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB) << "that may have been before it was asked";
  told_before(1, 2);
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(quota(1), 50 * kMiB);
  EXPECT_EQ(quota(2), 50 * kMiB);
  EXPECT_EQ(told(2), line(50 * kMiB));
  EXPECT_FALSE(can_grant(state_)) << "all have what they are to have";
  EXPECT_EQ(begin(3, 4, TierConfig::Share::kEqual), 0u);
  EXPECT_FALSE(tier_of(3).equal) << "all cores are the whole node";
  EXPECT_EQ(told(1), line(25 * kMiB)) << "of which this is what nobody has reserved";
  EXPECT_EQ(told(2), line(50 * kMiB));
}

TEST_F(LedgerTest, EqualSharesFollowTheNumberOfJobs) {
  EXPECT_EQ(begin(1, 1, TierConfig::Share::kEqual), 100 * kMiB);
  EXPECT_EQ(tier_of(1).reserved, 100 * kMiB);
  EXPECT_EQ(begin(2, 3, TierConfig::Share::kEqual), 0u);
  EXPECT_EQ(told(1), line(50 * kMiB));
  says(1, 50 * kMiB);
  grant(state_);
  EXPECT_EQ(quota(1), 50 * kMiB);
  EXPECT_EQ(quota(2), 50 * kMiB);
  EXPECT_EQ(tier_of(1).reserved, 50 * kMiB);
}

TEST_F(LedgerTest, WhatIsGivenBackIsWhatAnAgentCouldHave) {
  EXPECT_EQ(begin(1, 1), 100 * kMiB);
  EXPECT_EQ(begin(2, 2), 0u);
  const std::string board = says(1, 0);
  const auto stays = [&](const char* what) {
    told_before(1, 2);
    grant(state_);
    EXPECT_EQ(quota(1), 100 * kMiB) << what;
    EXPECT_EQ(quota(2), 0u) << what;
  };
  stays("less than it was asked for: not of this time");
  for (const uint64_t bytes : {50 * kMiB - 1, 100 * kMiB, 100 * kMiB + 1, UINT64_MAX}) {
    says(1, bytes);
    stays("not what was asked for, or what it has");
  }
  says(1, 50 * kMiB);
  std::filesystem::resize_file(board, 5000);
  stays("no board");
  std::filesystem::remove(board);
  stays("none");
  ASSERT_EQ(::mkfifo(board.c_str(), 0666), 0);
  stays("a fifo");
  says(1, 50 * kMiB);
  std::filesystem::rename(board, board + "2");
  std::filesystem::create_symlink(board + "2", board);
  stays("a link");
  says(1, 50 * kMiB);
  ASSERT_EQ(::chown(board.c_str(), 0, 0), 0);
  ASSERT_EQ(::chmod(board.c_str(), 0600), 0);
  stays("it is read with the owner's rights");
  says(1, 70 * kMiB);
  told_before(1, 2);
  grant(state_);
  EXPECT_EQ(quota(1), 70 * kMiB) << "a part of it";
  EXPECT_EQ(told(1), line(50 * kMiB));
  EXPECT_EQ(quota(2), 30 * kMiB);
}

TEST_F(LedgerTest, WhoDoesNotGiveBackIsNotWaitedFor) {
  EXPECT_EQ(begin(1, 1), 100 * kMiB);
  EXPECT_EQ(begin(2, 1), 0u);
  says(1, 100 * kMiB);
  told_before(1, 5);
  EXPECT_EQ(logged(scratch_, [&] { grant(state_); }), "");
  told_before(1, 12);
  EXPECT_TRUE(can_grant(state_));
  const std::string log = logged(scratch_, [&] { grant(state_); });
  EXPECT_NE(log.find("JobId=1 node=n1 does not give back what it is asked for"), std::string::npos) << log;
  EXPECT_FALSE(can_grant(state_)) << "it is looked at seldom from now on";
  says(1, 75 * kMiB);
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB);
  const timespec then[2] = {{::time(nullptr) - 12, 0}, {::time(nullptr) - 12, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (state_.path() + "/jobs/c.1.n1/late").c_str(), then, 0), 0);
  EXPECT_TRUE(can_grant(state_));
  says(1, 100 * kMiB);
  EXPECT_EQ(logged(scratch_, [&] { grant(state_); }), "") << "it was said";
  ASSERT_EQ(::utimensat(AT_FDCWD, (state_.path() + "/jobs/c.1.n1/late").c_str(), then, 0), 0);
  says(1, 75 * kMiB);
  grant(state_);
  EXPECT_EQ(quota(1), 75 * kMiB);
  EXPECT_EQ(quota(2), 25 * kMiB);
}

TEST_F(LedgerTest, OfTheReadersOfAJobsFilesOneAtMostHangs) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  begin(1, 1);
  begin(2, 1);
  const std::string runs = scratch_.dir("runs"), key = record(1).job.key();
  change(1, [&](JobRecord* r) { r->run_dir = runs + "/1"; });
  told_before(1, 5);
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    std::optional<HangingFs> hanging(std::in_place, runs, ",allow_other");
    m->check(hanging->is_mounted(), "mount");
    clock_.pass_once([&] { return hanging->is_asked(); });
    grant(state_);
    m->check(hangs(state_, "jobs/" + key), "one hangs");
    m->check(children(::getpid()).size() == 2, "and no other, beside the file system's process");
    m->check(!hangs(state_, "jobs/" + record(2).job.key()), "which is the one job's");
    hanging.reset();
    m->check(eventually([&] { return !hangs(state_, "jobs/" + key); }),
             "once it does not hang any more it does not count");
  });
}

TEST_F(LedgerTest, WhoBeginsOrEndsIsAskedLater) {
  EXPECT_EQ(begin(1, 1), 100 * kMiB);
  {
    const Result<Fd> lock = state_.lock_job(record(1).job, false, 0);
    EXPECT_EQ(begin(2, 1), 0u);
    EXPECT_EQ(told(1), line(100 * kMiB)) << "who has its lock writes its record";
    grant(state_);
    EXPECT_EQ(told(1), line(100 * kMiB));
  }
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(told(1), line(75 * kMiB));
  change(1, [](JobRecord* r) { ++r->agent.start_time; });
  says(1, 75 * kMiB);
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB) << "what an agent that has ended said is not looked at";
}

TEST_F(LedgerTest, WhatIsNotNeededAnyMoreIsNotAskedForAnyMore) {
  EXPECT_EQ(begin(1, 1), 100 * kMiB);
  EXPECT_EQ(begin(2, 1), 0u);
  EXPECT_EQ(told(1), line(75 * kMiB));
  ASSERT_TRUE(state_.remove_job(record(2).job.key()).ok());
  EXPECT_TRUE(can_grant(state_));
  grant(state_);
  EXPECT_EQ(told(1), line(100 * kMiB));
  EXPECT_FALSE(tier_of(1).asked);
}

TEST_F(LedgerTest, WhatIsRemovedCountsByWhatItOccupies) {
  JobRecord gone = record(1);
  gone.tiers.push_back({"nvme", "nvme", tier_, TierConfig::Kind::kDirectory, 60 * kMiB, 100 * kMiB, {}, ""});
  gone.tiers.push_back({"ssd", "ssd", "/other", TierConfig::Kind::kDirectory, 90 * kMiB, 90 * kMiB, {}, ""});
  ASSERT_TRUE(state_.make_removal(gone).ok());
  EXPECT_EQ(begin(2), 40 * kMiB) << "unknown: its quota, of this tier";
  ASSERT_TRUE(state_.remove_job(record(2).job.key()).ok());
  gone.tiers[0].occupied = 10 * kMiB;
  ASSERT_TRUE(state_.write_removal(gone).ok());
  EXPECT_EQ(begin(2), 90 * kMiB);
}

// The tier's disk was replaced.
TEST_F(LedgerTest, WhatIsOnAnotherFileSystemDoesNotCount) {
  JobRecord gone = record(9);
  gone.tiers = {{"nvme", "nvme", tier_, TierConfig::Kind::kDirectory, 60 * kMiB, 100 * kMiB, {}, "another"}};
  ASSERT_TRUE(state_.make_removal(gone).ok());
  EXPECT_EQ(begin(1), 40 * kMiB) << "an id may have changed: nobody has looked";
  const std::string here = tier_of(1).file_system;
  const auto beside = [&](const std::string& file_system, bool away) {
    gone.tiers[0].file_system = file_system;
    gone.tiers[0].away = away;
    EXPECT_TRUE(state_.write_removal(gone).ok());
    return begin(1);
  };
  EXPECT_EQ(beside("another", true), 100 * kMiB);
  EXPECT_EQ(beside("", false), 40 * kMiB) << "nobody knows of which it is";
  EXPECT_EQ(beside(here, false), 40 * kMiB);
  EXPECT_EQ(beside(here, true), is_file_system_id(here) ? 40 * kMiB : 100 * kMiB)
      << "it is back, and nobody has looked again; without an id nobody knows";
}

// What was not looked for is no reason to ask others for space.
TEST_F(LedgerTest, WhatWasAwayIsNotStuck) {
  JobRecord back = record(9);
  back.tiers = {{"nvme",
                 "nvme",
                 tier_,
                 TierConfig::Kind::kDirectory,
                 60 * kMiB,
                 100 * kMiB,
                 {},
                 file_system_at(tier_)}};
  if (!is_file_system_id(back.tiers[0].file_system)) GTEST_SKIP() << "the file system has no id";
  back.tiers[0].away = true;
  back.given_up = 3;
  back.next_try = 1;
  back.away_since = ::time(nullptr);
  ASSERT_TRUE(state_.make_removal(back).ok());
  EXPECT_EQ(begin(1, 1), 40 * kMiB);
  begin(2, 2);
  grant(state_);
  EXPECT_FALSE(tier_of(1).asked) << "another has 50 MiB reserved, and that much is to come";
  back.away_since = 0;
  EXPECT_TRUE(state_.write_removal(back).ok());
  grant(state_);
  EXPECT_TRUE(tier_of(1).asked) << "nobody could remove it";
}

TEST_F(LedgerTest, WithoutTheLockThereIsNoSpace) {
  const Result<Fd> lock = state_.lock_ledger(0);
  JobRecord r = record(1);
  (void)state_.lock_job(r.job, true, 0);
  std::vector<TierConfig> wanted = tiers();
  const std::string log = logged(scratch_, [&] { EXPECT_TRUE(reserve(state_, {}, &wanted, &r, 10).ok()); });
  EXPECT_NE(log.find("begins without space on the tiers: "), std::string::npos) << log;
  EXPECT_EQ(wanted[0].quota.bytes, 0u);
  EXPECT_EQ(quota(1), 0u);
  EXPECT_TRUE(can_grant(state_)) << "it was not told";
  EXPECT_TRUE(tell_quotas(state_, r).ok());
  clock_.pass_once([] { return true; });
  grant(state_);
  EXPECT_EQ(quota(1), 0u) << "still locked";
}

TEST_F(LedgerTest, FreedSpaceGoesToTheEarliestThatRuns) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  EXPECT_EQ(begin(3), 0u);
  EXPECT_FALSE(can_grant(state_)) << "all is taken, and all know";
  pin(1, 40 * kMiB);
  change(2, [](JobRecord* r) { r->serial = 5000; });  // it began after 3
  EXPECT_TRUE(can_grant(state_));
  const std::string log = logged(scratch_, [&] { grant(state_); });
  EXPECT_NE(log.find("JobId=3 node=n1 has 60.0M more of the tiers: other jobs gave it back\n"),
            std::string::npos)
      << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << "and nothing else: " << log;
  EXPECT_EQ(quota(1), 40 * kMiB);
  EXPECT_EQ(quota(2), 0u);
  EXPECT_EQ(quota(3), 60 * kMiB);
  EXPECT_EQ(told(3), "nvme " + std::to_string(60 * kMiB) + "\n");
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

// Jobs with 640 MiB, of which the margin is 40 MiB, and a tier that is charged to them.
class ChargedTest : public LedgerTest {
 protected:
  // What is used as it begins; nothing: that is not known.
  uint64_t begin_charged(uint32_t job, std::optional<uint64_t> used, uint32_t cores = 0) {
    JobRecord r = record(job);
    (void)state_.lock_job(r.job, true, 0);
    std::vector<TierConfig> wanted = tiers();
    wanted[0].charge = TierConfig::Charge::kJob;
    EXPECT_TRUE(reserve(state_, {cores, 4, 640 * kMiB, 0, used}, &wanted, &r, 1000).ok());
    EXPECT_EQ(r.memory, 640 * kMiB);
    EXPECT_TRUE(tell_quotas(state_, r).ok());
    EXPECT_TRUE(state_.write("jobs/" + r.job.key() + "/serves", "/data").ok());
    return quota(job);
  }
  void uses(uint64_t bytes) {
    scratch_.file("group/memory.current", std::to_string(bytes) + "\n");
    scratch_.file("group/memory.stat", "inactive_file 0\nactive_file 0\nfile_dirty 0\nfile_writeback 0\n");
  }
  void note(uint32_t job) {
    EXPECT_TRUE(note_memory_group(state_, record(job).job, scratch_ / "group").ok());
  }
  void rests(uint32_t job, int64_t seconds) {
    change(job, [=](JobRecord* r) { r->tiers[0].room->since -= seconds; });
  }
  std::string grants() {
    return logged(scratch_, [&] { grant(state_); });
  }
};

TEST_F(ChargedTest, TheTierIsWithinWhatTheJobLeaves) {
  EXPECT_EQ(begin_charged(1, 550 * kMiB), 50 * kMiB);
  EXPECT_EQ(tier_of(1).reserved, 50 * kMiB) << "no more is kept from others";
  EXPECT_EQ(begin_charged(2, 0), 50 * kMiB) << "of the node's";
}

TEST_F(ChargedTest, ItGivesWayToTheJobAndGrowsAgain) {
  EXPECT_EQ(begin_charged(1, 0), 100 * kMiB);
  note(1);
  uses(100 * kMiB);
  EXPECT_FALSE(can_grant(state_)) << "it is large enough for both";
  uses(520 * kMiB);
  EXPECT_FALSE(can_grant(state_)) << "half of the margin";
  uses(521 * kMiB);
  EXPECT_TRUE(can_grant(state_));
  std::string log = grants();
  EXPECT_NE(log.find("JobId=1 node=n1 is asked to give back 21.0M of the tiers: its own memory needs it"),
            std::string::npos)
      << log;
  EXPECT_EQ(told(1), line(79 * kMiB));
  EXPECT_EQ(quota(1), 100 * kMiB) << "until it has given it back";
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << "and nothing else: " << log;
  uses(600 * kMiB);
  grant(state_);
  EXPECT_EQ(told(1), line(0));
  told_before(1, 2);
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB) << "an agent that says nothing has given nothing back";
  says(1, 0);
  grant(state_);
  EXPECT_EQ(quota(1), 0u);
  EXPECT_FALSE(can_grant(state_));
  uses(520 * kMiB);
  EXPECT_FALSE(can_grant(state_)) << "not at once";
  rests(1, kLeastRoomWait);
  EXPECT_TRUE(can_grant(state_));
  log = grants();
  EXPECT_NE(log.find("JobId=1 node=n1 has 40.0M more of the tiers: its own memory leaves it"),
            std::string::npos)
      << log;
  EXPECT_EQ(told(1), line(40 * kMiB));
  EXPECT_FALSE(can_grant(state_));
  rests(1, kLeastRoomWait);
  EXPECT_EQ(told(1), line(40 * kMiB));
}

TEST_F(ChargedTest, WhatItLeavesIsOthers) {
  EXPECT_EQ(begin_charged(1, 0), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  note(1);
  uses(570 * kMiB);
  grant(state_);
  EXPECT_EQ(told(1), line(30 * kMiB));
  says(1, 30 * kMiB);
  grant(state_);
  EXPECT_EQ(quota(1), 30 * kMiB);
  EXPECT_EQ(quota(2), 70 * kMiB);
}

TEST_F(ChargedTest, WhatCannotBeReadChangesNothing) {
  EXPECT_EQ(begin_charged(1, 0), 100 * kMiB);
  note(1);
  EXPECT_FALSE(can_grant(state_)) << "between two steps there is no group";
  uses(600 * kMiB);
  scratch_.file("group/memory.stat", "inactive_file -1\n");
  EXPECT_FALSE(can_grant(state_));
  uses(600 * kMiB);
  EXPECT_TRUE(can_grant(state_));
}

// No process runs for these jobs.
TEST_F(ChargedTest, NothingIsGivenBeforeItIsKnownWhatTheJobUses) {
  EXPECT_EQ(begin_charged(1, {}), 0u);
  EXPECT_TRUE(can_grant(state_)) << "it is looked for";
  EXPECT_EQ(grants(), "");
  EXPECT_TRUE(can_grant(state_)) << "each second";
  const auto age = [&](const std::string& file, int seconds) {
    const timespec then[2] = {{::time(nullptr) - seconds, 0}, {::time(nullptr) - seconds, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (state_.path() + "/jobs/c.1.n1/" + file).c_str(), then, 0), 0);
  };
  age("serves", 12);
  EXPECT_FALSE(can_grant(state_)) << "and later seldom";
  age("memory", 12);
  EXPECT_TRUE(can_grant(state_));
  const std::string log = grants();
  EXPECT_NE(
      log.find("JobId=1 node=n1 goes without the tier that is charged to it: no control group of the job's "
               "counts its memory; set TaskPlugin=task/cgroup in slurm.conf and ConstrainRAMSpace=yes"),
      std::string::npos)
      << log;
  EXPECT_FALSE(can_grant(state_));
  age("memory", 12);
  EXPECT_EQ(grants(), "") << "it is said once";
  EXPECT_EQ(quota(1), 0u);
  note(1);
  uses(0);
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB) << "all at once";
}

TEST_F(LedgerTest, WhatOneJobHasGivenBackIsNoOthers) {
  const auto has_more_than_its_share = [&](uint32_t job) {
    change(job, [](JobRecord* r) {
      r->tiers[0].quota = 50 * kMiB;
      r->tiers[0].share = r->tiers[0].reserved = 10 * kMiB;
    });
  };
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  for (const uint32_t job : {1u, 2u}) has_more_than_its_share(job);
  EXPECT_EQ(begin(3), 0u);
  EXPECT_EQ(told(1) + told(2), line(10 * kMiB) + line(10 * kMiB));
  says(1, 10 * kMiB);
  says(2, 50 * kMiB);
  grant(state_);
  EXPECT_EQ(quota(1), 10 * kMiB);
  EXPECT_EQ(quota(2), 50 * kMiB);
  EXPECT_EQ(quota(3), 40 * kMiB);
}

TEST_F(LedgerTest, NobodyIsToldOfMoreBeforeItIsRecorded) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  pin(1, 40 * kMiB);
  (void)begin(3);
  EXPECT_EQ(told(2), line(0)) << "what is free is the keeper's to give";
  EXPECT_EQ(quota(2), 0u);
}

TEST_F(LedgerTest, AJobGetsItsOwnWhoeverBeganLater) {
  EXPECT_EQ(begin(5), 100 * kMiB);
  EXPECT_EQ(begin(1), 0u);
}

TEST_F(LedgerTest, WhileARecordIsSpoiltNobodyIsAskedForAnything) {
  EXPECT_EQ(begin(1, 1), 100 * kMiB);
  scratch_.file("state/jobs/c.3.n1/record.json", "{");
  EXPECT_EQ(begin(2, 2), 0u);
  EXPECT_EQ(told(1), line(100 * kMiB));
}

TEST_F(LedgerTest, WhatHasEndedIsToldNothing) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  change(1, [](JobRecord* r) { ++r->agent.start_time; });
  ASSERT_TRUE(state_.write(record(1).grants(), "nvme 5\n").ok());
  grant(state_);
  EXPECT_EQ(told(1), "nvme 5\n");
}

// Its limit is as it was when it began.
TEST_F(LedgerTest, WhatATierHasIsWhatWhoRunsWasTold) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  EXPECT_EQ(begin(2), 0u);
  pin(1, 50 * kMiB);
  change(2, [](JobRecord* r) {
    r->tiers[0].limit = 10 * kMiB;
    ++r->agent.start_time;
  });
  grant(state_);
  EXPECT_EQ(quota(1), 100 * kMiB);
}

TEST_F(LedgerTest, ARecordThatIsAnotherRunsByNowIsLeftAlone) {
  EXPECT_EQ(begin(1), 100 * kMiB);
  pin(1, 40 * kMiB);
  const int status = in_child([&] {
    const auto begin_anew = [&](CallArguments a) {
      std::error_code none;
      const std::string path =
          std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(a[0]), none).string();
      if (path.find("/jobs/c.1.n1") == std::string::npos) return 0;
      change(1, [](JobRecord* r) { r->serial = 77; });
      return 0;
    };
    if (!before_call(SYS_flock, begin_anew)) return 99;
    monarch::grant(state_);
    return 0;
  });
  if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(state_.read_record("c.1.n1")->serial, 77u);
  EXPECT_EQ(quota(1), 40 * kMiB);
}

TEST_F(LedgerTest, AJobHasNoMoreThanItsCapacity) {
  const auto capped = [&](uint32_t job, Quota capacity) {
    JobRecord r = record(job);
    (void)state_.lock_job(r.job, true, 0);
    std::vector<TierConfig> wanted = tiers();
    wanted[0].job_capacity = capacity;
    EXPECT_TRUE(reserve(state_, {}, &wanted, &r, 1000).ok());
    EXPECT_TRUE(tell_quotas(state_, r).ok());
    return quota(job);
  };
  EXPECT_EQ(capped(1, Quota{0, 25}), 25 * kMiB);
  EXPECT_EQ(tier_of(1).most, 25 * kMiB);
  EXPECT_EQ(capped(2, Quota{5 * kMiB + 1, -1}), 5 * kMiB) << "in blocks";
  EXPECT_EQ(capped(3, Quota{1, -1}), 4096u) << "a block at least";
  EXPECT_EQ(capped(4, Quota{0, 100}), 70 * kMiB - 4096);
  EXPECT_EQ(tier_of(4).most, UINT64_MAX) << "whatever the tier has";
}

TEST_F(ChargedTest, OfATierThatIsNotItGetsAsEver) {
  JobRecord r = record(1);
  (void)state_.lock_job(r.job, true, 0);
  std::vector<TierConfig> wanted = tiers();
  wanted.push_back(tiers()[0]);
  wanted[0].name = "ram";
  wanted[0].path = scratch_.dir("ram");
  wanted[0].charge = TierConfig::Charge::kJob;
  wanted[1].quota.bytes = 80 * kMiB;
  EXPECT_TRUE(reserve(state_, {0, 0, 640 * kMiB, 0, 550 * kMiB}, &wanted, &r, 1000).ok());
  EXPECT_TRUE(tell_quotas(state_, r).ok());
  EXPECT_EQ(wanted[0].quota.bytes, 50 * kMiB);
  EXPECT_EQ(wanted[1].quota.bytes, 80 * kMiB);
  note(1);
  uses(590 * kMiB);
  grant(state_);
  EXPECT_EQ(told(1), "ram " + std::to_string(10 * kMiB) + "\n" + line(80 * kMiB));
  says(1, 10 * kMiB);
  grant(state_);
  const JobRecord now = *state_.read_record("c.1.n1");
  EXPECT_EQ(now.tiers.at(0).quota, 10 * kMiB);
  EXPECT_EQ(now.tiers.at(1).quota, 80 * kMiB);
  EXPECT_FALSE(now.tiers.at(1).room);
}

TEST_F(ChargedTest, WhoBeginsOrEndsIsLookedForLater) {
  EXPECT_EQ(begin_charged(1, {}), 0u);
  const Result<Fd> lock = state_.lock_job(record(1).job, false, 0);
  ASSERT_TRUE(lock.ok());
  grant(state_);
  EXPECT_FALSE(state_.read("jobs/c.1.n1/memory").ok());
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
    pin(1, 10 * kMiB);
    grant(state_);
    struct statfs fs {};
    m->check(::statfs((tier_ + "/monarch/" + record(2).name + "/files").c_str(), &fs) == 0 &&
                 static_cast<uint64_t>(fs.f_blocks) * static_cast<uint64_t>(fs.f_bsize) == 90 * kMiB,
             "it is as large as was told");
    m->check(told(2) == "nvme " + std::to_string(90 * kMiB) + "\n", told(2));
    m->check(!can_grant(state_), "and nothing is left to do");
    ::umount2((tier_ + "/monarch/" + record(2).name + "/files").c_str(), MNT_DETACH);
    pin(1, 0);
    const std::string log = logged(scratch_, [&] { grant(state_); });
    m->check(log.find("JobId=2 share of the tiers: ") != std::string::npos, "it is logged: " + log);
    m->check(log.find("more of the tiers") == std::string::npos, "and not that it has more: " + log);
    m->check(told(2) == "nvme " + std::to_string(90 * kMiB) + "\n", "what cannot be made larger is not told");
    m->check(quota(2) == 100 * kMiB && can_grant(state_), "and tried again");
  });
}

TEST_F(LedgerTest, MemoryIsMadeSmallerByRoot) {
  const User user = {kNobody, kNobody, {}};
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->check(begin(1, 1) == 100 * kMiB, "one has all");
    change(1, [](JobRecord* r) { r->tiers[0].kind = TierConfig::Kind::kTmpfs; });
    TierConfig tier = tiers()[0];
    tier.kind = TierConfig::Kind::kTmpfs;
    m->check(make_job_dir(state_, tier, record(1).name, user).ok(), "its memory");
    const std::string mount = tier_ + "/monarch/" + record(1).name + "/files";
    const std::string held = mount + "/held";
    const Fd fd(::open(held.c_str(), O_WRONLY | O_CREAT, 0600));
    m->check(fd && ::posix_fallocate(fd.get(), 0, 80 * kMiB) == 0, "is used");
    says(1, 75 * kMiB);
    m->check(begin(2, 1) == 0 && told(1) == line(75 * kMiB), "another one begins");
    told_before(1, 1);
    grant(state_);
    m->check(quota(1) == 100 * kMiB, "the kernel knows better what is used");
    m->check(::ftruncate(fd.get(), 70 * kMiB) == 0, "less is used");
    m->check(state_.write(record(1).grants(), told(1), 0644).ok(), "it was told just now");
    told_before(1, 0);
    grant(state_);
    m->check(quota(1) == 100 * kMiB, "its agent may not have looked yet");
    told_before(1, 1);
    grant(state_);
    struct statfs fs {};
    m->check(::statfs(mount.c_str(), &fs) == 0 &&
                 static_cast<uint64_t>(fs.f_blocks) * static_cast<uint64_t>(fs.f_bsize) == 75 * kMiB,
             "it is smaller");
    m->check(quota(1) == 75 * kMiB && quota(2) == 25 * kMiB, "and the other one has the rest");
    ::umount2(mount.c_str(), MNT_DETACH);
  });
}

}  // namespace
}  // namespace monarch
