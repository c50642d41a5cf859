// SPDX-License-Identifier: Apache-2.0
// Whether a job's agent had died before its job ended, with processes that this program plays.
#include "runtime/node/life.h"

#include "tests/node_fixture.h"

namespace monarch {
namespace {

class LookAtAgentTest : public NodeTest {
 protected:
  // An agent in a group of its own, with a second thread; its first one ends once it is told to.
  bool start() {
    int ends[2];
    if (!Cgroups().make(state_.cgroup_of(record_), 0).ok() || ::pipe(ends) != 0) return false;
    const pid_t pid = ::fork();
    if (pid == 0) {
      char go;
      ::close(ends[1]);
      std::thread([] { idle(); }).detach();
      (void)!::read(ends[0], &go, 1);
      ::syscall(SYS_exit, 0);  // of this thread alone
    }
    ::close(ends[0]);
    end_first_thread_ = Fd(ends[1]);
    record_.agent = identify(pid).take();
    (void)begin(record_);
    return true;
  }
  void TearDown() override {
    if (::geteuid() == 0) Cgroups().end(state_.cgroup_of(record_), 30000);
    NodeTest::TearDown();
  }

  JobRecord record_ = record(1);
  Fd end_first_thread_;
};

TEST_F(LookAtAgentTest, OneThatLivesEndsWithItsJob) {
  if (!start()) GTEST_SKIP() << "no control group can be made here";
  EXPECT_EQ(look_at_agent(state_, record_), AgentEnd::kWithJob);
  EXPECT_TRUE(stop_agent(state_, record_, 30000));
  EXPECT_EQ(look_at_agent(state_, record_), AgentEnd::kWithJob)
      << "it was seen alive, and then killed by root";
}

TEST_F(LookAtAgentTest, OneThatWasKilledHadDied) {
  if (!start()) GTEST_SKIP() << "no control group can be made here";
  EXPECT_TRUE(kill_and_wait(record_.agent, 30000));
  EXPECT_EQ(look_at_agent(state_, record_), AgentEnd::kBefore);
  EXPECT_EQ(look_at_agent(state_, record_), AgentEnd::kBefore) << "whoever asks again finds the same";
}

// A killed process is listed as ended when its first thread has ended; on a busy node the others execute
// something for a while, and the sweep takes the job for dead by then.
TEST_F(LookAtAgentTest, OneWhoseFirstThreadHasEndedHadDied) {
  if (!start()) GTEST_SKIP() << "no control group can be made here";
  end_first_thread_.reset();
  ASSERT_TRUE(eventually([&] { return !is_running(record_.agent); }));
  ASSERT_FALSE(is_ending(record_.agent)) << "this is what the test is about";
  EXPECT_EQ(look_at_agent(state_, record_), AgentEnd::kBefore);
}

TEST_F(LookAtAgentTest, OneWithoutGroupsOfItsOwnIsNotJudged) {
  if (!start()) GTEST_SKIP() << "no control group can be made here";
  EXPECT_TRUE(kill_and_wait(record_.agent, 30000));
  EXPECT_TRUE(state_.mark(record_, kSharedGroup).ok());
  EXPECT_EQ(look_at_agent(state_, record_), AgentEnd::kWithJob) << "Slurm may have ended it";
}

}  // namespace
}  // namespace monarch
