// SPDX-License-Identifier: Apache-2.0
// All of a job's start but the agent itself, which this program is not: tests/node.t starts agents.
#include "runtime/node/start.h"

#include "runtime/config/dataset_rules.h"
#include "runtime/node/agent_conf.h"
#include "runtime/node/epilog.h"
#include "runtime/node/job_memory.h"
#include "runtime/node/ledger.h"
#include "runtime/node/life.h"
#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

// Once the other threads of a probe have ended.
[[noreturn]] void hang_alone(const Hung& hung) {
  (void)eventually([] { return names_in("/proc/self/task").size() <= 2; });
  hung.here();
}

class StartTest : public NodeTest {
 protected:
  // A job that nobody's slurmstepd on this machine is of, nor one that other tests start.
  static uint32_t job_alone(uint32_t number) {
    return 3100000000u + static_cast<uint32_t>(::getpid()) * 10 + number;
  }
  StartRequest request(const std::string& datasets) {
    StartRequest r;
    r.state_dir = state_.path();
    r.clock = &clock_;
    r.job = record(1).job;
    r.user = {kUid, kUid, {}};
    r.of_cluster.config = scratch_ / "monarch.conf";
    r.datasets = datasets;
    return r;
  }
  StartRequest requeued(const std::string& datasets) {
    StartRequest r = request(datasets);
    r.restart = 1;
    return r;
  }
  // No tier that a job can use.
  void configure() const {
    scratch_.file("plain", "");
    scratch_.file("monarch.conf", "[tier.nvme]\npath = " + scratch_ / "plain" + "\nquota = 1M\n");
  }
  int error_of(const StartRequest& r) const {
    const Result<Started> started = start_agent(r);
    EXPECT_TRUE(eventually([&] { return in_removing().empty(); }));
    EXPECT_FALSE(started.ok());
    return started.ok() ? 0 : started.error().code;
  }
  // A job with an agent that serves these.
  JobRecord begin_serving(const std::string& datasets, uint32_t job = 1) const {
    JobRecord r = record(job);
    r.agent = *identify(start_idle());
    r.serves = datasets;
    (void)begin(r);
    return r;
  }
  // Of job 1.
  JobRecord recorded() const { return NodeTest::recorded(record(1).job); }
  JobNotes notes() const { return recorded().notes; }
  void change(const std::function<void(JobRecord*)>& change) const {
    NodeTest::change(record(1).job, change);
  }
  Names of_job() const { return names_in(state_.path() + "/jobs/c.1.n1"); }
};

TEST_F(StartTest, WhereNothingIsWantedNothingIsMade) {
  configure();
  EXPECT_EQ(error_of(request("")), ENOENT);
  EXPECT_TRUE(jobs().empty());
  ASSERT_TRUE(note_wanted(request("/data")).ok());
  EXPECT_EQ(notes().datasets, "/data");
  EXPECT_EQ(error_of(request("")), ENOSPC) << "the prolog has noted it";
}

TEST_F(StartTest, TheOptionsAreThoseOfWhoNamesTheDatasets) {
  configure();
  StartRequest submitted = request("/data");
  submitted.options = "tiers=ram";
  ASSERT_TRUE(note_wanted(submitted).ok());
  EXPECT_EQ(error_of(request("")), ENODEV) << "noted with them";
  EXPECT_EQ(error_of(request("/data")), ENOSPC) << "a step that has none";
  EXPECT_EQ(error_of(submitted), ENODEV) << "a step that has its own";
  EXPECT_EQ(error_of(submitted), EALREADY);
  submitted.options = "colour=red";
  EXPECT_EQ(error_of(submitted), EINVAL);
  ASSERT_TRUE(note_wanted(request("/data")).ok());
  EXPECT_EQ(notes().options, "");
  EXPECT_EQ(error_of(request("")), ENOSPC) << "a run without";
}

