// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/sweep.h"

#include <sys/time.h>

#include "runtime/base/patience.h"
#include "runtime/node/boot.h"
#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

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
  // Its agent is not there any more.
  static JobRecord ended(JobRecord r) {
    r.agent = *identify(::getpid());
    ++r.agent.start_time;
    return r;
  }
  static std::string key(uint32_t number) { return "c." + std::to_string(job(number)) + ".n1"; }
  static std::string name(uint32_t number) { return "c." + std::to_string(job(number)) + ".0.n1"; }
  // Its directories.
  static std::string dir(uint32_t number) { return name(number) + "." + std::to_string(kSerial); }
  void sweep_all(const std::vector<std::string>& tiers) const {
    const JobOnNode own = {job(9), "n1", "c"};
    sweep(state_, own);
    remove_in_background(state_, take_unrecorded(state_, own, tiers), 0);
  }
  void sweep_now(const std::vector<std::string>& tiers) const {
    sweep_all(tiers);
    wait_children();
  }
  static Names sorted(Names names) {
    std::sort(names.begin(), names.end());
    return names;
  }
  // On a busy machine one has no time for the first that is dead.
  void sweep_until_none_is_left() const {
    for (int i = 0; i < 50 && !jobs().empty(); ++i) sweep_now({});
    EXPECT_TRUE(jobs().empty());
  }
};

TEST_F(NodeSweepTest, WhatIsDeadGoesAndNothingElse) {
  (void)begin(dead(1));
  (void)begin(ended(record(job(2))));
  JobRecord alive = record(job(3));
  alive.agent = *identify(::getpid());
  (void)begin(alive);
  const Removal held = begin(dead(4));
  (void)begin(dead(9));
  ASSERT_TRUE(state_.lock_job({job(6), "n1", "c"}, true, 0).ok());
  change({job(5), "n1", "c"}, [](JobRecord* r) { r->notes.datasets = "/data"; });
  fill_with_copies(scratch_ / ("tier/monarch/" + dir(7)));
  sweep_now({scratch_ / "tier"});
  EXPECT_TRUE(in_removing().empty()) << "what has a record is no orphan, and is charged once";
  EXPECT_EQ(jobs(), (Names{key(3), key(4), key(5), key(9)}))
      << "it lives, a helper is at work on it, it is noted only, it is the caller's";
  EXPECT_EQ(on_tier(), (Names{dir(3), dir(4), dir(9)}));
  EXPECT_EQ(runs(), on_tier());
}

TEST_F(NodeSweepTest, WhatIsDeadIsAccountedForUnlessItIsOfAnEarlierBoot) {
  const auto begin_ended = [&](uint32_t number, const char* boot = "") {
    JobRecord r = ended(record(job(number)));
    r.of_cluster.account_program = "/helper";
    if (*boot) r.boot = boot;
    (void)begin(r);
  };
  begin_ended(1);
  begin_ended(2, "another");
  std::string log = logged([&] { sweep_until_none_is_left(); });
  ASSERT_EQ(state_.spooled().size(), 1u) << log;
  EXPECT_TRUE(state_.spooled()[0].starts_with(name(1) + ".")) << state_.spooled()[0];
  const std::string of_first = "JobId=" + std::to_string(job(1)) + " ";
  size_t lines = 0;
  for (size_t at = 0; (at = log.find(of_first, at)) != std::string::npos; ++at) ++lines;
  EXPECT_EQ(lines, 2u) << "that it is swept, and what is kept: " << log;
  std::filesystem::remove_all(state_.path() + "/spool");
  scratch_.file("state/spool", "");
  begin_ended(1);
  log = logged([&] { sweep_until_none_is_left(); });
  EXPECT_TRUE(has(log, "/spool/")) << "that no line is kept: " << log;
}

TEST_F(NodeSweepTest, WhoWaitsForASweepDoesNotWaitForAllThatAreDead) {
  for (const uint32_t number : {1, 2}) (void)begin(ended(record(job(number))));
  (void)begin(dead(3));
  {
    const Result<Fd> metrics = state_.lock_file("metrics.lock", 0);  // each waits for it
    sweep_now({});
  }
  const Names left = jobs();
  EXPECT_FALSE(left.empty()) << "the other one is the next sweep's";
  EXPECT_EQ(std::count(left.begin(), left.end(), key(3)), 0) << "it is not accounted for";
  sweep_until_none_is_left();
}

