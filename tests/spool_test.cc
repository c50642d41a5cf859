// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/spool.h"

#include <sys/file.h>

#include "runtime/base/log.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

TEST(Spool, ALineIsTriedEverMoreSeldom) {
  struct Case {
    int64_t since, now, next;
  };
  for (const Case& c : {Case{1000, 1000, 1001},
                        {1000, 1001, 1002},
                        {1000, 1002, 1004},
                        {1000, 1100, 1200},
                        {1000, 1300, 1600},
                        {1000, 9000, 9300},   // at most five minutes later
                        {9000, 1000, 1001}})  // the clock was set back
    EXPECT_EQ(next_try(c.since, c.now), c.next) << c.since << " " << c.now;
}

std::vector<Spooled> lines(int count, int64_t first) {
  std::vector<Spooled> all;
  for (int i = 0; i < count; ++i) all.push_back({"l" + std::to_string(i), first + i, 0});
  return all;
}

TEST(Spool, OfTooManyTheOldestAreDropped) {
  const SpoolConfig config{7, 100};
  EXPECT_TRUE(excess(lines(100, 5000), config, 6000).empty());
  const std::vector<Spooled> out = excess(lines(101, 5000), config, 6000);
  ASSERT_EQ(out.size(), 6u) << "a twentieth is free afterwards";
  for (size_t i = 0; i < out.size(); ++i) EXPECT_EQ(out[i].name, "l" + std::to_string(i));
}

constexpr int kDone = 0, kAway = 1, kNoDatabase = 3, kNoRow = 4;

// A state directory, and a helper for sacct that notes how it is called and answers as it is told.
class SpoolTest : public StateDirTest {
 protected:
  void SetUp() override {
    StateDirTest::SetUp();
    answer(kDone);
    scratch_.file("calls", "");
    ::setenv("SLURM_CONF", "/etc/of-the-keeper.conf", 1);
  }
  void TearDown() override { ::unsetenv("SLURM_CONF"); }

  void helper(const std::string& body) {
    scratch_.file("helper", "#!/bin/sh\n" + body + "\n");
    fs::permissions(program_, fs::perms::owner_all);
  }
  void answer(int status, const std::string& said = "") {
    helper("echo \"${SLURM_CONF-unset} $*\" >>" + (scratch_ / "calls") + "\nprintf '%s' '" + said +
           "'\nexit " + std::to_string(status));
  }
  std::vector<std::string> called() const {
    std::ifstream in(scratch_ / "calls");
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    return lines;
  }

  JobRecord record(uint32_t job, int64_t begin = 1000) const {
    JobRecord r;
    r.job = {job, "n1", "c"};
    r.name = "c." + std::to_string(job) + ".2.n1";
    r.restart = 2;
    r.user = {65534, 65534, {}};
    r.run_dir = "/run/x";
    r.serial = static_cast<uint64_t>(begin) * 1000000000 + 5;
    r.of_cluster = of_;
    r.submit = submit_;
    r.start = start_;
    return r;
  }

  // A line, as `age` seconds ago, that is tried in `wait` seconds; its name.
  std::string line(uint32_t job, Accounting accounting = Accounting::kSacct, int64_t age = 0,
                   int64_t wait = 0) {
    const std::vector<std::string> before = state_.spooled();
    const Status s = spool(state_, record(job), "hits=" + std::to_string(job), accounting);
    EXPECT_TRUE(s.ok()) << s.error().text;
    for (const std::string& name : state_.spooled()) {
      if (std::count(before.begin(), before.end(), name) != 0) continue;
      const size_t end = name.rfind('.'), begin = name.rfind('.', end - 1);
      const std::string since = std::to_string(::time(nullptr) - age);
      std::string now = name.substr(0, begin + 1) + since + name.substr(end);
      fs::rename(path(name), path(now));
      set_mtime(path(now), wait);
      return now;
    }
    return "";
  }
  std::string path(const std::string& name) const { return state_.path() + "/spool/" + name; }
  static void set_mtime(const std::string& file, int64_t in) {
    const timespec times[2] = {{::time(nullptr) + in, 0}, {::time(nullptr) + in, 0}};
    EXPECT_EQ(::utimensat(AT_FDCWD, file.c_str(), times, 0), 0) << file;
  }
  static int64_t due_at(const std::string& file) { return stat_of(file).st_mtim.tv_sec; }
  static int64_t wait_of(const std::string& file) { return due_at(file) - ::time(nullptr); }
  Status flush_now(Lines which = Lines::kDue, const SpoolConfig& config = {}) {
    return flush(state_, {"", program_}, config, which);
  }