TEST_F(StartTest, OptionsCountWhereTheConfigurationNamesNoTier) {
  if (discovered_tiers(record(1).job).empty()) GTEST_SKIP() << "this machine has none either";
  scratch_.file("monarch.conf", "");
  StartRequest r = request("/data");
  r.options = "tiers=nowhere";
  EXPECT_EQ(error_of(r), ENODEV);
}

TEST_F(StartTest, WhatIsRequiredIsInItsOptions) {
  StartRequest r = request("/data");
  for (const std::string options :
       {"", "capacity=1M", "colour=red capacity=1M,require", "capacity=1M,require"}) {
    r.options = options;
    EXPECT_EQ(is_required(r), options.starts_with("capacity=1M,")) << options;
  }
  ASSERT_TRUE(note_wanted(r).ok());
  EXPECT_TRUE(is_required(request(""))) << "as the prolog has noted";
  EXPECT_FALSE(is_required(request("/data")));
}

TEST_F(StartTest, AFailureLeavesANoteAndNothingElse) {
  configure();
  EXPECT_EQ(error_of(request("/data")), ENOSPC);
  EXPECT_EQ(of_job(), Names{"record.json"});
  EXPECT_TRUE(on_tier().empty() && runs().empty() && in_removing().empty());
  EXPECT_TRUE(names_in(state_.path() + "/grants").empty());
  const Result<Started> again = start_agent(request("/data"));
  ASSERT_FALSE(again.ok());
  EXPECT_EQ(again.error().code, EALREADY);
  EXPECT_TRUE(again.error().text.starts_with("no tier can be used on this node: n1 goes without tier nvme: "))
      << again.error().text;
  EXPECT_EQ(error_of(request("/other")), ENOSPC) << "that is another";
  EXPECT_EQ(error_of(requeued("/other")), ENOSPC) << "a later run may have more luck";
  EXPECT_EQ(error_of(requeued("/other")), EALREADY);
  for (const char* run : {"", "0", "1 x", "0 "}) {
    change([&](JobRecord* r) { r->notes.failure.run = run; });
    EXPECT_EQ(error_of(request("/other")), ENOSPC) << "no note of this run and boot: " << run;
  }
}

TEST_F(StartTest, WhatAHelperIsAtWorkOnIsLeftAlone) {
  configure();
  const Result<Fd> lock = state_.lock_job(record(1).job, true, 0);
  clock_.pass_once([&, self = ::getpid()] { return ::getpid() == self && children().empty(); });
  EXPECT_EQ(note_wanted(request("/data")).error().code, ETIMEDOUT);
  EXPECT_EQ(error_of(request("/data")), ETIMEDOUT);
  EXPECT_TRUE(of_job().empty());
  change([&](JobRecord* r) { r->notes.failure = {"0 " + boot_id(), false, "it is Tuesday", "/data"}; });
  EXPECT_EQ(error_of(request("/data")), EALREADY) << "which is told without the lock";
}

TEST_F(StartTest, AStepThatWantsNothingHasNothingOfAnothers) {
  configure();
  const JobRecord r = begin_serving("/data");
  EXPECT_EQ(error_of(request("")), ENOENT);
  EXPECT_TRUE(is_running(r.agent));
}

// A start was killed in the middle: the steps to come have what the prolog has noted.
TEST_F(StartTest, WhatThePrologNotedOutlivesARunThatIsCleared) {
  configure();
  StartRequest submitted = request("/data");
  submitted.options = "tiers=nvme";
  ASSERT_TRUE(note_wanted(submitted).ok());
  JobRecord r = record(1);
  r.notes = notes();
  r.agent = *identify(start_idle());
  (void)begin(r);
  EXPECT_EQ(error_of(request("")), ENOSPC) << "it is tried";
  EXPECT_FALSE(is_running(r.agent));
  EXPECT_EQ(notes().datasets, "/data");
  EXPECT_EQ(notes().options, "tiers=nvme");
  EXPECT_TRUE(on_tier().empty());
}

