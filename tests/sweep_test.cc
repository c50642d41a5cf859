// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/sweep.h"

#include "tests/node_fixture.h"

namespace monarch {
namespace {

// Of jobs that no Slurm on this machine has.
class NodeSweepTest : public NodeTest {
 protected:
  static uint32_t job(uint32_t number) {
    return 3000000000u + static_cast<uint32_t>(::getpid()) * 10 + number;
  }
  JobRecord dead(uint32_t number) const {
    JobRecord r = record(job(number));
    r.boot = "another";
    return r;
  }
  static std::string key(uint32_t number) { return "c." + std::to_string(job(number)) + ".n1"; }
  static std::string name(uint32_t number) { return "c." + std::to_string(job(number)) + ".0.n1"; }
  void sweep_all(const std::vector<std::string>& tiers) const {
    const JobOnNode own = {job(9), "n1", "c"};
    sweep(state_, own);
    remove_in_background(state_, take_unrecorded(state_, own, tiers), 0);
  }
  void sweep_now(const std::vector<std::string>& tiers) const {
    sweep_all(tiers);
    wait_children();
  }
};

TEST_F(NodeSweepTest, WhatIsDeadGoesAndNothingElse) {
  (void)begin(dead(1));
  JobRecord ended = record(job(2));
  ended.agent = *identify(::getpid());
  ++ended.agent.start_time;
  (void)begin(ended);
  JobRecord alive = record(job(3));
  alive.agent = *identify(::getpid());
  (void)begin(alive);
  const Removal held = begin(dead(4));
  (void)begin(dead(9));
  ASSERT_TRUE(state_.lock_job({job(5), "n1", "c"}, true, 0).ok());
  sweep_now({});
  EXPECT_TRUE(in_removing().empty());
  EXPECT_EQ(jobs(), (Names{key(3), key(4), key(5), key(9)}))
      << "it lives, a helper is at work on it, it is noted only, it is the caller's";
  EXPECT_EQ(on_tier(), (Names{name(3), name(4), name(9)}));
  EXPECT_EQ(runs(), on_tier());
}

TEST_F(NodeSweepTest, AJobWithASlurmstepdIsNotDead) {
  const std::string title = "slurmstepd: [" + std::to_string(job(1)) + ".0]";
  const pid_t stepd = ::fork();
  if (stepd == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    ::execl("/bin/sleep", title.c_str(), "600", nullptr);
    ::_exit(127);
  }
  ASSERT_TRUE(
      eventually([&] { return contents("/proc/" + std::to_string(stepd) + "/cmdline").starts_with(title); }));
  JobRecord ended = record(job(1));
  ended.agent = {stepd, 1};
  (void)begin(ended);
  sweep_all({});
  EXPECT_EQ(jobs(), Names{key(1)});
  ended.boot = "another";
  ASSERT_TRUE(state_.write_record(ended).ok());
  sweep_all({});
  EXPECT_TRUE(jobs().empty()) << "that of an earlier boot is dead whoever has its number now";
}

TEST_F(NodeSweepTest, WhatIsAsideGoesIfItIsThisNodesAndNoRecordNamesIt) {
  const std::string ours = ".removed." + name(1) + ".77";
  const Names others = {
      ".removed.",
      ".removed." + name(2),                                 // no serial
      ".removed." + name(2) + ".077",                        // not as it is written
      ".removed." + name(2) + ".7x",                         //
      ".removed.0" + name(2) + ".7",                         //
      ".removed.c.0" + std::to_string(job(2)) + ".0.n1.77",  //
      ".removed.c.x.0.n1.77",                                //
      ".removed.c." + std::to_string(job(2)) + ".0.n2.77",   // another node's
      ".removed.d." + std::to_string(job(2)) + ".0.n1.77",   // another cluster's
      ".removed.cc." + std::to_string(job(2)) + ".0.n1.77",  //
      ".removed." + name(3) + ".1000",                       // somebody is at work on it
      "c." + std::to_string(job(2)) + ".0.n2",               //
      "else",                                                //
  };
  Names want = others;
  std::sort(want.begin(), want.end());
  const Result<Fd> lock = state_.make_removal(record(job(3)));
  ASSERT_TRUE(lock.ok());
  for (const std::string& n : others) fill(scratch_ / ("tier/monarch/" + n));
  fill(scratch_ / ("tier/monarch/" + ours));
  fill(scratch_ / ("tier/monarch/" + name(4)));  // of this boot
  const std::string foreign = ".removed." + name(1) + ".78";
  fill(scratch_ / ("tier/monarch/" + foreign));
  sweep_now({scratch_ / "tier", scratch_ / "missing"});
  EXPECT_EQ(on_tier(), want);
  for (const std::string& n : others)
    EXPECT_EQ(names_in(scratch_ / ("tier/monarch/" + n)), Names{"data"}) << n;
  EXPECT_EQ(in_removing(), Names{name(3) + ".1000"}) << "nothing is left of those that went";
}

TEST_F(NodeSweepTest, WhatHasARecordIsNoOrphan) {
  JobRecord alive = record(job(3));
  alive.agent = *identify(::getpid());
  (void)begin(alive);
  fill(scratch_ / ("tier/monarch/.removed." + name(1) + ".77"));  // something is to be done
  sweep_now({scratch_ / "tier"});
  EXPECT_EQ(on_tier(), Names{name(3)});
  EXPECT_EQ(runs(), on_tier());
  EXPECT_TRUE(in_removing().empty()) << "what it has is charged once";
}

TEST_F(NodeSweepTest, WhatLiesInAnothersOrphanStays) {
  const std::string orphan = scratch_ / ("tier/monarch/.removed." + name(1) + ".77");
  fill(orphan);
  const std::string kept = fill_with_roots(orphan + "/foreign");
  sweep_all({scratch_ / "tier"});
  const std::string removal = name(1) + ".77";
  EXPECT_TRUE(eventually([&] {
    const Result<JobRecord> r = state_.read_removal(removal);
    return r.ok() && r->tiers.at(0).occupied.has_value();
  }));
  EXPECT_EQ(state_.read_removal(removal)->user.uid, kUid) << "it is emptied with its owner's rights";
  EXPECT_EQ(state_.read_removal(removal)->job.job, job(1));
  EXPECT_GE(*state_.read_removal(removal)->tiers.at(0).occupied, kMiB);
  EXPECT_TRUE(exists(kept));
  EXPECT_FALSE(exists(orphan + "/data"));
}

TEST_F(NodeSweepTest, LinksAndFilesOfThatNameAreNotFollowed) {
  const std::string victim = scratch_ / "victim";
  fill(victim);
  const std::string link = scratch_ / ("tier/monarch/.removed." + name(1) + ".77");
  ASSERT_EQ(::symlink(victim.c_str(), link.c_str()), 0);
  scratch_.file("tier/monarch/.removed." + name(1) + ".78", "x");
  sweep_now({scratch_ / "tier"});
  EXPECT_EQ(on_tier().size(), 2u);
  EXPECT_EQ(names_in(victim), Names{"data"});
  EXPECT_TRUE(in_removing().empty());
}

TEST_F(NodeSweepTest, UnattendedRemovalsGoOn) {
  fill(scratch_ / ("tier/monarch/.removed." + name(1) + ".1000"));
  ASSERT_TRUE(state_.make_removal(record(job(1))).ok());
  sweep_now({});
  EXPECT_TRUE(on_tier().empty());
  EXPECT_TRUE(in_removing().empty());
}

TEST_F(NodeSweepTest, WhereThereIsNothingToDoNothingIsStarted) {
  sweep_all({});
  EXPECT_TRUE(children().empty());
}

}  // namespace
}  // namespace monarch