TEST_F(NodeSweepTest, AJobWithASlurmstepdIsNotDead) {
  const pid_t stepd = start_stepd(job(1), "0").pid;
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

TEST_F(NodeSweepTest, LinksAndFilesOfThatNameAreNotFollowed) {
  const std::string victim = scratch_ / "victim";
  fill(victim);
  ASSERT_EQ(::symlink(victim.c_str(), (scratch_ / ("tier/monarch/" + dir(1))).c_str()), 0);
  scratch_.file("tier/monarch/" + dir(2), "x");
  sweep_now({scratch_ / "tier"});
  EXPECT_EQ(on_tier().size(), 2u);
  EXPECT_EQ(names_in(victim), Names{"data"});
  EXPECT_TRUE(in_removing().empty());
}

TEST_F(NodeSweepTest, UnattendedRemovalsGoOn) {
  fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
  ASSERT_TRUE(state_.make_removal(record(job(1))).ok());
  sweep_now({});
  nothing_is_left();
}

TEST_F(NodeSweepTest, AHelperKilledAtAnyCallThatRemovesAJobLeavesItToTheNext) {
  const JobRecord job = dead(1);
  int kills = 0;
  const auto end_killed = [&] {
    return in_child([&] {
      int calls = 0;
      const Intercept kills_it(Call::kUnlinkat, [&](Arguments&) {
        if (calls++ == kills) ::raise(SIGKILL);
        return 0;
      });
      return set_aside(state_, begin_one(job)).size() == 1 ? 0 : 1;
    });
  };
  for (; kills < 2; ++kills) {
    EXPECT_EQ(end_killed(), 128 + SIGKILL) << "before the record goes, or its directory";
    sweep_until_none_is_left();
    nothing_is_left();
  }
  EXPECT_EQ(end_killed(), 0) << "there is no other call";
}

class SweepSpoiltTest : public NodeSweepTest {
 protected:
  void spoil(const std::string& of_key, const std::string& text = "no record") const {
    std::ofstream(state_.path() + "/jobs/" + of_key + "/record.json") << text;
  }
  void make_key(const std::string& of_key) const { scratch_.dir("state/jobs/" + of_key); }
};

TEST_F(SweepSpoiltTest, ASpoiltRecordGoesWithItsJobAndWhatItHad) {
  begin(dead(1)).lock.reset();
  spoil(key(1));
  const std::string log = logged([&] { sweep_all({scratch_ / "tier"}); });
  wait_children();
  nothing_is_left();
  EXPECT_TRUE(has(log, "the job's directories are removed by their names")) << log;
  EXPECT_TRUE(has(log, dir(1) + " have no record any more")) << log;
}

TEST_F(SweepSpoiltTest, ASpoiltRecordStaysWhileItsJobMayLive) {
  begin(dead(1)).lock.reset();
  spoil(key(1));
  const pid_t stepd = start_stepd(job(1), "0").pid;
  sweep_all({});
  EXPECT_EQ(jobs(), Names{key(1)});
  end_child(stepd);
  sweep_all({});
  EXPECT_TRUE(jobs().empty());
}

TEST_F(SweepSpoiltTest, SpoiltRecordsOfOthersAreTheirs) {
  const std::string number = std::to_string(job(1));
  const Names keys = {"c." + number + ".n2",
                      "d." + number + ".n1",
                      "cc." + number + ".n1",
                      "c.x.n1",
                      "c..n1",
                      "c." + number + "x.n1",
                      "c.n1",
                      "c.0.n1"};
  for (const std::string& k : keys) {
    make_key(k);
    spoil(k);
  }
  sweep_now({});
  EXPECT_EQ(jobs(), sorted(keys));
}

// Its process may be about to write it.
TEST_F(SweepSpoiltTest, ARecordThatIsNotThereYetIsNotSpoilt) {
  make_key(key(1));
  scratch_.file("state/jobs/" + key(1) + "/record.json", R"({"wanted": "/data"})");
  make_key(key(2));
  scratch_.dir("state/jobs/" + key(2) + "/record.json");
  make_key(key(3));
  const Fd held = lock_if_free(state_.path() + "/jobs/" + key(3));
  sweep_now({});
  EXPECT_EQ(jobs(), (Names{key(1), key(2), key(3)}));
}

TEST_F(SweepSpoiltTest, WhatIsOlderThanTheBootIsNobodysAnyMore) {
  make_key(key(1));
  make_key("c.n1");
  spoil("c.n1");
  scratch_.file("stat", "cpu 1 2\nbtime " + std::to_string(::time(nullptr) + 1000) + "\n");
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->check(::mount((scratch_ / "stat").c_str(), "/proc/stat", nullptr, MS_BIND, nullptr) == 0, "mount");
    const std::string log = logged([&] { sweep_all({}); });
    m->check(jobs().empty(), "there is neither");
    m->check(!has(log, "c.1") && log.find("removed by their names") == log.rfind("removed"),
             "the spoilt one is told: " + log);
  });
}