TEST_F(StartTest, WhoJudgedARunEndsNoOther) {
  configure();
  const JobRecord r = begin_serving("/data", job_alone(1));
  const auto ended = [&](uint64_t serial) { return end_job({state_.path(), r.job, "", "", serial}).ok(); };
  EXPECT_TRUE(ended(r.serial + 1));
  EXPECT_TRUE(is_running(r.agent));
  EXPECT_EQ(on_tier(), Names{r.removal()});
  EXPECT_TRUE(ended(r.serial));
  EXPECT_TRUE(eventually([&] { return !is_running(r.agent); })) << "the epilog does not wait for it for long";
}

// It may be that a disk fails, or that memory lacks.
TEST_F(StartTest, AJobWhoseRecordCannotBeReadNowKeepsIt) {
  const JobRecord r = begin_serving("/data");
  ASSERT_TRUE(std::filesystem::remove(state_.path() + "/jobs/c.1.n1/record.json"));
  ASSERT_TRUE(std::filesystem::create_directory(state_.path() + "/jobs/c.1.n1/record.json"));
  EXPECT_EQ(end_job({state_.path(), r.job, "", ""}).error().code, EISDIR);
  EXPECT_EQ(jobs(), Names{"c.1.n1"});
}

TEST_F(StartTest, AJobThatMayNotHaveItIsNotTried) {
  EXPECT_EQ(error_of(request("/data")), EINVAL) << "without the configuration, not as if nothing were wanted";
  EXPECT_TRUE(!notes().failure.run.empty() && !notes().failure.refused);
  scratch_.file("monarch.conf", "[tier.nvme]\npath = " + scratch_ / "tier" +
                                    "\nquota = 1M\n[policy]\ndeny_users = " + std::to_string(kUid) + "\n");
  EXPECT_EQ(error_of(requeued("/data")), kRefused);
  EXPECT_EQ(of_job(), Names{"record.json"});
  EXPECT_TRUE(notes().failure.refused);
  EXPECT_TRUE(has(notes().failure.reason, "deny_users"));
  EXPECT_TRUE(on_tier().empty());
  EXPECT_EQ(error_of(requeued("/data")), EALREADY) << "nor asked about again";
}

TEST_F(StartTest, AJobThatHasItsAgentKeepsIt) {
  configure();
  const JobRecord r = begin_serving("/data:/more/");
  ASSERT_TRUE(note_wanted(request("/data")).ok());
  for (const char* datasets : {"", "/data", "/data/sub:/more", ":/data::"}) {
    const Result<Started> started = start_agent(request(datasets));
    ASSERT_TRUE(started.ok()) << started.error().text;
    EXPECT_EQ(started->run_dir, r.run_dir);
    EXPECT_FALSE(started->fresh);
    EXPECT_EQ(started->unserved, "") << datasets;
  }
  const Result<Started> other = start_agent(request("/data:/elsewhere:/dat"));
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE(other->unserved.starts_with("/elsewhere:/dat is not staged")) << other->unserved;
  EXPECT_TRUE(is_running(r.agent));
  EXPECT_EQ(on_tier(), Names{r.removal()});
}

TEST_F(StartTest, TheFirstStepWithTasksIsToldToWait) {
  const JobRecord r = begin_serving("/data");
  const auto now_ms = [&] { return clock_.now_ms(); };
  const auto wait = [&](bool tasks) {
    StartRequest step = request("/data");
    step.tasks = tasks;
    const Result<Started> started = start_agent(step);
    EXPECT_TRUE(started.ok());
    return started.ok() ? std::make_pair(started->wait_percent, started->wait_seconds)
                        : std::make_pair(-1, -1);
  };
  const auto note = [&](int64_t until_ms) {
    change([&](JobRecord* r) { r->wait_percent = 80, r->wait_until_ms = until_ms; });
  };
  EXPECT_EQ(wait(true), std::make_pair(0, 0)) << "nobody asked for it";
  note(now_ms() + 59000);
  EXPECT_EQ(wait(false), std::make_pair(0, 0)) << "the extern step, which has none";
  clock_.sleep_ns(1'000'000);
  EXPECT_EQ(wait(true), std::make_pair(80, 59));
  EXPECT_EQ(wait(true), std::make_pair(0, 0)) << "the next one";
  note(now_ms() - 1000);
  EXPECT_EQ(wait(true), std::make_pair(80, 0)) << "the time is over";
}