  const std::string program_ = scratch_ / "helper";
  OfCluster of_ = {"", "", program_};
  int64_t submit_ = 0, start_ = 0;  // as Slurm said
  // What the prolog leaves of job 7.
  void begin_job() const { ASSERT_TRUE(state_.lock_job(record(7).job, true, 0).ok()); }
  std::string job_dir() const { return state_.path() + "/jobs/c.7.n1/"; }
  JobRecord job() const { return recorded(record(7).job); }
  void ask_at(int64_t when) const {
    change(record(7).job, [=](JobRecord* r) { r->next_ask = when; });
  }
};

TEST_F(SpoolTest, ALineIsWrittenOnceForItsRun) {
  submit_ = 111, start_ = 222;
  of_ = {"/etc/other.conf", "", program_};
  const std::string name = line(7);
  EXPECT_TRUE(name.starts_with("c.7.2.n1.1000000000005.") && name.ends_with(".json")) << name;
  EXPECT_TRUE(lines_wait(state_));
  EXPECT_TRUE(flush_now().ok());
  ASSERT_EQ(called().size(), 1u);
  EXPECT_TRUE(called()[0].starts_with(
      "/etc/other.conf --job 7 --cluster c --uid 65534 --restart 2 --begin 1000 --end "))
      << called()[0];
  EXPECT_TRUE(called()[0].ends_with(" --submit 111 --start 222 hits=7")) << called()[0];
  EXPECT_TRUE(state_.spooled().empty());
  EXPECT_FALSE(lines_wait(state_));
  EXPECT_TRUE(flush_now().ok());
  EXPECT_EQ(called().size(), 1u);
}

// The epilog was killed behind it, and is done once more: by then the counters may be gone. Or it was killed
// before the line was there.
TEST_F(SpoolTest, TheFirstLineOfARunIsTheOne) {
  scratch_.file("state/spool/" + record(1).removal() + ".1.json.new", "");
  for (const char* text : {"hits=1", "counters=lost"})
    ASSERT_TRUE(spool(state_, record(1), text, Accounting::kSacct).ok());
  ASSERT_EQ(state_.spooled().size(), 1u);
  EXPECT_TRUE(has(contents(path(state_.spooled()[0])), "hits=1"));
}

TEST_F(SpoolTest, NothingIsKeptThatNobodyWantsOrWouldFind) {
  EXPECT_TRUE(spool(state_, record(1), "x", Accounting::kLog).ok());
  EXPECT_TRUE(spool(state_, record(1), "x", Accounting::kOff).ok());
  EXPECT_EQ(spool(state_, record(1), "\xff", Accounting::kSacct).error().code, EINVAL);
  for (const std::string& name : {std::string(250, 'n'), std::string("a b")}) {
    JobRecord r = record(1);
    r.name = name;
    EXPECT_EQ(spool(state_, r, "x", Accounting::kSacct).error().code, ENAMETOOLONG);
  }
  EXPECT_TRUE(fs::is_empty(state_.path() + "/spool"));
}

