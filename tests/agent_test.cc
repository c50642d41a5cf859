// SPDX-License-Identifier: Apache-2.0
// An agent's life, in a process of its own: what it serves, what ends it, and what it leaves.
#include "runtime/agent/agent.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>

#include "runtime/config/dataset_rules.h"
#include "runtime/layout/board_client.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/series.h"
#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/loopback.h"
#include "tests/tiers.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

class AgentTest : public ::testing::Test {
 protected:
  AgentTest() {
    scratch_.file("pfs/one", noise(65536, 1));
    options_.datasets = {scratch_ / "pfs"};
    options_.run_dir = scratch_.dir("run");
    options_.job_dir = "job";
    options_.config.agent.log = scratch_ / "log";
    options_.config.agent.threads = 2;
    options_.config.agent.prefetch = AgentConfig::Prefetch::kOff;
    options_.config.tiers = {tier_config(scratch_, "fast", 1 << 20), tier_config(scratch_, "slow", 1 << 20)};
  }
  ~AgentTest() override {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }

  // Starts it; what it says once it is ready.
  std::string start(const std::function<void()>& before = [] {}) {
    int ends[2];
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    const Fd in(ends[0]);
    options_.ready_fd = ends[1];
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      before();
      ::_exit(run_agent(options_));
    }
    ::close(ends[1]);
    char said[200];
    const ssize_t n = ::read(in.get(), said, sizeof said);
    return {said, n > 0 ? static_cast<size_t>(n) : 0};
  }
  // Its exit status; 128 + N if signal N ended it, -1 if it goes on.
  int ended(const std::function<void()>& meanwhile = [] {}) {
    int status = 0;
    if (!eventually([&] {
          meanwhile();
          return ::waitpid(pid_, &status, WNOHANG) == pid_;
        }))
      return -1;
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  // Ends it by a signal.
  void end(int signal = SIGTERM) {
    ::kill(pid_, signal);
    EXPECT_EQ(ended(), 0);
    EXPECT_TRUE(nothing_is_left());
  }
  bool lives() const { return ::waitpid(pid_, nullptr, WNOHANG) == 0; }
  BoardFile board() const {
    Result<BoardFile> board = BoardFile::open(options_.run_dir);
    if (!board.ok()) throw std::runtime_error(board.error().text);
    return board.take();
  }
  // As root does it: a whole file takes the place of the last.
  void grant(const std::string& text) const {
    scratch_.file("grants.new", text);
    fs::rename(scratch_ / "grants.new", scratch_ / "grants");
  }
  bool nothing_is_left() const {
    return !fs::exists(options_.run_dir) && fs::is_empty(scratch_ / "fast") &&
           fs::is_empty(scratch_ / "slow");
  }
  // A line KEY=VALUE of its state file.
  std::string told(const std::string& key) const {
    std::ifstream in(options_.run_dir + "/state");
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(key + "=")) return line.substr(key.size() + 1);
    return "";
  }
  bool tells(const std::string& state) const {
    return eventually([&] { return told("state") == state; });
  }
  static uint64_t staged(const BoardFile& board) { return total(*board.get(), AgentCounter::staged_files); }

  const Scratch scratch_;
  AgentOptions options_;
  pid_t pid_ = 0;
};

TEST_F(AgentTest, EndsAtASignalAndLeavesNothing) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    scratch_.dir("run");
    ASSERT_EQ(start(), "ready\n");
    end(signal);
  }
}

TEST_F(AgentTest, GoesOnForOneThatWasKilledAlone) {
  EXPECT_EQ(start(), "ready\n");
  const pid_t killed = std::exchange(pid_, 0);
  options_.resume = true;
  EXPECT_EQ(start(), "another agent serves this job\n");
  EXPECT_EQ(ended(), 1);
  ::kill(killed, SIGKILL);
  ::waitpid(killed, nullptr, 0);
  EXPECT_FALSE(agent_lives(*board().get()));
  EXPECT_EQ(start(), "ready\n");
  EXPECT_TRUE(agent_lives(*board().get()));
  end();
}