TEST_F(StartTest, TheLastRunIsClearedAway) {
  configure();
  const JobRecord r = begin_serving("/data");
  EXPECT_EQ(error_of(requeued("/data")), ENOSPC);
  EXPECT_FALSE(is_running(r.agent));
  EXPECT_TRUE(on_tier().empty());
  EXPECT_TRUE(runs().empty());
  EXPECT_TRUE(in_removing().empty());
  EXPECT_EQ(of_job(), Names{"record.json"});
}

TEST_F(StartTest, OfAnEarlierBootNobodyIsKilled) {
  configure();
  JobRecord r = begin_serving("/data");
  r.boot = "another";
  ASSERT_TRUE(state_.write_record(r).ok());
  EXPECT_EQ(error_of(request("/data")), ENOSPC);
  EXPECT_TRUE(is_running(r.agent)) << "another process has its number";
  EXPECT_TRUE(on_tier().empty());
}

// What happens while a start is under way. An agent is played where this program would execute one.
class TrappedStartTest : public StartTest {
 protected:
  void SetUp() override {
    StartTest::SetUp();
    if (!can_trap()) GTEST_SKIP() << "no system call can be trapped here";
  }
  // The agent, which says nothing; stores end at once.
  const CallHandler never_ends = [this](CallArguments a) -> int {
    for (char** word = reinterpret_cast<char**>(a[1]); *word; ++word)
      if (*word == std::string("--tier-fd")) ::_exit(0);
    agent_.here();
  };
  // What a start does in a child where these calls are trapped: "started", "fresh" or the error.
  std::string start_with(const StartRequest& r, long call, const CallHandler& handler) {
    const int status = in_child([&] {
      ::alarm(600);
      clock_.pass_once([this, earlier = agent_.pid()] {
        return agent_.pid() != earlier && agent_.now() && children_that_run() == 1;
      });
      if (!before_call(call, handler)) return 99;
      std::string said;
      const std::string log = logged([&] {
        const Result<Started> started = start_agent(r);
        said = !started.ok()    ? started.error().text
               : started->fresh ? "fresh"
                                : "started " + started->unserved;
      });
      scratch_.file("said", said);
      scratch_.file("logged", log);
      return 0;
    });
    return status == 0 ? contents(scratch_ / "said") : "status " + std::to_string(status);
  }
  // The record of a job of which the one tier of configure_tiers() is used, and the other is not.
  JobRecord starts_on_open(const StartRequest& r) {
    EXPECT_EQ(start_with(r, SYS_execve, never_ends), "fresh");
    const Result<JobRecord> started = state_.read_record("c.1.n1");
    if (!started.ok()) throw std::runtime_error(started.error().text);
    EXPECT_EQ(started->tiers.size(), 1u);
    EXPECT_EQ(started->tiers.at(0).name, "open");
    return *started;
  }
  // A tier that the job's user can enter, and one that only root can.
  void configure_tiers() const {
    const std::string open = scratch_.dir("open"), closed = scratch_.dir("closed");
    std::filesystem::permissions(open, std::filesystem::perms(0711));
    scratch_.file("monarch.conf", "[tier.open]\npath = " + open +
                                      "\nquota = 1M\nmin_free = 0\n[tier.closed]\npath = " + closed +
                                      "\nquota = 1M\nmin_free = 0\n");
  }
  const Hung agent_{};  // or what else hangs
};

