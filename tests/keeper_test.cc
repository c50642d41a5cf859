// SPDX-License-Identifier: Apache-2.0
// The keeper while things go wrong; tests/keeper.t has it started by hooks.
#include "runtime/node/keeper.h"

#include <sys/file.h>

#include "runtime/node/spool.h"
#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

// With lines for sacct as its duty, and a helper that writes them.
class KeeperTest : public NodeTest {
 protected:
  void SetUp() override {
    NodeTest::SetUp();
    if (!can_trap()) GTEST_SKIP() << "no system call can be trapped here";
  }
  KeeperRequest request() const { return {state_.path(), "", "", scratch_ / "helper"}; }
  void helper(const std::string& body) const {
    const std::string head = "#!/bin/sh\ncd " + scratch_.path() + "\necho $$ >>calls\n";
    fs::permissions(scratch_.file("helper", head + body + "\n"), fs::perms::owner_all);
    scratch_.file("calls", "");
  }
  std::vector<pid_t> called() const {
    std::ifstream in(scratch_ / "calls");
    std::vector<pid_t> pids;
    for (pid_t pid; in >> pid;) pids.push_back(pid);
    return pids;
  }
  void line(uint32_t job) const {
    EXPECT_TRUE(spool(state_, record(job), "monarch=1", Accounting::kSacct).ok());
  }
  std::vector<std::string> lines() const { return names_in(state_.path() + "/spool"); }

  // The exit status of a keeper with that trap in its process; `verdict`: what it is instead, unless 0.
  int keep_with(
      long call, const CallHandler& handler, const std::function<int()>& verdict = [] { return 0; }) const {
    return in_child([&] {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::alarm(600);
      if (!before_call(call, handler)) return kNoTraps;
      const int status = keep(request());
      const int instead = verdict();
      return instead ? instead : status;
    });
  }
};

TEST_F(KeeperTest, ADutyThatGoesOnIsNeitherBegunAnewNorLeftAlone) {
  helper(
      "until [ -e look.5 ]; do sleep 0.1; done\nrm state/spool/*\n"
      "until [ -e look.7 ]; do sleep 0.1; done\n: >done");
  line(1);
  size_t most = 0;
  int beats = 0;
  const auto look = [&](CallArguments) {
    most = std::max(most, children().size());
    if (!called().empty()) scratch_.file("look." + std::to_string(++beats), "");
    return 0;
  };
  const auto verdict = [&] {
    if (!fs::exists(scratch_ / "done")) return 10;  // it ends after what it has begun
    return most > 2 ? 11 : 0;                       // a duty, and a look whether monarchd was replaced
  };
  EXPECT_EQ(keep_with(SYS_rt_sigtimedwait, look, verdict), 0);
  EXPECT_EQ(called().size(), 1u);
}