TEST_F(AgentTest, EndsWithItsLifeline) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  const Fd lifeline(ends[0]);
  Fd held(ends[1]);
  options_.lifeline_fd = lifeline.get();
  ASSERT_EQ(start([&] { held.reset(); }), "ready\n");
  EXPECT_TRUE(lives());
  for (int times = 0; times < 2; ++times) {
    ASSERT_EQ(::write(held.get(), "x", 1), 1);
    int unread = 1;
    EXPECT_TRUE(eventually([&] { return ::ioctl(lifeline.get(), FIONREAD, &unread) == 0 && unread == 0; }))
        << "what is said there means nothing";
  }
  EXPECT_TRUE(lives());
  held.reset();
  EXPECT_EQ(ended(), 0);
  EXPECT_TRUE(nothing_is_left());
}

TEST_F(AgentTest, LeavesAllToRootsEpilog) {
  options_.leave = true;
  ASSERT_EQ(start(), "ready\n");
  ::kill(pid_, SIGTERM);
  EXPECT_EQ(ended(), 0);
  EXPECT_EQ(board()->header.closed, kEnding) << "its counters can be read";
  EXPECT_FALSE(fs::is_empty(scratch_ / "fast"));
}

// A thread that is left behind may still make a file: each directory's removal fails once.
TEST_F(AgentTest, RemovesWhatIsThereStill) {
  for (const std::string& kept : {std::string("job"), options_.run_dir}) {
    SCOPED_TRACE(kept);
    scratch_.dir("run");
    ASSERT_EQ(start([&] {
                static std::string once;
                once = kept;
                static const Intercept removes(Call::kUnlinkat, [](Arguments& a) {
                  if (once != a.path) return 0;
                  once.clear();
                  return ENOTEMPTY;
                });
              }),
              "ready\n");
    end();
  }
}

TEST_F(AgentTest, WhatCannotBeServedIsToldAndNothingIsLeft) {
  const AgentOptions usual = options_;
  const std::vector<std::pair<std::string, std::function<void()>>> faults = {
      {"missing", [&] { options_.datasets = {scratch_ / "missing"}; }},
      {"no-tier", [&] { options_.config.tiers[1].path = scratch_ / "no-tier"; }},
      {"make " + options_.run_dir + "/board", [&] { scratch_.file("run/board", "x"); }},
      {"make " + options_.run_dir + "/catalog", [&] { scratch_.file("run/catalog", "x"); }}};
  for (const auto& [name, make] : faults) {
    options_ = usual;
    scratch_.dir("run");
    make();
    EXPECT_NE(start().find(name), std::string::npos) << name;
    EXPECT_EQ(ended(), 1) << name;
    EXPECT_TRUE(nothing_is_left()) << name;
  }
}

TEST_F(AgentTest, WithoutTheThreadsThatItNeedsItDoesNotStart) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "threads that are not joined are reported";
#endif
  int most = 0;
  for (std::string said; most < 10 && said != "ready\n"; ++most) {
    scratch_.dir("run");
    const Intercept limit(Call::kStartThread,
                          [&, started = 0](Arguments&) mutable { return started++ < most ? 0 : EAGAIN; });
    said = start();
    if (said == "ready\n") ::kill(pid_, SIGTERM);
    EXPECT_EQ(ended(), said == "ready\n" ? 0 : 1) << said;
    EXPECT_TRUE(nothing_is_left());
  }
  EXPECT_GT(most, 2);
  EXPECT_LT(most, 10);
}

TEST_F(AgentTest, ARunDirectoryOfOthersIsRefused) {
  fs::permissions(options_.run_dir, fs::perms::owner_all | fs::perms::group_exec);
  EXPECT_NE(start().find("alone"), std::string::npos);
  EXPECT_EQ(ended(), 1);
  EXPECT_TRUE(fs::is_empty(options_.run_dir));
}