TEST_F(TrappedStartTest, AnAgentThatIsNotReadyIsWaitedForAndKept) {
  configure_tiers();
  const JobRecord r = starts_on_open(request("/data"));
  EXPECT_TRUE(is_running(r.agent));
  EXPECT_EQ(names_in(scratch_ / "open/monarch"), Names{r.removal()});
  EXPECT_TRUE(!exists(scratch_ / "closed/monarch") || names_in(scratch_ / "closed/monarch").empty());
  EXPECT_TRUE(has(contents(scratch_ / "logged"), "the agent is not ready after "));
  EXPECT_EQ(recorded().serves, "/data");
  EXPECT_TRUE(recorded().late);
  EXPECT_TRUE(end_agent(state_, r, 10000));
}

TEST_F(TrappedStartTest, ATierThatDoesNotAnswerIsLeftOut) {
  configure_tiers();
  const std::string closed = scratch_ / "closed";
  const Intercept opens(Call::kOpenat, [&](Arguments& a) {
    if (closed == a.path) hang_alone(agent_);
  });
  const JobRecord r = starts_on_open(request("/data"));
  EXPECT_EQ(recorded().remark, "n1 goes without tier closed: it does not answer within 500 ms");
  EXPECT_TRUE(has(contents(scratch_ / "logged"), "is not ready after 2500 ms"))
      << "what was waited for counts";
  EXPECT_TRUE(end_agent(state_, r, 10000));
}

TEST_F(StartTest, WhereNoTierAnswersThereIsNoAgent) {
  const std::string tier = scratch_ / "tier";
  scratch_.file("monarch.conf", "[tier.nvme]\npath = " + tier + "\nquota = 1M\nmin_free = 0\n");
  const Hung hung;
  const Intercept opens(Call::kOpenat, [&](Arguments& a) {
    if (tier == a.path) hang_alone(hung);
  });
  clock_.pass_once([&] { return hung.now(); });
  const Result<Started> none = start_agent(request("/data"));
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().code, ETIMEDOUT);
  EXPECT_EQ(none.error().text, "no tier of this node answers");
  EXPECT_EQ(of_job(), Names{"record.json"});
}

TEST_F(TrappedStartTest, WhatLivesAsLongAsTheJobIsNoted) {
  configure_tiers();
  StartRequest r = request("/data");
  r.job.job = job_alone(2);
  (void)start_stepd(r.job.job, "extern");
  EXPECT_EQ(start_with(r, SYS_execve, never_ends), "fresh");
  const JobRecord started = NodeTest::recorded(r.job);
  EXPECT_EQ(started.anchors.size(), 1u);
  EXPECT_TRUE(end_agent(state_, started, 10000));
}

TEST_F(TrappedStartTest, WhatTheUserAskedForIsDoneOnce) {
  configure_tiers();
  StartRequest r = request("/data");
  r.options = "tiers=open,nowhere wait=80% wait_timeout=100000 exclude=*.log capacity=1M hints=torch";
  EXPECT_EQ(start_with(r, SYS_execve, never_ends), "fresh");
  const JobRecord first = *state_.read_record("c.1.n1");
  EXPECT_EQ(first.remark, "n1 has no tier nowhere; it has open,closed");
  EXPECT_EQ(first.wait_percent, 80u);
  EXPECT_GE(first.wait_until_ms, clock_.now_ms() + 100000 * 1000);
  EXPECT_EQ(contents(first.run_dir + "/exclude"), "*.log");
  EXPECT_TRUE(start_agent(r)->hints) << "each step is told";
  r = requeued("/data");
  r.options = "tiers=open";
  EXPECT_EQ(start_with(r, SYS_execve, never_ends), "fresh");
  const JobRecord second = *state_.read_record("c.1.n1");
  EXPECT_EQ(second.restart, 1u);
  EXPECT_EQ(second.remark, "") << "there is nothing to be said";
  EXPECT_EQ(second.wait_percent, 0u);
  EXPECT_FALSE(second.hints || exists(second.run_dir + "/exclude"));
  EXPECT_TRUE(end_agent(state_, second, 10000));
  r.restart = 2;
  r.options = "tiers=open capacity=2M";
  EXPECT_EQ(
      start_with(r, SYS_execve, never_ends),
      "n1 has 1.00M of its tiers for the job now, less than the 2.00M that --monarch-capacity asks for");
  EXPECT_EQ(of_job(), Names{"record.json"});
  EXPECT_TRUE(notes().failure.refused);
}