TEST_F(SweepSpoiltTest, WhatASpoiltRemovalWasForIsTakenAnew) {
  fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
  ASSERT_TRUE(state_.make_removal(record(job(1))).ok());
  const std::string record_file = state_.path() + "/removing/" + dir(1) + "/record.json";
  std::ofstream(record_file) << "no record";
  EXPECT_EQ(take_unrecorded(state_, {job(9), "n1", "c"}, {scratch_ / "tier"}).size(), 1u);
  EXPECT_TRUE(state_.read_removal(dir(1)).ok());
  std::filesystem::remove(record_file);
  EXPECT_TRUE(take_unrecorded(state_, {job(9), "n1", "c"}, {scratch_ / "tier"}).empty())
      << "one that is not written yet is somebody's";
}

class UnrecordedTest : public NodeSweepTest {
 protected:
  const JobOnNode own_ = {job(9), "n1", "c"};
  std::vector<Removal> take(const std::vector<std::string>& tiers) const {
    return take_unrecorded(state_, own_, tiers);
  }
};

TEST_F(UnrecordedTest, OneRecordForAllPlacesOfAName) {
  make_tier("other");
  fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
  fill_with_copies(scratch_ / ("other/monarch/" + dir(1)));
  fill_run(state_.path() + "/run/" + dir(1));
  fill_run(state_.path() + "/run/" + dir(2));  // on no tier
  const std::vector<Removal> taken = take({scratch_ / "tier", scratch_ / "other", scratch_ / "missing"});
  ASSERT_EQ(taken.size(), 2u);
  const JobRecord& r = taken[0].record;
  EXPECT_EQ((Names{r.name, r.job.key(), r.boot, r.run_dir}),
            (Names{name(1), key(1), boot_id(), state_.run_dir(r)}));
  Names paths;
  for (const TierRecord& t : r.tiers) {
    paths.push_back(t.path);
    EXPECT_TRUE(t.kind == TierConfig::Kind::kDirectory && t.quota > 0);
  }
  EXPECT_EQ(paths, (Names{scratch_ / "tier", scratch_ / "other"})) << "each of them is charged";
  EXPECT_EQ(taken[1].record.name, name(2));
  EXPECT_TRUE(taken[1].record.tiers.empty());
  EXPECT_TRUE(take({scratch_ / "tier"}).empty()) << "they have records now";
  EXPECT_EQ(in_removing().size(), 2u);
}

TEST_F(UnrecordedTest, WhereNobodyKnowsWhatHasARecordNothingIsTaken) {
  fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
  for (const char* records : {"jobs", "removing"}) {
    const std::string path = state_.path() + "/" + records;
    std::filesystem::rename(path, scratch_ / "kept");
    scratch_.file(std::string("state/") + records, "");
    EXPECT_TRUE(take({scratch_ / "tier"}).empty()) << records;
    std::filesystem::remove(path);
    std::filesystem::rename(scratch_ / "kept", path);
  }
  EXPECT_EQ(take({scratch_ / "tier"}).size(), 1u);
}

TEST_F(UnrecordedTest, WhatWasToldItsAgentGoes) {
  for (const std::string& n : {dir(1), dir(2)}) ASSERT_TRUE(state_.write("grants/" + n, "").ok());
  fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
  EXPECT_TRUE(remove_in_background(state_, take({scratch_ / "tier"}), 60000));
  EXPECT_EQ(names_in(state_.path() + "/grants"), Names{dir(2)});
}

// What has no record may be a job's that lives.
TEST_F(UnrecordedTest, WhatAJobWithASlurmstepdHasIsLeftUntilItHasEnded) {
  fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
  const pid_t stepd = start_stepd(job(1), "0").pid;
  EXPECT_TRUE(take({scratch_ / "tier"}).empty() && in_removing().empty());
  std::vector<Removal> taken = take_unrecorded(state_, own_, {scratch_ / "tier"}, job(1));
  EXPECT_EQ(taken.size(), 1u) << "its epilog has come";
  taken.clear();
  std::filesystem::remove_all(state_.path() + "/removing/" + dir(1));
  end_child(stepd);
  EXPECT_TRUE(remove_in_background(state_, take({scratch_ / "tier"}), 60000));
  EXPECT_TRUE(on_tier().empty());
}

