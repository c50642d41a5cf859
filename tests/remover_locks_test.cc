// SPDX-License-Identifier: Apache-2.0
// What a job's owner keeps locked in the kernel while the remover is at work, and processes that hang there.
#include "runtime/node/job_dirs.h"

#include <list>

#include "runtime/base/os.h"
#include "runtime/node/life.h"
#include "runtime/node/memory_tier.h"
#include "tests/private_mounts.h"
#include "tests/remover_fixture.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

// A rename from one directory to another waits for all others of the file system. Jobs can write where their
// records are if a run directory is not bounded.
TEST_F(RemoverTest, WhoStopsRenamesWhereTheStateIsHoldsUpNoJob) {
  with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
    scratch_.dir("own");
    m->tmpfs("own", "state");
    const Result<StateDir> state = StateDir::open(scratch_ / "own/state");
    if (!state.ok()) return m->check(false, state.error().text);
    state_ = *state;
    std::vector<Removal> removals = begin_one(record(1));
    const std::string from = scratch_.dir("own/a"), to = scratch_.dir("own/b");
    fs::create_directory(from + "/x");
    locked->lock(::open(to.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const pid_t renames = ::fork();
    if (renames == 0) ::_exit(::rename((from + "/x").c_str(), (to + "/x").c_str()));
    m->check(is_soon_in_kernel(renames), "it waits");
    m->check(is_soon_done([&] { return set_aside(state_, std::move(removals)).size() == 1; }),
             "its end is not held up");
    m->check(::waitpid(renames, nullptr, WNOHANG) == 0, "though somebody's rename hangs");
    locked->end();
    m->check(in_removing() == Names{kRemoval} && jobs().empty(), "its record is that of a removal");
    m->check(remove(unattended_removals(state_), kLong), "and all is removed");
    end_children();
  });
}

// What is to be removed is what fills it.
TEST_F(RemoverTest, WhereTheStatesFileSystemIsFullAJobIsRemovedAllTheSame) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    scratch_.dir("own");
    m->tmpfs("own", "state");
    const Result<StateDir> state = StateDir::open(scratch_ / "own/state");
    if (!state.ok()) return m->check(false, state.error().text);
    state_ = *state;
    const JobRecord r = record(1);
    std::vector<Removal> removals = begin_one(r);
    {
      std::ofstream file(r.run_dir + "/data");
      const std::string block(4096, 'x');
      for (int i = 0; i < 100000 && file.write(block.data(), 4096).flush(); ++i) continue;
    }
    m->check(!state_.write("jobs/c.1.n1/alone", std::string(5000, 'x')).ok(), "it is full");
    removals = set_aside(state_, std::move(removals));
    m->check(removals.size() == 1 && jobs().empty() && in_removing() == Names{kRemoval}, "it is set aside");
    m->check(is_locked("removing/" + kRemoval), "and who removes it has its lock");
    m->check(remove(std::move(removals), kLong) && in_removing().empty() && runs().empty(),
             "and all is removed");
    m->check(names_in(state_.path() + "/grants").empty(), "its quotas, too");
    m->check(state_.write("jobs/file", std::string(5000, 'x')).ok(), "there is room again");
    end_children();
  });
}

