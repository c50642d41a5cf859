// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/probe.h"

#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

class ProbeTest : public NodeTest {
 protected:
  static constexpr int kLong = 60000;
};

TEST_F(ProbeTest, WhatIsThereAndWhatIsNotAnswers) {
  scratch_.file("file", "");
  const std::vector<bool> all(4, true);
  EXPECT_EQ(
      probe(state_, {scratch_ / "tier", scratch_.path(), scratch_ / "missing", scratch_ / "file"}, kLong),
      all);
  EXPECT_TRUE(probe(state_, {}, 0).empty());
  EXPECT_TRUE(no_child_is_left());
  EXPECT_TRUE(Cgroups().names(state_.cgroup_prefix()).empty()) << "nor a control group for one";
}

// What the child that looks at `tier` does next hangs, where `now` says so.
class HangingProbeTest : public ProbeTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(HangingProbeTest, DoesNotAnswerAndHoldsNothingUp) {
  make_tier("other");
  const std::string hung = scratch_ / "tier", at = GetParam();
  static thread_local bool here;
  const Shared<std::atomic<int>> looking;
  const auto hang = [&](const std::string& call) {
    if (!here || at != call) return 0;
    for (++*looking;;) ::pause();  // and so the next thread has not been here
  };
  const Intercept opens(Call::kOpenat, [&](Arguments& a) {
    here |= hung == a.path;
    return hang(std::string(a.path) == "monarch" ? "monarch" : "open");
  });
  const Intercept looks(Call::kFstatvfs, [&](Arguments&) { return hang("statvfs"); });
  clock_.pass_once([&] { return *looking == 2 && children_that_run() == 1; });
  EXPECT_EQ(probe(state_, {hung, scratch_ / "other", hung}, kLong), (std::vector<bool>{false, true, false}));
  EXPECT_TRUE(no_child_is_left());
}

INSTANTIATE_TEST_SUITE_P(Calls, HangingProbeTest, ::testing::Values("open", "statvfs", "monarch"));

TEST_F(ProbeTest, ProcessThatDiesHasNotAnsweredAndIsNotWaitedFor) {
  const Intercept dies(Call::kOpenat, [](Arguments&) { return ::kill(::getpid(), SIGKILL); });
  const int64_t begin = clock_.now_ms();
  EXPECT_EQ(probe(state_, {scratch_ / "tier"}, kLong), std::vector<bool>{false});
  EXPECT_LT(clock_.now_ms() - begin, kLong);
}

TEST_F(ProbeTest, AProcessThatHangsInTheKernelIsLeftToTheHelpersGroup) {
  const Cgroups groups;
  if (!groups.make(state_.helpers_cgroup(), 0).ok()) GTEST_SKIP() << "no control group can be made here";
  groups.remove_if_empty(state_.helpers_cgroup());
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    const HangingFs hanging(scratch_ / "tier");
    m->check(hanging.is_mounted(), "mount");
    clock_.pass_once([&] { return hanging.is_asked(); });
    m->check(!probe(state_, {scratch_ / "tier"}, kLong).at(0), "it does not answer");
    const std::vector<pid_t> left = children();
    const std::vector<int> in_group = groups.processes(state_.helpers_cgroup());
    m->check(in_group.size() == 1 && std::count(left.begin(), left.end(), in_group[0]) == 1, "it is there");
  });
}

TEST_F(ProbeTest, AUserEntersWhatItMayEnter) {
  const std::string open = scratch_.dir("open"), closed = scratch_.dir("closed");
  std::filesystem::permissions(open, std::filesystem::perms(0711));
  constexpr gid_t kGroup = 65531;
  std::filesystem::permissions(closed, std::filesystem::perms(0710));
  ASSERT_EQ(::chown(closed.c_str(), 0, kGroup), 0);
  const User user = {kUid, kUid, {}};
  EXPECT_EQ(can_enter(user, {open, closed, open}), (std::vector<bool>{true, false, true}));
  EXPECT_EQ(can_enter({kUid, kUid, {kGroup}}, {closed}), std::vector<bool>{true}) << "by its group";
  EXPECT_EQ(can_enter(user, {scratch_ / "none"}), std::vector<bool>{true}) << "who cannot be told tries";
  EXPECT_TRUE(exists(closed + "/.")) << "and root is root again";
}

TEST_F(ProbeTest, AUsersMountBesideTheJobsIsNotAsked) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->fuse("tier/monarch", 65533, ",allow_other");
    m->check(probe(state_, {scratch_ / "tier"}, kLong).at(0), "it hangs, and the tier does not");
    m->fuse("tier", 65533, ",allow_other");
    clock_.pass_once([] { return has_child_in_state('D') || has_child_in_state('S'); });
    m->check(!probe(state_, {scratch_ / "tier"}, kLong).at(0), "the tier itself hangs");
    m->check(no_child_is_left(), "no process is left behind");
  });
}

// Users can enter them, but not list them.
TEST_F(ProbeTest, ADirectoryThatIsLockedByARenameDoesNotAnswer) {
  const StateDir state = *StateDir::open(state_.path());  // by the system's clock
  TierConfig tier;
  tier.path = scratch_ / "tier";
  const std::string own = scratch_.dir("own"), jobs = tier.path + "/monarch";
  for (const std::string& place : {jobs, state.path(), state.path() + "/run", state.path() + "/grants"}) {
    const auto answers = [&] {
      const Prepared which = prepare(state, {tier}, 3000);
      return place == jobs ? which.tiers.at(0) : which.state;
    };
    with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
      m->check(answers(), place + " answers");
      locked->lock(::open(own.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      if (::fork() == 0) ::_exit(::rename((own + "/x").c_str(), (place + "/y").c_str()));
      m->check(eventually([&] { return !answers(); }), place + " does not once it is locked");
      locked->end();
      m->check(eventually(answers), "it does again");
      end_children();
    });
  }
}

}  // namespace
}  // namespace monarch