TEST_F(UnrecordedTest, WhatAnAgentInAGroupOfAnotherStateDirectoryHasIsLeft) {
  const Cgroups groups;
  const auto stays_with = [&](const std::string& group, const std::string& process) {
    fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
    if (!groups.make(group, 0).ok()) return -1;
    const pid_t agent = start_idle();
    if (!process.empty()) (void)groups.enter(group, agent).ok();
    const bool stay = take({scratch_ / "tier"}).empty();
    end_child(agent);
    groups.end(group, 10000);
    std::filesystem::remove_all(scratch_ / ("tier/monarch/" + dir(1)));
    for (const std::string& removal : in_removing())
      std::filesystem::remove_all(state_.path() + "/removing/" + removal);
    return stay ? 1 : 0;
  };
  const std::string another = "ffff.1.";
  const int stay = stays_with(another + name(1) + ".5", "agent");
  if (stay == -1) GTEST_SKIP() << "no control group can be made here";
  EXPECT_EQ(stay, 1);
  EXPECT_EQ(stays_with(another + name(1) + ".5", ""), 0) << "nobody is in it";
  EXPECT_EQ(stays_with(another + name(2) + ".5", "agent"), 0) << "another job's";
  EXPECT_EQ(stays_with(another + "x" + name(1) + ".5", "agent"), 0) << "another cluster's";
  EXPECT_EQ(stays_with(state_.cgroup_prefix() + name(1) + ".5", "agent"), 0)
      << "this one would have a record";
}

TEST_F(UnrecordedTest, WhatIsRootsGoesByItsName) {
  const std::string serial = ".1764421973000000001", ours = name(1) + serial;
  const Names others = {
      "c." + std::to_string(job(2)) + ".0.n2" + serial,  // another node's
      "d." + std::to_string(job(2)) + ".0.n1" + serial,  // another cluster's
      name(2) + ".01764421973000000001",                 // not as it is written
      name(2) + ".17",                                   // no serial
      name(3) + "." + std::to_string(kSerial),           // a job that runs
  };
  JobRecord alive = record(job(3));
  alive.agent = *identify(::getpid());
  const Removal of_alive = begin(alive);
  for (const std::string& n : others) fill_with_copies(scratch_ / ("tier/monarch/" + n));
  fill_with_copies(scratch_ / ("tier/monarch/" + ours));
  fill_run(state_.path() + "/run/" + ours);
  std::vector<Removal> taken = take({scratch_ / "tier"});
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].record.removal(), ours);
  EXPECT_EQ(taken[0].record.job.job, job(1));
  EXPECT_TRUE(taken[0].record.has_roots_tiers());
  EXPECT_TRUE(take({scratch_ / "tier"}).empty()) << "it has a record now";
  EXPECT_TRUE(remove_in_background(state_, std::move(taken), 60000));
  EXPECT_EQ(on_tier(), sorted(others));
}

TEST_F(UnrecordedTest, WhatSomethingElseIsMountedOnIsNotTaken) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
    m->tmpfs("tier/monarch/" + dir(1), "foreign");
    m->check(take({scratch_ / "tier"}).empty(), "nobody knows whose it is");
    m->check(in_removing().empty(), "and nothing is noted");
  });
}

TEST_F(UnrecordedTest, NobodyElseLooksAtTheSameTime) {
  fill_with_copies(scratch_ / ("tier/monarch/" + dir(1)));
  {
    const Result<Fd> other = state_.lock_ledger(0);
    ASSERT_TRUE(other.ok());
    EXPECT_TRUE(take({scratch_ / "tier"}).empty());
    EXPECT_TRUE(in_removing().empty());
  }
  EXPECT_EQ(take({scratch_ / "tier"}).size(), 1u);
}

// As it is after a boot: of any node and cluster.
TEST_F(UnrecordedTest, OfEarlierBootsIsWhatWasMadeBefore) {
  const uint32_t number = job(2);  // a child's is another
  const std::string serial = ".1764421973000000001", alive = dir(3),
                    ours = "c.d." + std::to_string(number) + ".3.n.2" + serial;
  Names others = {alive, "c.0.0.n1" + serial, "c.1.x.n1" + serial, "c.1.0." + serial, ".1.0.n1" + serial,
                  "else"};
  for (const std::string& n : others) fill_with_copies(scratch_ / ("tier/monarch/" + n));
  fill_with_copies(scratch_ / ("tier/monarch/" + ours));
  ASSERT_TRUE(state_.lock_job(record(job(3)).job, true, 0).ok());
  ASSERT_TRUE(state_.write_record(record(job(3))).ok());
  const std::vector<std::string> tiers = {scratch_ / "tier"};
  EXPECT_TRUE(take_of_earlier_boots(state_, tiers).empty()) << "all is of this one";
  EXPECT_TRUE(in_removing().empty());
  scratch_.file("stat", "cpu 1 2\nbtime " + std::to_string(::time(nullptr) + 1000) + "\n");
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->check(::mount((scratch_ / "stat").c_str(), "/proc/stat", nullptr, MS_BIND, nullptr) == 0, "mount");
    std::vector<Removal> taken = take_of_earlier_boots(state_, tiers);
    m->check(taken.size() == 1, std::to_string(taken.size()) + " taken");
    if (taken.size() != 1) return;
    const JobRecord& r = taken[0].record;
    m->check(r.removal() == ours && r.has_roots_tiers() && r.job.job == number, r.name);
    m->check(r.job.cluster == "c.d" && r.job.node == "n.2", r.job.key());
    m->check(r.tiers.size() == 1 && r.tiers[0].quota > 0, "it is charged");
    m->check(remove_in_background(state_, std::move(taken), 60000), "it goes");
    m->check(on_tier() == sorted(others), "and nothing else");
  });
}