// Just when root removes a file of the owner's, that has it locked: unlink(2) hangs, and nobody can kill it.
TEST_F(RemoverTest, WhatItsOwnerLocksHoldsUpNoOtherJob) {
  const Shared<std::atomic<pid_t>> hung;
  clock_.pass_once([&hung, seen = pid_t{0}]() mutable {
    return *hung > 0 && state_of(*hung) == 'D' && std::exchange(seen, *hung) != *hung;
  });
  with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
    std::vector<Removal> removals = aside_one(record(1));
    std::vector<Removal> other = aside_one(record(2));
    removals.push_back(std::move(other.at(0)));
    const std::string path = record(1).run_dir;
    struct stat run {};
    m->check(::stat(path.c_str(), &run) == 0, "its directory");
    const Intercept removes(Call::kUnlinkat, [&](Arguments& a) {
      struct stat st;
      if (a.flags == 0 && ::fstat(a.fd, &st) == 0 && st.st_ino == run.st_ino && st.st_dev == run.st_dev) {
        locked->lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        *hung = ::getpid();
      }
    });
    m->check(!remove(std::move(removals), 0), "it cannot be removed");
    const auto hangs_there = [&] {
      const Result<JobRecord> r = state_.read_removal(kRemoval);
      return r.ok() && hangs(*r);
    };
    m->check(eventually(hangs_there), "a process hangs, as is noted");
    m->check(eventually([&] { return in_removing() == Names{kRemoval}; }), "the other job's are removed");
    TierConfig tier;
    tier.name = "tier";
    tier.path = scratch_ / "tier";
    m->check(make_job_dir(state_, tier, "c.3.0.n1", kUid).ok(), "and the next job begins");
    for (int i = 0; i < 3; ++i) m->check(!remove(due(), kLong), "it is tried again");
    m->check(eventually([&] { return Cgroups().processes(state_.helpers_cgroup()).size() == 2; }),
             "one process is enough, beside the one that locks");
    locked->end();
    m->check(eventually([&] { return !hangs_there(); }), "it is unlocked");
    m->check(remove(due(), kLong) && in_removing().empty() && on_tier() == Names{"c.3.0.n1"},
             "once it is unlocked it is removed, with all that is the job's");
    end_children();
  });
}

TEST_F(RemoverTest, AllThatHangAreNoted) {
  JobRecord r = record(1);
  const pid_t first = start_idle(), second = start_idle();
  EXPECT_FALSE(hangs(r));
  for (const pid_t process : {first, second}) note_hanging(&r, process);
  end_child(second);
  EXPECT_TRUE(hangs(r)) << "the first one does still";
  note_hanging(&r, second);
  EXPECT_EQ(r.hanging.size(), 1u) << "one that has ended is not noted";
  end_child(first);
  EXPECT_FALSE(hangs(r));
}

// As one that read what a running job counts.
TEST_F(RemoverTest, WhatAProcessHungInBeforeIsNamed) {
  const pid_t reader = start_idle();
  JobRecord r = record(1);
  note_hanging(&r, reader);
  std::vector<Removal> removals = aside_one(r);
  const auto tried = [&](std::vector<Removal> one) {
    return logged([&] { EXPECT_FALSE(remove(std::move(one), kLong)); });
  };
  std::string log = tried(std::move(removals));
  EXPECT_TRUE(has(log, "clean up: waits for a process that hangs")) << log;
  for (uint32_t i = 1; i <= kTriesUntilNamed; ++i) log = tried(due());
  EXPECT_TRUE(has(log, "left as " + scratch_ / ("tier/monarch/" + kRemoval + ", "))) << log;
  EXPECT_EQ(tried(due()), "") << "it was told";
  EXPECT_EQ(on_tier(), Names{kRemoval});
  end_child(reader);
  EXPECT_TRUE(remove(due(), kLong)) << "it has ended";
  nothing_is_left();
}

// ---- remover attempts

TEST_F(RemoverTest, WhatWasNotMeasuredWholeIsChargedAsBefore) {
  std::vector<Removal> removals = aside_one(record(1));
  fill_stuck(scratch_ / ("tier/monarch/" + kRemoval));
  static std::optional<LaterBy> too_late;
  const Intercept measures(Call::kFdopendir, [](Arguments&) {
    if (!too_late) too_late.emplace(3600);
  });
  const Stuck stuck;
  EXPECT_FALSE(remove(std::move(removals), kLong));
  EXPECT_EQ(state_.read_removal(kRemoval)->given_up, 1u);
  EXPECT_EQ(occupied(), std::nullopt);
}