TEST_F(SpoolTest, WhenTheDatabaseIsAwayTheOthersAreNotTried) {
  const std::string a = path(line(1, Accounting::kSacct, 100)), b = path(line(2, Accounting::kSacct, 100));
  answer(kAway);
  EXPECT_FALSE(flush_now().ok());
  EXPECT_EQ(called().size(), 1u);
  for (const std::string& file : {a, b}) {
    EXPECT_GT(wait_of(file), 50) << "as long as it has waited";
    EXPECT_LE(wait_of(file), 110);
  }
  answer(kDone);
  EXPECT_FALSE(flush_now().ok()) << "their time has not come";
  EXPECT_EQ(called().size(), 1u);
  set_mtime(a, 660);
  EXPECT_FALSE(flush_now().ok());
  EXPECT_FALSE(fs::exists(a)) << "a time that lies so far ahead was set before the clock was";
  EXPECT_TRUE(flush_now(Lines::kAll).ok()) << "for a person, all are tried";
  EXPECT_EQ(called().size(), 3u);
}

// Whichever of them it is, of lines that are of one age; by status 1, or without one.
TEST_F(SpoolTest, OneLineThatGetsNoAnswerStarvesNoOther) {
  const auto fail_for = [&](uint32_t job, const std::string& by) {
    helper("case \"$*\" in *\"--job " + std::to_string(job) + " \"*) " + by + ";; esac\nexit 0");
  };
  for (const Lines which : {Lines::kDue, Lines::kAll}) {
    for (const std::string by : {"exit 1", "kill -9 $$"}) {
      for (uint32_t bad = 1; bad <= 3; ++bad) {
        std::vector<std::string> names;
        for (const uint32_t job : {1, 2, 3}) names.push_back(line(job, Accounting::kSacct, 100));
        fail_for(bad, by);
        EXPECT_FALSE(flush_now(which).ok());
        if (which == Lines::kDue)  // so much later
          for (const std::string& name : state_.spooled()) set_mtime(path(name), wait_of(path(name)) - 101);
        EXPECT_FALSE(flush_now(which).ok());
        EXPECT_EQ(state_.spooled(), std::vector<std::string>{names[bad - 1]}) << bad << " " << by;
        for (const std::string& name : state_.spooled()) fs::remove(path(name));
      }
    }
  }
}

TEST_F(SpoolTest, ALineWithoutARowStaysAndTheOthersAreTried) {
  line(1);
  line(2);
  answer(kNoRow);
  EXPECT_FALSE(flush_now().ok());
  EXPECT_EQ(called().size(), 2u);
  EXPECT_EQ(flush_now(Lines::kAll).error().code, ENODATA) << "a person is told";
  fs::remove(program_);
  EXPECT_EQ(flush_now(Lines::kAll).error().code, EAGAIN) << "no helper, no answer";
  EXPECT_EQ(state_.spooled().size(), 2u);
}

TEST_F(SpoolTest, WithoutADatabaseALineIsKeptOnlyIfItWasAskedFor) {
  line(1, Accounting::kAuto);
  answer(kNoDatabase);
  EXPECT_TRUE(flush_now().ok());
  EXPECT_TRUE(state_.spooled().empty());
  EXPECT_EQ(called().size(), 1u);
  line(2, Accounting::kAuto);
  EXPECT_TRUE(flush_now().ok());
  EXPECT_EQ(called().size(), 1u) << "that is known for a while";
  for (const int64_t since : {-601, 100}) {
    set_mtime(state_.path() + "/no_database.c", since);
    line(3, Accounting::kAuto);
    const size_t before = called().size();
    EXPECT_TRUE(flush_now().ok());
    EXPECT_EQ(called().size(), before + 1) << "and not for ever";
    EXPECT_LE(std::abs(wait_of(state_.path() + "/no_database.c")), 20) << "it is new";
  }
  line(4, Accounting::kSacct);
  EXPECT_FALSE(flush_now().ok());
  EXPECT_EQ(state_.spooled().size(), 1u);
}