// Root has to tell what policy refuses from what fails.
TEST_F(AgentTest, RootHearsThatADatasetIsRefused) {
  options_.config.datasets.deny = {options_.datasets.front()};
  for (const bool of_root : {true, false}) {
    scratch_.dir("run");
    options_.grants = of_root ? scratch_.file("grants", "") : "";
    const std::string said = start();
    EXPECT_EQ(said.starts_with(kRefusedWord), of_root) << said;
    EXPECT_NE(said.find("(monarch.conf: deny_datasets)"), std::string::npos) << said;
    EXPECT_EQ(ended(), 1);
  }
}

TEST_F(AgentTest, ListsADatasetOnlyToPrefetch) {
  ASSERT_EQ(start(), "ready\n");
  {
    const BoardFile shared = board();
    post_request(shared.get(), rel("one"));
    EXPECT_TRUE(eventually([&] { return staged(shared) == 1; }));
    EXPECT_TRUE(tells("allocated"));
    CatalogReader reader;
    ASSERT_TRUE(reader.open(options_.run_dir.c_str()));
    EXPECT_FALSE(reader.walked(0));
  }
  end();
  scratch_.dir("run");
  options_.config.agent.prefetch = AgentConfig::Prefetch::kOn;
  ASSERT_EQ(start(), "ready\n");
  const BoardFile shared = board();
  EXPECT_TRUE(eventually([&] { return staged(shared) == 1; })) << "nobody asked for it";
}

TEST_F(AgentTest, TellsWhatIsNotStaged) {
  options_.grants = scratch_.file("grants", "");
  scratch_.file("pfs/large", noise(3 << 20, 2));
  for (TierConfig& tier : options_.config.tiers) tier.quota.bytes = 100000;
  options_.config.agent.prefetch = AgentConfig::Prefetch::kOn;
  ASSERT_EQ(start(), "ready\n");
  EXPECT_TRUE(tells("staged-in")) << "it is over";
  EXPECT_EQ(told("percent"), "2");
  EXPECT_EQ(told("no_room") + told("failed") + told("staged_files"), "101");
  const auto series = [&] {
    const Result<Series> read = read_series(options_.run_dir);
    return read.ok() ? *read : Series();
  };
  EXPECT_TRUE(eventually([&] { return series().settled_ms > 0; }));
  EXPECT_EQ(series().whole_ms, 0u) << "that is another time";
  grant("slow 4194304\n");
  EXPECT_TRUE(eventually([&] { return told("percent") == "100"; })) << "there is room by now";
  EXPECT_EQ(told("no_room") + told("failed") + told("staged_files"), "002");
  EXPECT_TRUE(eventually([&] { return series().whole_ms > 0; }));
}

// A pattern with a path is of that place, and of none that has the same files below.
TEST_F(AgentTest, WhatIsExcludedInOneDatasetIsStagedOfAnother) {
  for (const char* name : {"pfs/x", "other/x", "pfs/below/y"}) scratch_.file(name, noise(1000, 2));
  options_.datasets = {scratch_ / "pfs", scratch_ / "other", scratch_ / "pfs/below"};
  options_.config.agent.exclude = (scratch_ / "pfs/x") + ":" + (scratch_ / "pfs/below/below/y");
  options_.config.agent.prefetch = AgentConfig::Prefetch::kOn;
  ASSERT_EQ(start(), "ready\n");
  EXPECT_TRUE(tells("staged-in"));
  EXPECT_EQ(told("files") + " " + told("staged_files"), "3 3");
  EXPECT_EQ(total(*board().get(), AgentCounter::walk_files), 3u) << "for sacct and monarchctl";
}

TEST_F(AgentTest, TasksAnswerFromListingsOnlyWhereBothAreWanted) {
  options_.config.agent.prefetch = AgentConfig::Prefetch::kOn;
  for (const auto metadata : {AgentConfig::Metadata::kServe, AgentConfig::Metadata::kPass})
    for (const auto consistency : {AgentConfig::Consistency::kJob, AgentConfig::Consistency::kOpen}) {
      scratch_.dir("run");
      options_.config.agent.metadata = metadata;
      options_.config.agent.consistency = consistency;
      ASSERT_EQ(start(), "ready\n");
      CatalogReader reader;
      ASSERT_TRUE(reader.open(options_.run_dir.c_str()));
      EXPECT_TRUE(eventually([&] { return reader.walked(0); }));
      EXPECT_EQ(reader.listing(rel("")) != nullptr,
                metadata == AgentConfig::Metadata::kServe && consistency == AgentConfig::Consistency::kJob);
      end();
    }
}

