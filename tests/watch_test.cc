// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/watch.h"

#include <sys/time.h>

#include <list>

#include "runtime/base/os.h"
#include "runtime/metadata/board.h"
#include "runtime/node/epilog.h"
#include "runtime/hierarchy/job_room.h"
#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

int64_t boot_seconds() { return os::clock_ns(CLOCK_BOOTTIME) / 1'000'000'000; }

// Of jobs that no Slurm on this machine has. Processes of root's that are called so stand for slurmstepds.
class WatchTest : public NodeTest {
 protected:
  // The same in a child.
  static inline const auto kTest = static_cast<uint32_t>(::getpid());
  static uint32_t id(uint32_t number) { return 3000000000u + kTest * 10 + number; }
  static Stepd start_stepd(uint32_t number, const std::string& step, const std::string& tasks = "") {
    return NodeTest::start_stepd(id(number), step, tasks);
  }
  static void stop(pid_t pid) {
    ::kill(pid, SIGSTOP);
    EXPECT_TRUE(comes_to(pid, 'T'));
  }

  // A job with that agent, or one of its own; nobody holds its lock.
  JobRecord begin_job(uint32_t number, pid_t agent = 0) {
    JobRecord r = record(id(number));
    r.agent = *identify(agent ? agent : start_idle());
    r.serves = "/data";
    (void)begin(r);
    return r;
  }
  JobRecord job_of(uint32_t number) const { return recorded(record(id(number)).job); }
  void change(const std::function<void(JobRecord*)>& change) const {
    NodeTest::change(record(id(1)).job, change);
  }
  // It had a slurmstepd that lives as long as it does.
  void anchor() const {
    change([](JobRecord* r) { r->anchors = {{::getpid(), 1}}; });
  }
  // The job is seen without a slurmstepd, and so much time passes.
  void alone_for(int64_t seconds) {
    change([=](JobRecord* r) { r->alone_since = boot_seconds(); });
    later_.emplace_back(seconds);
  }
  static void make_older(const std::string& dir, int hours) {
    const timeval when[2] = {{::time(nullptr) - 3600 * hours, 0}, {::time(nullptr) - 3600 * hours, 0}};
    EXPECT_EQ(::utimes(dir.c_str(), when), 0);
  }
  static bool comes_to(pid_t pid, char state) {
    return eventually([&] { return state_of(pid) == state; });
  }
  bool need_look() const { return jobs_need_look(request(), state_); }
  void watch() const { watch_jobs(request(), state_); }
  KeeperRequest request() const { return {state_.path(), "", "", ""}; }

 private:
  std::list<LaterBy> later_;
};

TEST_F(WatchTest, AJobThatRunsIsLookedAtOnce) {
  const JobRecord job = begin_job(1);
  const Stepd stepd = start_stepd(1, "0", "r");
  EXPECT_TRUE(need_look());
  watch();
  EXPECT_EQ(job_of(1).stepd, std::vector<ProcessId>{*identify(stepd.pid)});
  EXPECT_FALSE(need_look());
  EXPECT_EQ(job_of(1).alone_since, 0);
  EXPECT_FALSE(job_of(1).suspended);
  EXPECT_TRUE(comes_to(job.agent.pid, 'S'));
  change([&](JobRecord* r) { r->stepd[0].start_time = 1; });
  EXPECT_TRUE(need_look()) << "another process has that one's number";
  watch();
  EXPECT_FALSE(need_look());
  ::kill(stepd.tasks[0], SIGKILL);
  EXPECT_TRUE(eventually([&] { return need_look(); })) << "nothing of it runs";
  watch();
  EXPECT_FALSE(job_of(1).suspended) << "it may begin its next task";
  end_child(stepd.pid);
  const Stepd later = start_stepd(1, "1", "r");
  EXPECT_TRUE(need_look()) << "the one that was seen is gone";
  watch();
  EXPECT_FALSE(need_look());
}

TEST_F(WatchTest, WhatHasNoAgentIsNotLookedAtUnlessItsHelperWasKilled) {
  JobRecord job = record(id(1));
  job.serial = static_cast<uint64_t>(::time(nullptr)) * 1000000000;
  (void)begin(job);
  EXPECT_FALSE(need_look());
  watch();
  EXPECT_EQ(job_of(1).alone_since, 0);
  fs::remove_all(scratch_ / ("tier/monarch/" + job.removal()));
  fs::remove_all(job.run_dir);
  job.serial -= uint64_t{100} * 1000000000;
  job.run_dir = state_.run_dir(job);
  (void)begin(job);
  EXPECT_TRUE(need_look());
  watch();
  EXPECT_GT(job_of(1).alone_since, 0);
  anchor();
  alone_for(kAnchoredGraceSeconds);
  watch();
  EXPECT_TRUE(jobs().empty()) << "it is ended";
  EXPECT_TRUE(eventually([&] { return on_tier().empty() && in_removing().empty(); }));
}

TEST_F(WatchTest, TheAgentRestsWhileAllTasksAreStopped) {
  const JobRecord job = begin_job(1);
  const Stepd stepd = start_stepd(1, "0", "rzr"), second = start_stepd(1, "1", "r");
  stop(stepd.tasks[0]);
  watch();
  EXPECT_EQ(state_of(job.agent.pid), 'S') << "others run";
  EXPECT_FALSE(job_of(1).suspended);
  stop(stepd.tasks[2]);
  watch();
  EXPECT_EQ(state_of(job.agent.pid), 'S') << "those of another step do";
  stop(second.tasks[0]);
  EXPECT_TRUE(need_look());
  watch();
  EXPECT_TRUE(comes_to(job.agent.pid, 'T'));
  EXPECT_TRUE(job_of(1).suspended);
  watch();
  EXPECT_EQ(state_of(job.agent.pid), 'T');
  ::kill(stepd.tasks[0], SIGCONT);
  EXPECT_TRUE(comes_to(stepd.tasks[0], 'S'));
  EXPECT_TRUE(need_look());
  watch();
  EXPECT_TRUE(comes_to(job.agent.pid, 'S'));
  EXPECT_FALSE(job_of(1).suspended);
}

TEST_F(WatchTest, TheAgentRestsWhileItsTasksAreFrozen) {
  const JobRecord job = begin_job(1);
  const Stepd stepd = start_stepd(1, "0", "r");
  const Cgroups groups;
  const std::string name = "unit-test." + std::to_string(::getpid());
  (void)groups.make(name, 0).ok();
  const auto freeze = [&](const char* v1, const char* v2) {
    for (const CgroupHierarchy& h : groups.hierarchies())
      std::ofstream(h.mount + "/monarch/" + name + (h.unified ? "/cgroup.freeze" : "/freezer.state"))
          << (h.unified ? v2 : v1) << std::flush;
  };
  const auto can_freeze = [](const CgroupHierarchy& h) { return h.unified || h.has("freezer"); };
  const auto join = [&](bool freezer) {
    for (const CgroupHierarchy& h : groups.hierarchies())
      if (can_freeze(h) == freezer)
        std::ofstream(h.mount + "/monarch/" + name + "/cgroup.procs") << stepd.tasks[0] << std::flush;
  };
  join(false);
  freeze("FROZEN", "1");
  watch();
  EXPECT_EQ(state_of(job.agent.pid), 'S')
      << "the frozen group is another's: it is in one of that name elsewhere";
  freeze("THAWED", "0");
  join(true);
  const bool in_group = !groups.processes(name).empty();
  if (in_group) {
    watch();
    EXPECT_FALSE(job_of(1).suspended);
    freeze("FROZEN", "1");
    const auto agent_is = [&](char state) {
      watch();
      return state_of(job.agent.pid) == state;
    };
    EXPECT_TRUE(eventually([&] { return agent_is('T'); }));
    freeze("THAWED", "0");
    EXPECT_TRUE(eventually([&] { return agent_is('S'); }));
  }
  groups.end(name, 10000);
  if (!in_group) GTEST_SKIP() << "no control group can be made here";
}

TEST_F(WatchTest, AnAgentThatWasStoppedByAnotherIsNotWoken) {
  const JobRecord job = begin_job(1);
  const Stepd stepd = start_stepd(1, "0", "r");
  stop(job.agent.pid);
  watch();
  EXPECT_EQ(state_of(job.agent.pid), 'T');
}

TEST_F(WatchTest, WhatASlurmstepdAdoptedOfOursDoesNotCount) {
  const Stepd stepd = start_stepd(1, "0", "rr");
  const JobRecord job = begin_job(1, stepd.tasks[1]);
  stop(stepd.tasks[0]);
  watch();
  EXPECT_TRUE(comes_to(job.agent.pid, 'T')) << "the agent is no task";
  EXPECT_TRUE(job_of(1).suspended);
}

TEST_F(WatchTest, AnothersProcessOfThatPidIsNotSignalled) {
  JobRecord job = begin_job(1);
  ++job.agent.start_time;
  ASSERT_TRUE(state_.write_record(job).ok());
  const Stepd stepd = start_stepd(1, "0", "r");
  stop(stepd.tasks[0]);
  watch();
  EXPECT_TRUE(job_of(1).suspended);
  EXPECT_NE(state_of(job.agent.pid), 'T');
}

TEST_F(WatchTest, AJobWithoutASlurmstepdEndsAfterItsGrace) {
  const JobRecord job = begin_job(1), other = begin_job(2);
  const Stepd stepd = start_stepd(2, "0", "r");
  watch();
  EXPECT_LE(std::abs(job_of(1).alone_since - boot_seconds()), 30);
  EXPECT_EQ(job_of(2).alone_since, 0);
  alone_for(kAnchoredGraceSeconds + 100);
  watch();
  EXPECT_TRUE(is_running(job.agent)) << "there may be none between two steps";
  {
    const Stepd again = start_stepd(1, "1", "r");
    watch();
    EXPECT_EQ(job_of(1).alone_since, 0) << "its next step";
    end_child(again.pid);
  }
  anchor();
  watch();
  EXPECT_TRUE(is_running(job.agent)) << "its epilog has its turn";
  EXPECT_TRUE(need_look());
  alone_for(kAnchoredGraceSeconds);
  watch();
  EXPECT_FALSE(is_running(job.agent));
  EXPECT_EQ(jobs(), Names{other.job.key()});
  EXPECT_TRUE(eventually([&] { return in_removing().empty(); }));
  EXPECT_EQ(on_tier(), Names{other.removal()});
  EXPECT_TRUE(is_running(other.agent));
}

TEST_F(WatchTest, AJobWhoseStartWasKilledInTheMiddleEndsSoon) {
  const JobRecord job = begin_job(1);
  alone_for(kAnchoredGraceSeconds);
  watch();
  EXPECT_TRUE(is_running(job.agent));
  change([](JobRecord* r) { r->serves = ""; });
  watch();
  EXPECT_FALSE(is_running(job.agent));
  EXPECT_TRUE(jobs().empty());
}

TEST_F(WatchTest, OneThatNeverHadOneHasLongerAndAnEndThatFailsIsTriedAgain) {
  const JobRecord job = begin_job(1);
  alone_for(kOtherGraceSeconds - 100);
  watch();
  EXPECT_TRUE(is_running(job.agent));
  alone_for(kOtherGraceSeconds);
  {
    const Result<Fd> held = state_.lock_job(job.job, false, 0);
    watch();
  }
  EXPECT_TRUE(is_running(job.agent)) << "another helper holds it";
  watch();
  EXPECT_FALSE(is_running(job.agent));
}

TEST_F(WatchTest, AnchorsAreThoseThatLiveAsLongAsTheJob) {
  const auto anchored = [&](const std::string& step, uint32_t of) {
    const Stepd stepd = start_stepd(of, step);
    JobRecord job = record(id(1));
    note_anchor(&job);
    end_child(stepd.pid);
    return !job.anchors.empty();
  };
  EXPECT_TRUE(anchored("extern", 1));
  EXPECT_TRUE(anchored("batch", 1));
  EXPECT_FALSE(anchored("0", 1));
  EXPECT_FALSE(anchored("extern", 2)) << "another job's";
}

TEST_F(WatchTest, ARunIsOverWithAllItsAnchors) {
  JobRecord job = record(id(1));
  EXPECT_FALSE(is_of_earlier_run(job)) << "nothing is noted";
  const Stepd of_job = start_stepd(1, "extern"), batch = start_stepd(1, "batch"), step = start_stepd(1, "0"),
              other = start_stepd(2, "batch");
  note_anchor(&job);
  EXPECT_FALSE(is_of_earlier_run(job));
  end_child(of_job.pid);
  EXPECT_FALSE(is_of_earlier_run(job)) << "the batch script goes on";
  end_child(batch.pid);
  EXPECT_TRUE(is_of_earlier_run(job)) << "the others' slurmstepds are none of it";
  for (const pid_t no : {step.pid, other.pid, ::getpid()}) note_asker(&job, no);
  EXPECT_TRUE(is_of_earlier_run(job));
  const Stepd late = start_stepd(1, "batch");
  for (int i = 0; i < 2; ++i) note_asker(&job, late.pid);
  EXPECT_FALSE(is_of_earlier_run(job)) << "it asked for an agent that was there";
  EXPECT_EQ(job.anchors.size(), 3u);
  for (const pid_t all : {step.pid, other.pid, late.pid}) end_child(all);
}

TEST_F(WatchTest, NotesOfJobsThatNeverBeganAreForgotten) {
  EXPECT_TRUE(state_.lock_job(record(id(1)).job, true, 0).ok());
  const std::string dir = state_.path() + "/jobs/" + record(id(1)).job.key();
  change([](JobRecord* r) { r->notes.datasets = "/data"; });
  EXPECT_FALSE(need_look());
  watch();
  EXPECT_TRUE(exists(dir)) << "of now";
  make_older(dir, 2);
  EXPECT_TRUE(need_look());
  {
    const Fd held = lock_if_free(dir);
    watch();
    EXPECT_TRUE(exists(dir)) << "a helper is at work on it";
  }
  const Stepd stepd = start_stepd(1, "0");
  watch();
  EXPECT_TRUE(exists(dir)) << "the job runs";
  EXPECT_FALSE(need_look()) << "it is looked at again an hour later";
  end_child(stepd.pid);
  make_older(dir, 2);
  std::ofstream(dir + "/record.json") << "{";
  make_older(dir, 2);
  EXPECT_FALSE(need_look()) << "that is no note";
  watch();
  EXPECT_TRUE(exists(dir));
  fs::remove(dir + "/record.json");
  make_older(dir, 2);
  watch();
  EXPECT_FALSE(exists(dir));
}

// What the keeper's look comes upon when calls fail, or others are at work beside it.
class TrappedWatchTest : public WatchTest {
 protected:
  void SetUp() override {
    WatchTest::SetUp();
    if (!can_trap()) GTEST_SKIP() << "no system call can be trapped here";
  }
  void watch_without(const std::string& path, int error) const {
    const auto open = [=](CallArguments a) {
      return std::string(reinterpret_cast<const char*>(a[1])).ends_with(path) ? error : 0;
    };
    EXPECT_EQ(in_child([&] {
                ::alarm(600);
                if (!before_call(SYS_openat, open)) return kNoTraps;
                return watch(), 0;
              }),
              0);
  }
};

TEST_F(TrappedWatchTest, AnAgentThatNobodyWouldWakeDoesNotRest) {
  const JobRecord job = begin_job(1);
  const Stepd stepd = start_stepd(1, "0", "r");
  stop(stepd.tasks[0]);
  watch_without("/record.json.new", ENOSPC);
  EXPECT_FALSE(job_of(1).suspended);
  EXPECT_TRUE(comes_to(job.agent.pid, 'S'));
}

TEST_F(TrappedWatchTest, WithoutAListOfProcessesNoJobEnds) {
  const JobRecord job = begin_job(1);
  alone_for(kOtherGraceSeconds);
  watch_without("/proc", EMFILE);
  EXPECT_TRUE(is_running(job.agent));
}

class EpilogTest : public NodeTest {
 protected:
  Status end(const JobRecord& r, const std::string& account_program = "") const {
    return end_job({state_.path(), r.job, account_program, scratch_ / "monarch.conf"});
  }
  Names lines() const { return names_in(state_.path() + "/spool"); }
};

TEST_F(EpilogTest, OfWhatNeverBeganOnlyTheNoteGoes) {
  for (const bool noted : {false, true}) {
    if (noted) {
      EXPECT_TRUE(state_.lock_job(record(1).job, true, 0).ok());
    }
    EXPECT_TRUE(end(record(1)).ok());
    EXPECT_TRUE(jobs().empty() && in_removing().empty()) << noted;
  }
}

TEST_F(EpilogTest, OfAJobWhoseRecordIsSpoiltWhatHasItsNameGoes) {
  const JobRecord r = record(1);
  (void)begin(r);
  (void)begin(record(2));
  scratch_.file("monarch.conf", "[tier.nvme]\npath = " + scratch_ / "tier" + "\nquota = 1M\n");
  scratch_.file("state/jobs/" + r.job.key() + "/record.json", "{");
  EXPECT_TRUE(end(r).ok());
  EXPECT_TRUE(eventually([&] {
    wait_children();
    if (in_removing().empty()) return true;
    remove_in_background(state_, unattended_removals(state_),
                         0);  // as the keeper, what a busy machine leaves
    return false;
  }));
  EXPECT_EQ(jobs(), Names{record(2).job.key()});
  EXPECT_EQ(on_tier(), Names{record(2).removal()});
  EXPECT_EQ(runs(), on_tier());
}

TEST_F(EpilogTest, WaitsForAHelperButNotForLong) {
  const Removal held = begin(record(1));
  EXPECT_EQ(end(record(1)).error().code, ETIMEDOUT);
  EXPECT_EQ(on_tier(), Names{record(1).removal()});
}

TEST_F(EpilogTest, AnAgentThatHangsIsToldAndHoldsNothingUp) {
  scratch_.dir("pfs");
  in_private_mounts(scratch_, [&](PrivateMounts* mounts) {
    const HangingFs pfs(scratch_ / "pfs");
    mounts->check(pfs.is_mounted(), "mount");
    const pid_t agent = ::fork();
    if (agent == 0) ::_exit(::open((scratch_ / "pfs/file").c_str(), O_RDONLY | O_CLOEXEC));
    mounts->check(eventually([&] { return pfs.is_asked(); }), "it waits for the PFS");
    JobRecord r = record(1);
    r.agent = *identify(agent);
    (void)begin(r);
    const std::string log = logged([&] { mounts->check(end(r).ok(), "the epilog ends well"); });
    mounts->check(has(log, "does not end: it waits for the PFS"), log);
    mounts->check(jobs().empty(), "the job is gone");
  });
}

TEST_F(EpilogTest, ALineIsLoggedAndKeptAsPolicyWantsIt) {
  for (const bool is_wanted : {true, false}) {
    scratch_.file("monarch.conf",
                  std::string("[accounting]\naccount = ") + (is_wanted ? "spool\n" : "off\n"));
    const JobRecord r = record(is_wanted ? 1 : 2);
    (void)begin(r);
    const std::string log = logged([&] { EXPECT_TRUE(end(r, "/bin/true").ok()); });
    EXPECT_EQ(has(log, "counters=lost"), is_wanted) << log;
    ASSERT_EQ(lines().size(), 1u);
    const std::string line = contents(state_.path() + "/spool/" + lines()[0]);
    EXPECT_TRUE(lines()[0].ends_with(".kept") && has(line, "/bin/true")) << line;
  }
}

}  // namespace
}  // namespace monarch