TEST_F(KeeperTest, ADutyWhoseKeeperIsGoneDoesNothing) {
  helper("exit 0");
  line(1);
  const int status = in_child([&] {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    ::alarm(600);
    const int ended = keep_with(SYS_prctl, &kill_parent);
    wait_children();  // what it has begun
    return ended;
  });
  EXPECT_EQ(status, 128 + SIGKILL);
  EXPECT_TRUE(called().empty());
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(KeeperTest, ADutyThatHangsIsKilledAndDoneAgain) {
  helper("[ -e once ] && exit 0\n: >once\nkill -STOP $PPID\nexec sleep 1000");
  line(1);
  std::optional<LaterBy> later;
  const auto later_once = [&](CallArguments) {
    if (!later && fs::exists(scratch_ / "once")) later.emplace(200);
    return 0;
  };
  EXPECT_EQ(keep_with(SYS_rt_sigtimedwait, later_once), 0);
  EXPECT_TRUE(lines().empty());
  ASSERT_EQ(called().size(), 2u);
  EXPECT_TRUE(eventually([&] { return std::string("ZX").find(state_of(called()[0])) != std::string::npos; }))
      << "its helper goes with it";
}

TEST_F(KeeperTest, IsEndedWithWhatItHasBegun) {
  helper("exec sleep 1000");
  line(1);
  for (const int signal : {SIGTERM, SIGINT}) {
    const auto end_once = [&](CallArguments) {
      if (!called().empty()) ::kill(::getpid(), signal);
      return 0;
    };
    EXPECT_EQ(keep_with(SYS_rt_sigtimedwait, end_once), 0);
    EXPECT_EQ(lines().size(), 1u) << "the next one goes on";
    ASSERT_EQ(called().size(), 1u);
    const pid_t begun = called()[0];
    EXPECT_TRUE(eventually([&] { return std::string("ZX").find(state_of(begun)) != std::string::npos; }));
    helper("exec sleep 1000");
  }
}

TEST_F(KeeperTest, EndsOnceItsLockIsAnothers) {
  helper("exit 1");
  line(1);
  const auto replace = [&](CallArguments) {
    scratch_.file("state/keeper.lock.new", "");
    fs::rename(scratch_ / "state/keeper.lock.new", scratch_ / "state/keeper.lock");
    return 0;
  };
  EXPECT_EQ(keep_with(SYS_rt_sigtimedwait, replace), 0);
  EXPECT_EQ(lines().size(), 1u);
}

TEST_F(KeeperTest, GivesItsLockUpWhenNothingIsLeftAndLooksOnceMore) {
  helper("sleep 1");
  line(1);
  bool early = false, added = false;
  const auto add = [&](CallArguments a) {
    if (a[1] != LOCK_UN) return 0;
    early = early || !lines().empty();
    if (!early && !std::exchange(added, true)) line(2);  // as a hook that saw the lock held
    return 0;
  };
  EXPECT_EQ(keep_with(SYS_flock, add, [&] { return early ? 10 : 0; }), 0);
  EXPECT_TRUE(lines().empty());
  EXPECT_EQ(called().size(), 2u);
}

TEST_F(KeeperTest, StaysAsLongAsAnythingIsLeft) {
  for (const char* left : {"jobs/c.1.n1", "removing/c.1.0.n1.1000"}) {
    SCOPED_TRACE(left);
    scratch_.dir(std::string("state/") + left);
    const Fd held = lock_if_free(state_.path() + "/" + left);  // a helper is at work on it
    int beats = 0;
    const auto look = [&](CallArguments) {
      if (++beats == 2) fs::remove(state_.path() + "/" + left);
      return 0;
    };
    EXPECT_EQ(keep_with(SYS_rt_sigtimedwait, look, [&] { return beats >= 2 ? 0 : 10; }), 0);
  }
}

TEST_F(KeeperTest, WaitsForALockThatAHookHasForAMomentAndNotForAnothers) {
  helper("exit 0");
  line(1);
  const std::string path = state_.path() + "/keeper.lock";
  Fd held(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(::flock(held.get(), LOCK_EX), 0);
  const auto keep_in_child = [&] {
    return in_child([&] {
      ::alarm(600);
      held.reset();  // this process has it still
      return keep(request());
    });
  };
  EXPECT_EQ(keep_in_child(), 0);
  EXPECT_EQ(lines().size(), 1u) << "another lives";
  int looks = 0;
  const auto free_at_the_third = [&](CallArguments a) {
    if (a[1] == (LOCK_EX | LOCK_NB) && ++looks == 3) ::flock(held.get(), LOCK_UN);
    return 0;
  };
  EXPECT_EQ(keep_with(SYS_flock, free_at_the_third), 0);
  EXPECT_TRUE(lines().empty());
}

// How often a keeper is executed, which this program is not, while who starts it goes on.
class KeeperStartTest : public KeeperTest {
 protected:
  int executed() const {
    return in_child([&] {
      ::alarm(600);
      ::prctl(PR_SET_CHILD_SUBREAPER, 1);
      fs::remove(scratch_ / "returned");
      const auto count = [&](CallArguments) {
        if (eventually([&] { return exists(scratch_ / "returned"); }))
          scratch_.file("executed." + std::to_string(::getpid()), "");
        return EPERM;
      };
      if (!before_call(SYS_execve, count)) return kNoTraps;
      ensure_keeper(request());
      scratch_.file("returned", "");
      wait_children();
      int times = 0;
      for (const std::string& name : names_in(scratch_.path()))
        if (name.starts_with("executed.")) times += fs::remove(scratch_ / name) ? 1 : 0;
      return times;
    });
  }
};

TEST_F(KeeperStartTest, IsStartedOnceAndNotWaitedForWhereSomethingIsLeftAndNobodyHasTheLock) {
  EXPECT_EQ(executed(), 0);
  EXPECT_FALSE(exists(state_.path() + "/keeper.lock")) << "nothing is left";
  line(1);
  EXPECT_EQ(executed(), 1);
  const Fd lock(::open((state_.path() + "/keeper.lock").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX | LOCK_NB), 0);
  EXPECT_EQ(executed(), 0) << "one lives";
}

}  // namespace
}  // namespace monarch