TEST_F(AgentTest, WhatRootGrantsGoesToThatTierAlone) {
  options_.grants = scratch_.file("grants", "");
  for (TierConfig& tier : options_.config.tiers) tier.quota.bytes = 8192;
  ASSERT_EQ(start(), "ready\n");
  const BoardFile shared = board();
  post_request(shared.get(), rel("one"));
  EXPECT_TRUE(eventually([&] { return total(*shared.get(), AgentCounter::requests) == 1; }));
  EXPECT_EQ(staged(shared), 0u) << "there is no room";
  grant("slow 1048576\n");
  EXPECT_TRUE(eventually([&] {
    post_request(shared.get(), rel("one"));
    return staged(shared) == 1;
  }));
  EXPECT_EQ(tier_totals(*shared.get(), 0).placed_bytes, 0u);
  EXPECT_GE(tier_totals(*shared.get(), 1).placed_bytes, 65536u);
}

// Of 640 MiB, of which the margin is 40 MiB.
TEST_F(AgentTest, ATierThatIsChargedToTheJobHasWhatTheJobsMemoryLeaves) {
  const auto uses = [&](uint64_t mib) {
    scratch_.file("group/memory.current", std::to_string(mib << 20) + "\n");
    scratch_.file("group/memory.stat", "inactive_file 0\nactive_file 0\nfile_dirty 0\nfile_writeback 0\n");
  };
  constexpr char kGranted[] = "fast 104857600\n";
  options_.config.tiers.resize(1);
  options_.config.tiers[0].charge = TierConfig::Charge::kJob;
  options_.config.tiers[0].quota.bytes = 0;
  options_.grants = scratch_.file("grants", kGranted);
  ASSERT_EQ(start(), "ready\n");
  const BoardFile shared = board();
  const auto may_use = [&](uint64_t mib) {
    return eventually([&] { return tier_totals(*shared.get(), 0).granted == mib << 20; });
  };
  EXPECT_TRUE(may_use(0)) << "nothing is known of the job's memory";
  uses(550);
  grant(kGranted + ("memory 671088640 " + scratch_ / "group") + "\n");
  EXPECT_TRUE(may_use(50));
  EXPECT_TRUE(eventually([&] {
    post_request(shared.get(), rel("one"));
    return staged(shared) == 1;
  }));
  uses(600);
  EXPECT_TRUE(may_use(0));
  EXPECT_TRUE(eventually([&] { return total(*shared.get(), AgentCounter::evicted_files) == 1; }));
}

// Two new file systems of a kind have roots of the same number.
TEST_F(AgentTest, EndsWhenItsRunDirectoryIsCovered) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "it forks in a thread";
#endif
  options_.grants = scratch_.file("grants", "");
  const bool mounted = with_tmpfs(options_.run_dir, 64 << 20, [&] {
    ASSERT_EQ(start(), "ready\n");
    ASSERT_EQ(::mount("tmpfs", options_.run_dir.c_str(), "tmpfs", 0, "mode=0700"), 0);
    int quota = 0;
    EXPECT_EQ(ended([&] { grant("slow " + std::to_string(++quota) + "\n"); }), 0);
  });
  if (!mounted) GTEST_SKIP() << "mounting needs root";
}