TEST_F(NodeSweepTest, AtBootThereIsAConfigurationOrNothingToDo) {
  const std::string good =
      scratch_.file("good", "[tier.a]\npath = " + (scratch_ / "tier") + "\nquota = 1M\n");
  EXPECT_TRUE(sweep_at_boot(scratch_ / "new", scratch_ / "missing").ok());
  EXPECT_FALSE(exists(scratch_ / "new")) << "nothing is made where Monarch is not used";
  EXPECT_FALSE(sweep_at_boot(scratch_ / "new", scratch_.file("bad", "[tier.a]\nquota = x\n")).ok());
  EXPECT_FALSE(sweep_at_boot(scratch_.file("file", ""), good).ok());
  begin(dead(1)).lock.reset();
  const int status = in_child([&] {
    const auto hide = [](CallArguments a) {
      return std::string(reinterpret_cast<const char*>(a[1])).ends_with("/mountinfo") ? EACCES : 0;
    };
    if (!before_call(SYS_openat, hide)) return 99;
    bool good_end = false;
    const std::string log = logged([&] {
      good_end = sweep_at_boot(scratch_ / "state", good).ok();
      wait_children();
    });
    return good_end ? !has(log, "discovery of tiers: ") ? 1 : 0 : 2;
  });
  if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_TRUE(jobs().empty()) << "what has a record goes in any case";
  EXPECT_EQ(status, 0);
}

TEST_F(NodeSweepTest, AtBootTheTiersGetTheirDirectories) {
  const std::string tier = scratch_.dir("fresh");
  std::filesystem::permissions(tier, std::filesystem::perms(01777));
  const std::string conf = scratch_.file("conf", "[tier.a]\npath = " + tier + "\nquota = 1M\n");
  EXPECT_TRUE(sweep_at_boot(scratch_ / "state", conf).ok());
  EXPECT_EQ(mode_of(tier + "/monarch"), 0711u) << "before any user can be in the way";
  wait_children();
}

// Of a job whose epilog does not come, as where slurmd is older than the plugin's line.
TEST_F(NodeSweepTest, WhatIsNotedOfAFailedStartGoesOnceItsJobHasNoSlurmstepd) {
  const auto note = [&](uint32_t number, const char* run, int seconds) {
    change({job(number), "n1", "c"}, [&](JobRecord* r) {
      r->notes.datasets = "/data";
      r->notes.failure.run = run;
    });
    const timeval when[2] = {{::time(nullptr) - seconds, 0}, {::time(nullptr) - seconds, 0}};
    ASSERT_EQ(::utimes((state_.path() + "/jobs/" + key(number)).c_str(), when), 0);
  };
  for (const uint32_t failed : {1, 6, 7, 9}) note(failed, "0", patience::kFailedSeconds + 100);
  note(2, "0", patience::kFailedSeconds - 100);
  note(3, "", patience::kFailedSeconds + 100);
  const Fd held = lock_if_free(state_.path() + "/jobs/" + key(6));
  const pid_t stepd = start_stepd(job(7), "0").pid;
  EXPECT_EQ(sorted(dead_jobs(state_)), (Names{key(1), key(9)}));
  sweep(state_, {job(9), "n1", "c"});
  EXPECT_EQ(jobs(), (Names{key(2), key(3), key(6), key(7), key(9)}))
      << "it is young, it was only noted, somebody is at work on it, it runs, it is the caller's";
  end_child(stepd);
  sweep_now({});
  EXPECT_EQ(jobs().size(), 5u) << "it has just run";
  note(7, "0", patience::kFailedSeconds + 100);
  sweep_now({});
  EXPECT_EQ(jobs(), (Names{key(2), key(3), key(6), key(9)}));
}

}  // namespace
}  // namespace monarch
