// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/account_for.h"

#include "runtime/base/json.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/nodes_told.h"
#include "runtime/metadata/series.h"
#include "runtime/node/closing.h"
#include "runtime/node/life.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

class AccountForTest : public NodeTest {
 protected:
  static constexpr AccountPatience kPatient = {60000, 60000};

  // A run that has ended, with what its agent has counted.
  JobRecord ended(uint32_t job) const {
    JobRecord r = record(job);
    r.of_cluster.account_program = "/helper";
    (void)begin(r);
    const Result<BoardFile> board = BoardFile::create(r.run_dir);
    EXPECT_TRUE(board.ok());
    if (!board.ok()) return r;
    (*board)->shards[0].task[static_cast<int>(TaskCounter::opens_pfs)] = 4;
    (*board)->shards[0].task[static_cast<int>(TaskCounter::fallback_timeout)] = 3;
    give(r, "board");
    return r;
  }
  static void give(const JobRecord& r, const std::string& name) {
    EXPECT_EQ(::chown((r.run_dir + "/" + name).c_str(), kUid, kUid), 0) << name;
  }
  // Accounts for it; what the log says.
  std::string account(const JobRecord& r, const AccountPatience& patience = kPatient) {
    return logged([&] { status_ = finish(state_, r, account_for(state_, r, patience)); });
  }
  std::string report_of(const JobRecord& r) const {
    return state_.path() + "/reports/" + std::to_string(kUid) + "/" + r.name + ".json";
  }
  Status status_;
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST_F(AccountForTest, ARunIsAccountedForOnce) {
  JobRecord r = ended(1);
  const std::string log = account(r);
  EXPECT_TRUE(status_.ok()) << status_.error().text;
  EXPECT_TRUE(has(log, "JobId=1 node=n1 monarch=1 hit=0.0% ")) << log;
  EXPECT_TRUE(has(log, " timeouts=3\n")) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_EQ(state_.spooled().size(), 1u);
  const Json report = *Json::parse(contents(report_of(r)));
  EXPECT_EQ(report["opens"], 4);
  EXPECT_FALSE(report.find("job")) << "it had one node";
  fs::remove_all(state_.path() + "/spool");
  scratch_.dir("state/spool");
  fs::remove(report_of(r));
  EXPECT_EQ(account(r), "");
  EXPECT_TRUE(status_.ok());
  EXPECT_TRUE(state_.spooled().empty());
  EXPECT_FALSE(exists(report_of(r)));
  ++r.serial;
  EXPECT_TRUE(has(account(r), "JobId=1 ")) << "its next run is another";
}

TEST_F(AccountForTest, OnlyTheFirstNodeHasALineForSacctAndOnlyWhereThereIsADatabase) {
  JobRecord second = ended(1), without = ended(2), lost = ended(3);
  second.first_node = false;
  without.of_cluster.account_program = "";
  for (const JobRecord& r : {second, without}) {
    EXPECT_TRUE(has(account(r), "monarch=1 hit="));
    EXPECT_TRUE(status_.ok()) << status_.error().text;
    EXPECT_TRUE(state_.spooled().empty());
    EXPECT_TRUE(exists(report_of(r)));
  }
  fs::remove(lost.run_dir + "/board");
  const std::string log = account(lost);
  EXPECT_TRUE(has(log, "monarch=1 counters=lost nodes=1/1 err=1\n")) << log;
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  EXPECT_EQ(state_.spooled().size(), 1u);
  EXPECT_FALSE(exists(report_of(lost)));
}

TEST_F(AccountForTest, WhatCannotBeKeptIsToldAndTriedAgain) {
  const JobRecord r = ended(1);
  for (const char* name : {"spool", "metrics.lock", "reports"}) {
    const std::string path = state_.path() + "/" + name;
    fs::remove_all(path);
    *name == 'm' ? (void)fs::create_directory(path) : (void)scratch_.file(std::string("state/") + name, "");
  }
  const std::string log = account(r);
  EXPECT_FALSE(status_.ok());
  EXPECT_TRUE(has(log, "JobId=1 no report is kept: ")) << log;
  EXPECT_TRUE(has(log, "JobId=1 its last counts are not in the metrics: ")) << log;
  fs::remove(state_.path() + "/spool");
  scratch_.dir("state/spool");
  account(r);
  EXPECT_TRUE(status_.ok()) << status_.error().text;
  EXPECT_EQ(state_.spooled().size(), 1u);
}

TEST_F(AccountForTest, TheFirstNodeReportsWhatTheOthersTold) {
  JobRecord r = ended(1);
  r.nodes = 2;
  r.peers = true;
  NodesTold nodes;
  nodes.magic = kNodesToldMagic;
  nodes.nodes = nodes.count = 2;
  std::strcpy(nodes.told[0].name, "n1");
  std::strcpy(nodes.told[1].name, "n2");
  const Fd dir(::open(r.run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(write_nodes_told(dir.get(), nodes).ok());
  give(r, kNodesFile);
  account(r);
  const Json report = *Json::parse(contents(report_of(r)));
  ASSERT_TRUE(report["job"]["by_node"].is_array()) << report.dump();
  EXPECT_EQ(report["job"]["by_node"].at(1)["node"], "n2");
}

// The owner keeps the directory locked in the kernel for reading, and somebody waits to write there: who
// looks for the name of a file that is gone waits, too, and cannot be killed.
TEST_F(AccountForTest, TheOutputEndsWithWhatTheCountersSayOfAJobThatHasAnAgent) {
  JobRecord r = ended(1);
  const auto closing = [&](const std::string& conf = "") {
    EXPECT_TRUE(state_.write_record(r).ok());
    return closing_of_job(state_, r.job, conf.empty() ? "" : scratch_.file("c.conf", conf));
  };
  const std::string read = "opened 1 file; 0 came from the PFS",
                    report = "; report on n1: monarchctl report 1";
  EXPECT_EQ(closing(), "") << "its agent has not begun";
  r.agent = *identify(::getpid());
  EXPECT_EQ(closing(), read + report);
  EXPECT_EQ(closing("[accounting]\nreport_size = none\n"), read) << "no report is kept";
  r.nodes = 2;
  ++r.agent.start_time;
  EXPECT_EQ(closing(), "on n1, one of 2 nodes: " + read +
                           "; the agent ended early, and the rest came from the PFS" + report);
  fs::remove(r.run_dir + "/board");
  ASSERT_TRUE(BoardFile::create(r.run_dir).ok());
  give(r, "board");
  EXPECT_TRUE(has(closing(), "no program has used the dataset")) << closing();
  EXPECT_TRUE(state_.write("jobs/c.1.n1/by_default", "").ok());
  EXPECT_EQ(closing(), "") << "nobody has asked for it";
  fs::remove(r.run_dir + "/board");
  EXPECT_EQ(closing(),
            "what the job read is not known: the counters of its agent on n1 cannot be read; the log "
            "of root's helpers there has more");
  EXPECT_EQ(closing_of_job(state_, record(2).job, ""), "") << "nothing is known of it";
}

TEST_F(AccountForTest, WhoHangsInWhatTheOthersToldIsNotedAndLeftBehind) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    LockedDirectory locked(scratch_.file("file", ""));
    if (!locked.is_ready()) return;
    JobRecord r = ended(1);
    r.nodes = 2;
    r.peers = true;
    std::ofstream(r.run_dir + "/" + kSeriesFile) << "none\n";
    give(r, kSeriesFile);
    locked.lock(::open(r.run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const pid_t writes = ::fork();
    if (writes == 0) ::_exit(::mkdir((r.run_dir + "/new").c_str(), 0700));
    m->check(is_soon_in_kernel(writes), "it waits");
    // Not one that waits for a disk for a moment.
    clock_.pass_once([before = children_in_state('D'), looks = 0]() mutable {
      looks = children_in_state('D') > before ? looks + 1 : 0;
      return looks > 20;
    });
    account(r);
    m->check(state_.spooled().size() == 1 && exists(report_of(r)), "all else is kept");
    m->check(hangs(state_, "jobs/" + r.job.key()), "it is noted, and the remover will not be another one");
    for (const int pid : Cgroups().processes(state_.helpers_cgroup())) ::kill(pid, SIGKILL);
    m->check(Cgroups().hierarchies().empty() || !Cgroups().processes(state_.helpers_cgroup()).empty(),
             "no step of the job's has it");
    locked.end();
    while (::waitpid(-1, nullptr, 0) > 0) continue;
    Cgroups().remove_if_empty(state_.helpers_cgroup());
  });
}

}  // namespace
}  // namespace monarch