// Seconds until a removal that was tried nine times in vain, and is once more, is tried again.
class GivenUpTest : public RemoverTest {
 protected:
  void expect_pause(
      int64_t seconds, const Intercept::Handler& opens = [](Arguments&) { return 0; }) const {
    JobRecord r = record(1);
    r.given_up = 9;
    fill_stuck(scratch_ / ("tier/monarch/" + kRemoval));
    const Stuck stuck;
    const Intercept looks(Call::kOpenat, opens);
    EXPECT_EQ(logged([&] { EXPECT_FALSE(remove(removal_of(r), kLong)); }), "") << "it was told before";
    const Result<JobRecord> left = state_.read_removal(kRemoval);
    ASSERT_TRUE(left.ok());
    EXPECT_EQ(left->given_up, 10u);
    EXPECT_GE(left->next_try - os::realtime_s(), seconds - 30);
    EXPECT_LE(left->next_try - os::realtime_s(), seconds);
  }
};

TEST_F(GivenUpTest, ATierThatDoesNotAnswerIsLookedAtAsSoonAsEver) {
  const Hung hung;
  clock_.pass_once([&] { return hung.now(); });
  expect_pause(60, [&](Arguments& a) -> int {
    if (scratch_ / "tier" == a.path) hung.here();
    return 0;
  });
}

TEST_F(GivenUpTest, WhatCannotBeRemovedIsTriedEverMoreSeldom) { expect_pause(512); }

// As the keeper does, each second.
TEST_F(GivenUpTest, InAnHourWhatCannotBeRemovedIsTriedTwelveTimes) {
  fill_stuck(scratch_ / ("tier/monarch/" + kRemoval));
  const Stuck stuck;
  (void)removal_of(record(1));
  int attempts = 0;
  for (int64_t second = 0; second < 3600; ++second) {
    const LaterBy later(second);
    std::vector<Removal> due = unattended_removals(state_);
    attempts += static_cast<int>(due.size());
    EXPECT_TRUE(due.empty() || !remove(std::move(due), kLong));
  }
  EXPECT_GE(attempts, 11);
  EXPECT_LE(attempts, 12);
}

class LateTest : public RemoverTest {
 protected:
  enum class Measured { kWhole, kInPart };

  // Whether all is removed where the first attempts are late, each by more than is tried otherwise; else it
  // is given up.
  bool removed_after(int late_attempts, Measured measured, int seconds = 31) {
    std::vector<Removal> removals = aside_one(record(1));
    fs::remove_all(record(1).run_dir);
    const Hung hung;
    const Shared<std::atomic<int>> late;
    *late = late_attempts;
    const Intercept removes(Call::kUnlinkat, [&](Arguments& a) {
      if (a.flags == 0 && late->fetch_sub(1) > 0) hung.here();  // a file
    });
    static std::list<LaterBy> later;
    clock_.pass_once([&, self = ::getpid(), seen = pid_t{0}]() mutable {
      if (::getpid() == self || !hung.now() || std::exchange(seen, hung.pid()) == hung.pid()) return false;
      later.emplace_back(seconds);
      return true;
    });
    const Intercept measures(Call::kFdopendir, [=](Arguments&) {
      if (measured == Measured::kInPart) later.emplace_back(3600);
    });
    return remove(std::move(removals), kLong);
  }
};

TEST_F(LateTest, AnAttemptThatIsLateIsFollowedByAnother) {
  EXPECT_TRUE(removed_after(1, Measured::kWhole));
  nothing_is_left();
}

TEST_F(LateTest, WhatIsLateForHalfAnHourIsGivenUp) {
  EXPECT_FALSE(removed_after(100, Measured::kWhole, 601));
  EXPECT_EQ(state_.read_removal(kRemoval)->given_up, 1u);
}

TEST_F(LateTest, WhatNobodyHasCountedIsTriedForLonger) {
  EXPECT_TRUE(removed_after(2, Measured::kInPart));
  nothing_is_left();
}

}  // namespace
}  // namespace monarch