// The rules are the administrator's; root looks at no path of the user's, so the agent applies them.
TEST_F(AgentTest, WhereADatasetReallyIsCountsForTheRules) {
  fs::create_directory_symlink(scratch_ / "pfs", scratch_ / "link");
  options_.datasets = {scratch_ / "link"};
  const std::vector<std::string> here = {scratch_ / "pfs"}, elsewhere = {scratch_.dir("elsewhere")};
  struct Rules {
    DatasetRules job;
    PolicyKeys::List allow, deny;  // of a section of the policy
    PolicySection::Of of;
    bool served;
  };
  using Of = PolicySection::Of;
  for (const Rules& r :
       {Rules{{{}, here}, {}, {}, Of::kAll, false}, Rules{{}, elsewhere, {}, Of::kAll, false},
        Rules{{elsewhere, here}, here, elsewhere, Of::kAll, true},  // a section goes before
        Rules{{}, {}, here, Of::kPartition, true}}) {               // of another job
    scratch_.dir("run");
    options_.config.datasets = r.job;
    PolicySection section;
    section.of = r.of;
    section.keys.allow_datasets = r.allow;
    section.keys.deny_datasets = r.deny;
    options_.config.policies = {section};
    const std::string said = start();
    EXPECT_EQ(said == "ready\n", r.served) << said;
    EXPECT_TRUE(r.served || said.find("administrator") != std::string::npos) << said;
    if (r.served) ::kill(pid_, SIGTERM);
    EXPECT_EQ(ended(), r.served ? 0 : 1);
    EXPECT_TRUE(nothing_is_left());
  }
}

TEST_F(AgentTest, NotesTheDirectoriesThatTasksHaveToSee) {
  ASSERT_EQ(start(), "ready\n");
  EXPECT_EQ(contents(options_.run_dir + "/directories"),
            options_.datasets[0] + "\n" + (scratch_ / "fast/job") + "\n" + (scratch_ / "slow/job") + "\n");
}

TEST_F(AgentTest, TheWalkRestsWhileNobodyUsesTheDataset) {
  for (int i = 0; i < 60; ++i) scratch_.file("pfs/d" + std::to_string(i) + "/f", "x");
  options_.config.agent.prefetch = AgentConfig::Prefetch::kOn;
  options_.config.agent.pfs_stats = 1;
  options_.config.agent.prefetch_patience = 1;
  scratch_.file("run/began", "0");
  ASSERT_EQ(start(), "ready\n");
  EXPECT_TRUE(eventually([&] { return told("unused") == "1"; }));
  BoardFile shared = board();
  CatalogReader reader;
  ASSERT_TRUE(reader.open(options_.run_dir.c_str()));
  const auto found = [&] {
    int names = 0;
    for (int i = 0; i < 60; ++i) names += static_cast<bool>(reader.find(rel("d" + std::to_string(i) + "/f")));
    return names;
  };
  const int then = found();
  EXPECT_LT(then, 60);
  count(shared.get(), TaskCounter::opens_pfs);
  EXPECT_TRUE(eventually([&] { return found() > then + 3; })) << "more than what was begun before";
}

// It serves this node's tasks, and prefetches only if the job wants that in any case.
TEST_F(AgentTest, WithoutTheLibraryForPeersItGoesOnAlone) {
  PeerMembership job;
  for (const char* name : {"a", "b"}) job.nodes.push_back({name, kLoopback, {free_port()}});
  job.identity = "c.1.0";
  options_.peers = job;
  options_.peers_library = "/nowhere/libmonarch_peers.so";
  for (const auto prefetch : {AgentConfig::Prefetch::kAuto, AgentConfig::Prefetch::kOn}) {
    scratch_.dir("run");
    options_.config.agent.prefetch = prefetch;
    const std::string said = start();
    EXPECT_TRUE(said.starts_with("ready\tload /nowhere")) << said;
    EXPECT_TRUE(tells(prefetch == AgentConfig::Prefetch::kOn ? "staged-in" : "allocated"));
    {
      const BoardFile shared = board();
      EXPECT_EQ(shared->header.wakes_on_change, 0u) << "nobody tells of what other nodes change";
      post_request(shared.get(), rel("one"));
      EXPECT_TRUE(eventually([&] { return staged(shared) == 1; }));
    }
    end();
  }
}

}  // namespace
}  // namespace monarch