TEST_F(TrappedStartTest, AJobThatHasNothingOfATierIsToldWhy) {
  configure_tiers();
  StartRequest r = request("/data");
  r.job.job = 2;
  EXPECT_EQ(start_with(r, SYS_execve, never_ends), "fresh");
  const JobRecord first = *state_.read_record("c.2.n1");
  std::ofstream(scratch_ / "monarch.conf", std::ios::app)
      << "[tier.full]\npath = " << scratch_.dir("full") << "\nquota = 1M\nmin_free = 1000T\n"
      << "[policy]\nclosing_line = off\n";
  std::filesystem::permissions(scratch_ / "full", std::filesystem::perms(0711));
  EXPECT_EQ(start_with(request("/data"), SYS_execve, never_ends), "fresh");
  const JobRecord second = *state_.read_record("c.1.n1");
  EXPECT_TRUE(first.closing_line && !second.closing_line);
  const std::string& told = second.remark;
  EXPECT_TRUE(told.starts_with("n1 has nothing of tier open for the job now: other jobs have its 1.00M"))
      << told;
  EXPECT_TRUE(has(told, "; n1 has nothing of tier full for the job now: " + (scratch_ / "full has ")))
      << told;
  for (const JobRecord& job : {first, second}) EXPECT_TRUE(end_agent(state_, job, 10000));
}

TEST_F(TrappedStartTest, AnAgentThatCannotBeExecutedIsNone) {
  configure_tiers();
  EXPECT_EQ(start_with(request("/data"), SYS_execve, [](CallArguments) { return EACCES; }),
            "exec: Permission denied");
  EXPECT_EQ(of_job(), Names{"record.json"});
  EXPECT_TRUE(names_in(state_.path() + "/grants").empty());
}

TEST_F(TrappedStartTest, ATierIsChargedToAJobWhoseMemoryIsKnown) {
  configure_tiers();
  std::ofstream(scratch_ / "monarch.conf", std::ios::app)
      << "[tier.ram]\npath = " << scratch_.dir("ram") << "\nquota = 1M\nmin_free = 0\ndriver = tmpfs\n"
      << "charge = job\n";
  std::filesystem::permissions(scratch_ / "ram", std::filesystem::perms(0711));
  StartRequest r = request("/data");
  r.options = "tiers=ram";
  const std::string why =
      "tier ram is charged to the job's memory, but Slurm does not track memory; set "
      "SelectTypeParameters=CR_Core_Memory in slurm.conf, or charge = node in monarch.conf";
  EXPECT_EQ(start_with(r, SYS_execve, never_ends), why);
  r.options = "tiers=ram,open";
  EXPECT_EQ(start_with(r, SYS_execve, never_ends), "fresh");
  JobRecord started = *state_.read_record("c.1.n1");
  ASSERT_EQ(started.tiers.size(), 1u);
  EXPECT_EQ(started.tiers[0].name, "open");
  EXPECT_EQ(started.remark, "n1 goes without a tier: " + why);
  EXPECT_EQ(started.memory_looked, 0);
  EXPECT_TRUE(end_agent(state_, started, 10000));
  if (!memory_is_counted(Cgroups())) GTEST_SKIP() << "no control groups count memory here";
  r = requeued("/data");
  r.options = "tiers=ram,open";
  r.part.memory = 640 << 20;
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->check(start_with(r, SYS_execve, never_ends) == "fresh", contents(scratch_ / "said"));
    const JobRecord now = *state_.read_record("c.1.n1");
    m->check(now.tiers.size() == 2 && now.tiers[0].name == "ram", "it has both");
    m->check(now.tiers.at(0).to_job && now.tiers[0].quota == 1 << 20, "with its share");
    m->check(now.memory_group.empty() && now.memory_looked > 0, "its control group is looked for");
    m->check(now.remark.empty(), "nothing is to be said");
    m->check(end_agent(state_, now, 10000), "its end");
  });
}