TEST_F(SpoolTest, WhatIsKeptForAPersonIsThatPersons) {
  const std::string kept = path(line(1, Accounting::kSpool));
  EXPECT_TRUE(kept.ends_with(".kept"));
  EXPECT_FALSE(lines_wait(state_));
  EXPECT_FALSE(flush_now().ok());
  EXPECT_TRUE(called().empty());
  EXPECT_LE(wait_of(kept), 0);
  EXPECT_TRUE(flush_now(Lines::kAll).ok());
  EXPECT_EQ(called().size(), 1u);
  EXPECT_FALSE(fs::exists(kept));
}

TEST_F(SpoolTest, WhatIsSpoiltIsRemovedAndNobodyIsAsked) {
  for (const char* text : {"", "[]", "{}", "{\"job\": 1, \"cluster\": \"c\", \"line\": 5}", "x"}) {
    ASSERT_TRUE(state_.write("spool/c.1.0.n.1.1.json", text).ok());
    EXPECT_TRUE(flush_now().ok()) << text;
    EXPECT_TRUE(state_.spooled().empty()) << text;
  }
  scratch_.file("state/jobs/c.7.n1/record.json", "{");
  EXPECT_FALSE(times_are_due(state_));
  ask_times(state_, program_);
  EXPECT_TRUE(called().empty());
}

TEST_F(SpoolTest, HalfALineIsNoLineAndStaysForAWhile) {
  scratch_.file("state/spool/c.1.0.n.1.1.json.new", "{");
  scratch_.file("state/spool/c.2.0.n.1.1.json.new", "{");
  set_mtime(path("c.1.0.n.1.1.json.new"), -700);
  const std::string waits = path(line(3, Accounting::kSacct, 0, 100)),
                    kept = path(line(4, Accounting::kSpool, 0, -700));
  EXPECT_FALSE(flush_now().ok());
  EXPECT_EQ(state_.spooled().size(), 2u);
  state_.forget_rests();
  EXPECT_FALSE(fs::exists(path("c.1.0.n.1.1.json.new")));
  EXPECT_TRUE(fs::exists(path("c.2.0.n.1.1.json.new")));
  EXPECT_TRUE(fs::exists(waits) && fs::exists(kept));
}

TEST_F(SpoolTest, WhatHasWaitedTooLongIsDroppedUnsent) {
  const std::string old = path(line(1, Accounting::kSacct, 3 * 86400, 10)),
                    young = path(line(2, Accounting::kSacct, 86400, 10));
  EXPECT_FALSE(flush_now(Lines::kDue, {2, 100}).ok());
  EXPECT_FALSE(fs::exists(old));
  EXPECT_TRUE(fs::exists(young));
  EXPECT_TRUE(called().empty());
}

TEST_F(SpoolTest, AFlushIsDueWhenALineIs) {
  EXPECT_FALSE(flush_is_due(state_)) << "nothing waits";
  const std::string a = path(line(1, Accounting::kSacct, 0, 100));
  EXPECT_TRUE(flush_is_due(state_)) << "nobody has looked yet";
  (void)flush_now();
  EXPECT_FALSE(flush_is_due(state_));
  set_mtime(a, -1);
  EXPECT_TRUE(flush_is_due(state_));
  set_mtime(a, 660);
  EXPECT_TRUE(flush_is_due(state_));
  fs::remove(a);
  line(2, Accounting::kSpool, 0, -1);
  EXPECT_FALSE(flush_is_due(state_)) << "it waits for a person";
  set_mtime(state_.path() + "/spool_tidied", -601);
  EXPECT_TRUE(flush_is_due(state_)) << "who may never come: it is looked after at times";
}