TEST_F(TrappedStartTest, WhatAnotherStepMetMeanwhileIsNotTriedAgain) {
  configure();
  const std::string text =
      R"({"failed": "0 )" + boot_id() + R"(", "reason": "it is Tuesday", "tried": "/data"})";
  const auto note = [&](CallArguments) {
    scratch_.file("state/jobs/c.1.n1/record.json", text);
    return 0;
  };
  EXPECT_EQ(start_with(request("/data"), SYS_flock, note), "it is Tuesday");
}

// An agent's own configuration, as the agent reads it.
Config told_agent(const Config& config, const std::vector<TierConfig>& tiers, const JobNodes& nodes) {
  const Scratch scratch;
  const Result<Config> read = load_agent_conf(scratch.file("conf", agent_conf(config, tiers, nodes)));
  EXPECT_TRUE(read.ok()) << read.error().text;
  return read.ok() ? *read : Config();
}

TEST(AgentConf, TheDatasetIsPrefetchedWhereThatIsWanted) {
  using Prefetch = AgentConfig::Prefetch;
  const auto prefetches = [](Prefetch wanted, const JobNodes& nodes) {
    Config config;
    config.agent.prefetch = wanted;
    return told_agent(config, {}, nodes).agent.prefetch;
  };
  for (const JobNodes& nodes : {JobNodes{1, false}, JobNodes{2, false}, JobNodes{2, true}}) {
    EXPECT_EQ(prefetches(Prefetch::kOn, nodes), Prefetch::kOn);
    EXPECT_EQ(prefetches(Prefetch::kOff, nodes), Prefetch::kOff);
    EXPECT_EQ(prefetches(Prefetch::kAuto, nodes),
              nodes.count == 1 || nodes.together ? Prefetch::kAuto : Prefetch::kOff);
  }
}

TEST(AgentConf, OfATierThatIsChargedToTheJobNothingMayBeUsedAtFirst) {
  const Scratch scratch;
  std::vector<TierConfig> tiers(2);
  tiers[0] = {"ram", scratch.dir("ram"), Quota{1 << 20, -1}};
  tiers[0].kind = TierConfig::Kind::kTmpfs;
  tiers[0].charge = TierConfig::Charge::kJob;
  tiers[1] = {"nvme", scratch.dir("nvme"), Quota{1 << 20, -1}};
  const Config told = told_agent({}, tiers, {1, false});
  ASSERT_EQ(told.tiers.size(), 2u);
  EXPECT_EQ(told.tiers[0].charge, TierConfig::Charge::kJob);
  EXPECT_EQ(told.tiers[0].quota.bytes, 0u);
  EXPECT_EQ(told.tiers[1].charge, TierConfig::Charge::kNode);
  EXPECT_EQ(told.tiers[1].quota.bytes, 1u << 20);
}