TEST_F(SpoolTest, AnotherFlushIsWaitedFor) {
  line(1);
  Fd other(::open((state_.path() + "/spool").c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(other.get(), LOCK_EX), 0);
  clock_.at_pause(3, [&] {
    EXPECT_TRUE(called().empty());
    other.reset();
  });
  EXPECT_TRUE(flush_now().ok());
  EXPECT_EQ(called().size(), 1u);
}

TEST_F(SpoolTest, SlurmIsAskedForTheTimesOfEachRunOnce) {
  begin_job();
  EXPECT_FALSE(times_are_due(state_)) << "the prolog has seen it, and nothing more";
  ask_times(state_, program_);
  EXPECT_TRUE(called().empty());
  const int64_t begin = ::time(nullptr) - 100;
  ASSERT_TRUE(state_.write_record(record(7, begin)).ok());
  EXPECT_TRUE(times_are_due(state_));

  answer(kAway);
  ask_times(state_, program_);
  EXPECT_GT(job().next_ask - ::time(nullptr), 50);
  EXPECT_FALSE(times_are_due(state_)) << "not at once";
  ask_times(state_, program_);
  EXPECT_EQ(called().size(), 1u);
  ask_at(::time(nullptr) - 1);
  EXPECT_TRUE(times_are_due(state_));
  answer(kDone, "111 222\n");
  ask_times(state_, program_);
  EXPECT_EQ(called().back(),
            "unset --times --job 7 --uid 65534 --restart 2 --begin " + std::to_string(begin));
  EXPECT_TRUE(job().submit == 111 && job().start == 222);
  EXPECT_FALSE(times_are_due(state_)) << "they are known";
  ask_times(state_, program_);
  EXPECT_EQ(called().size(), 2u);

  ask_at(0);
  answer(kDone, std::string(1000, 'x'));
  ask_times(state_, program_);
  EXPECT_TRUE(job().submit == 111 && !times_are_due(state_)) << "that is no time";
}

TEST_F(SpoolTest, NobodyIsAskedWhoCannotKnowOrNeedNotSay) {
  const std::string none = state_.path() + "/no_database.c";
  begin_job();
  struct Case {
    const char* what;
    bool is_first_node, has_program;
    int answer;
    size_t calls;
    bool has_database;
  };
  for (const Case& c : {Case{"the first node writes the line", false, true, kDone, 0, true},
                        {"it has no program", true, false, kDone, 0, true},
                        {"there is no row", true, true, kNoRow, 1, true},
                        {"there is no database", true, true, kNoDatabase, 2, false},
                        {"that is known", true, true, kNoDatabase, 2, false}}) {
    JobRecord r = record(7);
    r.first_node = c.is_first_node;
    if (!c.has_program) r.of_cluster.account_program = "";
    ASSERT_TRUE(state_.write_record(r).ok());
    answer(c.answer);
    ask_times(state_, program_);
    EXPECT_EQ(job().next_ask, -1) << c.what;
    EXPECT_EQ(called().size(), c.calls) << c.what;
    EXPECT_EQ(fs::exists(none), !c.has_database) << c.what;
  }
  ask_at(0);
  fs::remove(none);
  fs::remove(program_);
  ask_times(state_, program_);
  EXPECT_GT(job().next_ask, 0) << "no answer: to be asked again";
  EXPECT_TRUE(fs::exists(state_.path() + "/account_warned")) << "it cannot run";
}

TEST_F(SpoolTest, EachClusterIsAskedByItsOwn) {
  of_ = {"/etc/red.conf", "", program_};
  begin_job();
  ASSERT_TRUE(state_.write_record(record(7)).ok());
  ask_times(state_, "/of/the/keeper");
  EXPECT_EQ(called().back(), "/etc/red.conf --times --job 7 --uid 65534 --restart 2 --begin 1000");
  line(8);
  EXPECT_TRUE(flush(state_, {"", "/of/the/keeper"}, {}, Lines::kDue).ok());
  EXPECT_EQ(called().size(), 2u);
  of_.account_program = scratch_ / "of-a-release-that-is-gone";  // then the keeper's will do
  ASSERT_TRUE(state_.write_record(record(7)).ok());
  ask_times(state_, program_);
  EXPECT_EQ(called().size(), 3u);
  line(8);
  EXPECT_TRUE(flush_now().ok());
  EXPECT_EQ(called().size(), 4u);
}

TEST_F(SpoolTest, AClusterWithoutDatabaseHoldsUpNoOther) {
  for (uint32_t job = 1; job < 5; ++job) {
    of_.slurm_conf = job % 2 ? "/etc/dead.conf" : "/etc/live.conf";
    line(job);
  }
  helper("echo \"$SLURM_CONF\" >>" + (scratch_ / "calls") + "\ncase $SLURM_CONF in *dead*) exit 1;; esac");
  EXPECT_FALSE(flush_now().ok());
  const std::vector<std::string> asked = called();
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "/etc/dead.conf"), 1);
  EXPECT_EQ(std::count(asked.begin(), asked.end(), "/etc/live.conf"), 2);
}