TEST(AgentConf, TellsWhatTheAdminSaid) {
  Config config;
  config.datasets = {{"/a", "/b c"}, {"/a/secret"}};
  config.agent.max_files = 77;
  config.agent.stage_again = 7;
  AgentConfig& agent = config.agent;
  agent.pfs_bandwidth = agent.pfs_opens = agent.pfs_stats = agent.prefetch_burst = 1000;
  for (const char* network : {"", "10.1.0.0/16"}) {
    config.peer = {true, network, 7000, 7010, 1 << 20, true};
    const Config told = told_agent(config, {}, {2, true});
    ASSERT_EQ(told.policies.size(), 1u);
    EXPECT_EQ(told.policies[0].keys.allow_datasets.value(), config.datasets.allow);
    EXPECT_EQ(told.policies[0].keys.deny_datasets.value(), config.datasets.deny);
    EXPECT_EQ(told.agent.max_files, 77u) << "of each node's catalog";
    for (const uint64_t divided :
         {told.agent.pfs_bandwidth, told.agent.pfs_opens, told.agent.pfs_stats, told.agent.prefetch_burst})
      EXPECT_EQ(divided, 500u) << "divided by the nodes";
    EXPECT_EQ(told.agent.stage_again, 0) << "what one node has copied again another one may write";
    const PeerConfig& peer = told.peer;
    EXPECT_TRUE(peer.enabled && peer.encrypt);
    EXPECT_EQ(peer.network, network);
    EXPECT_TRUE(peer.ports.first == 7000 && peer.ports.last == 7010);
    EXPECT_EQ(peer.bandwidth, 1u << 20);
  }
  EXPECT_EQ(told_agent(config, {}, {1, false}).agent.stage_again, 7);
}

using StrayGroupsTest = NodeTest;

TEST_F(StrayGroupsTest, AreThoseThatNoRecordNames) {
  const Cgroups groups;
  const std::string stray = state_.cgroup_of(record(9));
  if (!groups.make(stray, 0).ok()) GTEST_SKIP() << "no control group can be made here";
  (void)begin(record(1));
  EXPECT_TRUE(state_.lock_job(record(2).job, true, 0).ok()) << "one that has no record yet";
  ASSERT_TRUE(groups.make(state_.cgroup_of(record(1)), 0).ok());
  EXPECT_EQ(stray_cgroups(state_), Names{stray});
  for (const char* unreadable : {"jobs", "removing", "jobs/c.1.n1/record.json"}) {
    const std::string path = state_.path() + "/" + unreadable;
    std::filesystem::rename(path, scratch_ / "aside");
    if (path.ends_with(".json")) scratch_.dir(std::string("state/") + unreadable);
    EXPECT_TRUE(stray_cgroups(state_).empty()) << unreadable << ": a running job's may be among them";
    if (path.ends_with(".json")) std::filesystem::remove(path);
    std::filesystem::rename(scratch_ / "aside", path);
  }
  sweep_cgroups(state_);
  EXPECT_EQ(groups.names(state_.cgroup_prefix()), Names{state_.cgroup_of(record(1))});
  groups.remove_if_empty(state_.cgroup_of(record(1)));
}

TEST_F(StartTest, AFullStateDirectoryIsToldOfWithItsRemedy) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->check(::mount("none", state_.path().c_str(), "tmpfs", 0, "size=32k,mode=711") == 0, "mount");
    const std::string why = start_agent(request("/data")).error().text;
    m->check(why.starts_with(state_.path() + ": ") && why.ends_with("state_dir= in plugstack.conf"), why);
    m->check(is_to_be_told(request("/data"), why) == Tell::kInFirstStep, "by its first step");
  });
}

TEST_F(StartTest, TheUserIsToldOnceForEachReason) {
  EXPECT_EQ(is_to_be_told(request("/data"), "why"), Tell::kInFirstStep) << "nothing of the job is there";
  ASSERT_TRUE(state_.lock_job(record(1).job, true, 0).ok());
  EXPECT_EQ(is_to_be_told(request("/data"), "why"), Tell::kYes);
  EXPECT_EQ(is_to_be_told(request("/data"), "why"), Tell::kNo);
  EXPECT_EQ(is_to_be_told(request("/data"), "something else"), Tell::kYes);
  EXPECT_EQ(is_to_be_told(requeued("/data"), "something else"), Tell::kYes);
}

}  // namespace
}  // namespace monarch