TEST_F(SpoolTest, TimesAreThoseOfTheRunThatWasAskedFor) {
  begin_job();
  ASSERT_TRUE(state_.write_record(record(7, 2000)).ok());
  fs::rename(job_dir() + "record.json", job_dir() + "later");
  ASSERT_TRUE(state_.write_record(record(7)).ok());
  for (const int status : {kDone, kAway}) {
    helper("echo x >>" + (scratch_ / "calls") + "\ncp " + job_dir() + "later " + job_dir() +
           "record.json\necho 5 6\nexit " + std::to_string(status));
    ask_times(state_, program_);
    EXPECT_EQ(job().submit, 0) << "the job was requeued meanwhile";
    EXPECT_TRUE(times_are_due(state_)) << "and its next run is asked for";
    ASSERT_TRUE(state_.write_record(record(7)).ok());
  }
  EXPECT_EQ(called().size(), 2u);
}

TEST_F(SpoolTest, HelperThatHangsIsKilledAndItsLineStays) {
  line(1);
  helper("echo $$ >>" + (scratch_ / "calls") + "\nexec sleep 1000");
  clock_.pass_once([&] { return !called().empty(); });
  EXPECT_EQ(flush_now().error().code, EAGAIN);
  EXPECT_EQ(state_.spooled().size(), 1u);
  ASSERT_EQ(called().size(), 1u);
  EXPECT_FALSE(fs::exists("/proc/" + called()[0])) << "and waited for";
}

TEST_F(SpoolTest, HelperThatHangsInTheKernelIsNotWaitedFor) {
  line(1);
  scratch_.dir("pfs");
  helper("read x <" + (scratch_ / "pfs/file"));
  in_private_mounts(scratch_, [&](PrivateMounts* mounts) {
    const HangingFs pfs(scratch_ / "pfs");
    mounts->check(pfs.is_mounted(), "mount");
    clock_.pass_once([&] { return pfs.is_asked(); });
    mounts->check(flush_now().error().code == EAGAIN, "the line waits");
  });
}

TEST_F(SpoolTest, ALineThatCannotBeReadNowIsNotLost) {
  const std::string name = path(line(1));
  for (const int error : {ENOMEM, EMFILE, ENFILE, EIO}) {
    const int64_t before = due_at(name);
    const int status = in_child([&] {
      ::alarm(600);
      const bool is_trapped = before_call(SYS_openat, [&](CallArguments a) {
        return name == reinterpret_cast<const char*>(a[1]) ? error : 0;
      });
      return is_trapped ? int{flush_now().ok()} : kNoTraps;
    });
    if (status == kNoTraps) GTEST_SKIP() << "no system call can be trapped here";
    EXPECT_EQ(status, 0) << error;
    ASSERT_TRUE(fs::exists(name)) << error;
    EXPECT_GT(due_at(name), before) << "it is tried again, later";
    set_mtime(name, 0);
  }
  EXPECT_TRUE(called().empty());
  EXPECT_TRUE(flush_now().ok());
  EXPECT_EQ(called().size(), 1u);
}

}  // namespace
}  // namespace monarch
