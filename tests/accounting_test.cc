// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/accounting.h"

#include <fmt/format.h>

#include <memory>

#include "runtime/base/json.h"
#include "runtime/layout/catalog_layout.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/nodes_told.h"
#include "runtime/metadata/series.h"
#include "runtime/node/account_for.h"
#include "runtime/node/closing.h"
#include "runtime/node/job_report.h"
#include "runtime/node/owners_report.h"
#include "runtime/node/job_status.h"
#include "runtime/node/life.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/scratch.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

// As root's child reads them.
Result<JobCounters> read_counters(const std::string& run_dir) {
  const Result<JobAccount> account = read_account(run_dir);
  if (!account.ok()) return account.error();
  return account->counters;
}

TEST(Counters, HaveWhatOtherNodesTold) {
  const Scratch scratch;
  const Result<BoardFile> board = BoardFile::create(scratch.path());
  ASSERT_TRUE(board.ok());
  (*board)->nodes = 3;
  OthersTotals others;
  others.ended = 2;
  others.counts.task[3] = 7;
  others.counts.placed_bytes[kMedia - 1] = 8;
  for (const uint64_t more : {0u, 1u, 2u}) {  // either place on the board
    others.counts.agent[4] = more;
    set_others(board->get(), others);
    const Result<JobCounters> c = read_counters(scratch.path());
    ASSERT_TRUE(c.ok() && plausible(*c));
    EXPECT_EQ((std::vector<uint64_t>{c->nodes, c->ended, c->others.task[3], c->others.agent[4],
                                     c->others.placed_bytes[kMedia - 1]}),
              (std::vector<uint64_t>{3, 2, 7, more, 8}));
  }
  (*board)->others_at = UINT64_MAX;  // the owner can write anything
  EXPECT_TRUE(read_counters(scratch.path()).ok());
}

TEST(Counters, AreReadOfNothingButABoard) {
  const Scratch scratch;
  ASSERT_TRUE(BoardFile::create(scratch.path()).ok());
  const std::string path = scratch / "board", good = contents(path);
  const auto error = [&] { return read_counters(scratch.path()).error().code; };
  for (const std::string& size : {good.substr(1), good + "x"}) {
    scratch.file("board", size);
    EXPECT_EQ(error(), EINVAL) << "too short, or too long";
  }
  for (const size_t size : {size_t{0}, good.size()}) {
    scratch.file("board", std::string(size, '\0'));
    EXPECT_EQ(error(), ENOENT) << "it is not made yet";
  }
  scratch.file("board", good);
  EXPECT_EQ(
      in_child([&] { return before_call(SYS_pread64, [](CallArguments) { return EIO; }) ? error() : EIO; }),
      EIO);
  fs::rename(path, scratch / "other");
  EXPECT_EQ(error(), ENOENT);
  const std::function<bool()> others[] = {
      [&] { return ::symlink("other", path.c_str()) == 0; },
      [&] { return ::mkfifo(path.c_str(), 0600) == 0; },  // and nobody waits for who writes into it
      [&] { return fs::create_directory(path); }};
  for (const auto& make : others) {
    ASSERT_TRUE(make());
    EXPECT_EQ(error(), EINVAL);
    fs::remove(path);
  }
}

TEST(Counters, ArePlausibleIfAJobCanHaveThem) {
  JobCounters c{};
  EXPECT_FALSE(plausible(c));
  c.magic = kJobCountersMagic;
  EXPECT_TRUE(plausible(c));
  c.placed_bytes[kMaxTiers - 1] = (uint64_t{1} << 60) - 1;
  EXPECT_TRUE(plausible(c));
  ++c.placed_bytes[kMaxTiers - 1];
  EXPECT_FALSE(plausible(c));
  c.placed_bytes[kMaxTiers - 1] = 0;
  for (uint64_t* n : {&c.nodes, &c.ended, &c.others.task[0], &c.others.placed_bytes[kMedia - 1]}) {
    *n = kMostCount;
    EXPECT_TRUE(plausible(c));
    ++*n;
    EXPECT_FALSE(plausible(c));
    *n = 0;
  }
}

// What root hands on of a job's files, which are its owner's.
class StatusTest : public ::testing::Test {
 protected:
  StatusTest() : board_(BoardFile::create(scratch_.path()).take()) {
    std::memcpy(header_->magic, kCatalogMagic, sizeof kCatalogMagic);
    header_->version = kCatalogVersion;
    header_->bytes = sizeof(CatalogHeader);
    header_->ready = 1;
    header_->root_count = 2;
    header_->roots[0].walked = header_->roots[1].walked = 1;
    header_->tier_count = 1;
    std::strcpy(header_->tiers[0].name, "nvme");
  }
  JobStatus status() const {
    scratch_.file("catalog",
                  std::string(reinterpret_cast<const char*>(header_.get()), sizeof(CatalogHeader)) + "x");
    const Result<JobStatus> read = read_status(scratch_.path());
    EXPECT_TRUE(read.ok());
    return read.ok() ? *read : JobStatus{};
  }
  bool has_catalog() const { return status().tiers != 0; }

  const Scratch scratch_;
  const BoardFile board_;
  const std::unique_ptr<CatalogHeader> header_ = std::make_unique<CatalogHeader>();
};

TEST_F(StatusTest, IsOfBoardAndCatalog) {
  const auto told = [this] {
    const JobStatus s = status();
    EXPECT_TRUE(plausible(s)) << "whatever the owner writes there";
    return fmt::format("closed {} full {} walked {} granted {} tiers {} {}", s.closed, s.full, s.walked,
                       s.granted[0], s.tiers, s.names[0]);
  };
  EXPECT_EQ(told(), "closed 0 full 0 walked 1 granted 0 tiers 1 nvme");
  board_->header.closed = 7;
  board_->header.full = 7;
  board_->header.progress = UINT64_MAX;
  board_->granted[0] = 5;
  header_->roots[1].walked = 0;
  std::memset(header_->tiers[0].name, 'a', sizeof header_->tiers[0].name);
  EXPECT_EQ(told(), "closed 1 full 1 walked 0 granted 5 tiers 1 " +
                        std::string(sizeof header_->tiers[0].name - 1, 'a'));
  fs::remove(scratch_ / "board");
  EXPECT_EQ(read_status(scratch_.path()).error().code, ENOENT);
}

TEST_F(StatusTest, WhatIsNoCatalogIsNotRead) {
  const auto refused = [&](auto* field, auto value) {
    const auto before = std::exchange(*field, value);
    const bool has = has_catalog();
    *field = before;
    return !has;
  };
  EXPECT_TRUE(refused(&header_->magic[0], 'x'));
  EXPECT_TRUE(refused(&header_->version, kCatalogVersion + 1));
  EXPECT_TRUE(refused(&header_->bytes, uint32_t{1}));
  EXPECT_TRUE(refused(&header_->root_count, kMaxRoots + 1));
  EXPECT_TRUE(refused(&header_->tier_count, kMaxTiers + 1));
  for (const uint32_t ready : {0u, 2u, 1u}) {
    header_->ready = ready;
    EXPECT_EQ(has_catalog(), ready == 1);
  }
  const std::string catalog = scratch_ / "catalog";
  const auto has_tiers = [&] {
    const Result<JobStatus> read = read_status(scratch_.path());
    return !read.ok() || read->tiers != 0;
  };
  fs::resize_file(catalog, sizeof(CatalogHeader) - 1);
  EXPECT_FALSE(has_tiers()) << "not yet";
  (void)has_catalog();
  fs::rename(catalog, scratch_ / "other");
  EXPECT_FALSE(has_tiers());
  for (const char* link : {"other", "/dev/zero"}) {
    ASSERT_EQ(::symlink(link, catalog.c_str()), 0);
    EXPECT_FALSE(has_tiers()) << link;
    fs::remove(catalog);
  }
  ASSERT_EQ(::mkfifo(catalog.c_str(), 0600), 0);
  EXPECT_FALSE(has_tiers()) << "and nobody waits for who writes into it";
}

TEST_F(StatusTest, IsPlausibleIfAJobCanHaveIt) {
  const JobStatus good = status();
  EXPECT_TRUE(plausible(good));
  const std::function<void(JobStatus*)> spoils[] = {
      [](JobStatus* s) { ++s->magic; },
      [](JobStatus* s) { ++s->counters.magic; },
      [](JobStatus* s) { s->alive = 2; },
      [](JobStatus* s) { s->closed = 2; },
      [](JobStatus* s) { s->full = 2; },
      [](JobStatus* s) { s->walked = 2; },
      [](JobStatus* s) { s->progress = kMostCount + 1; },
      [](JobStatus* s) { s->tiers = kMaxTiers + 1; },
      [](JobStatus* s) { s->datasets = kMaxRoots + 1; },
      [](JobStatus* s) { std::memset(s->dataset, 'a', sizeof s->dataset); },
      [](JobStatus* s) { s->granted[kMaxTiers - 1] = kMostCount + 1; },
      [](JobStatus* s) { std::strcpy(s->names[0], "a\n"); },
      [](JobStatus* s) { s->names[0][0] = '\0'; },
      [](JobStatus* s) { std::memset(s->names[0], 'a', sizeof s->names[0]); }};
  for (size_t i = 0; i < std::size(spoils); ++i) {
    JobStatus s = good;
    spoils[i](&s);
    EXPECT_FALSE(plausible(s)) << i;
  }
  JobStatus s = good;
  std::memset(s.names[1], '\n', sizeof s.names[1]);
  EXPECT_TRUE(plausible(s)) << "no tier's";
}

class CommentLine : public ::testing::Test {
 protected:
  CommentLine() {
    record_.nodes = 2;
    for (const auto& [name, medium] : {std::pair{"a", "nvme"}, {"b", "ram"}, {"c", "nvme"}}) {
      record_.tiers.push_back({});
      record_.tiers.back().name = name;
      record_.tiers.back().medium = medium;
    }
    counters_.magic = kJobCountersMagic;
  }
  uint64_t& at(TaskCounter c) { return counters_.task[static_cast<uint32_t>(c)]; }
  uint64_t& at(AgentCounter c) { return counters_.agent[static_cast<uint32_t>(c)]; }
  std::string line() const { return comment_line(record_, &counters_); }
  JobRecord record_;
  JobCounters counters_{};
};

TEST_F(CommentLine, OfAJobThatDidNothing) {
  EXPECT_EQ(line(),
            "monarch=1 hit=0.0% pfs=0/0 ops=0% meta=0% nvme=0 ram=0 staged=0% files=0/0 nodes=1/2 err=0");
  EXPECT_EQ(comment_line(record_, nullptr), "monarch=1 counters=lost nodes=1/2 err=1");
  EXPECT_EQ(comment_line(record_, nullptr, AgentEnd::kBefore),
            "monarch=1 counters=lost nodes=1/2 err=1 agent=died");
  record_.late = true;
  EXPECT_EQ(comment_line(record_, nullptr), "monarch=1 counters=lost nodes=1/2 err=1 late=1");
  at(AgentCounter::evicted_files) = 7;
  EXPECT_TRUE(comment_line(record_, &counters_, AgentEnd::kBefore)
                  .ends_with(" nodes=1/2 err=1 agent=died evicted=7"));
}

TEST_F(CommentLine, SaysWhatThePfsWasSpared) {
  counters_.opens_tier[0] = 70;
  counters_.opens_tier[2] = 10;
  at(TaskCounter::opens_pfs) = 20;
  at(TaskCounter::waited_hits) = 5;
  counters_.read_calls_tier[0] = 80;
  at(TaskCounter::read_calls_pfs) = 20;
  counters_.read_bytes_tier[0] = 3 << 20;
  at(TaskCounter::read_bytes_pfs) = 1 << 20;
  at(AgentCounter::agent_bytes_pfs) = 1 << 20;
  at(AgentCounter::agent_opens_pfs) = 20;
  at(AgentCounter::walk_dirs) = 10;
  counters_.placed_bytes[0] = 1 << 20;
  counters_.placed_bytes[1] = 2 << 20;
  counters_.placed_bytes[2] = 3 << 20;
  at(AgentCounter::walk_files) = 4;
  at(AgentCounter::staged_files) = 3;
  at(AgentCounter::dataset_bytes) = 12 << 20;
  at(AgentCounter::tier_errors) = 2;
  EXPECT_EQ(line(),
            "monarch=1 hit=75.0% pfs=2.00M/4.00M ops=-80% meta=-50% nvme=4.00M ram=2.00M staged=50% "
            "files=3/4 nodes=1/2 err=2");
  at(AgentCounter::staged_files) = 5;
  at(AgentCounter::staged_again) = 4;
  EXPECT_TRUE(has(line(), " files=1/4 ")) << "one file was staged five times: " << line();
}

TEST_F(CommentLine, OfSeveralNodesHasTheirSums) {
  record_.nodes = 3;
  counters_.nodes = 3;
  counters_.opens_tier[0] = 10;
  at(TaskCounter::opens_pfs) = 10;
  counters_.read_calls_tier[0] = 10;
  counters_.read_bytes_tier[0] = 1 << 20;
  at(AgentCounter::agent_bytes_pfs) = 1 << 20;
  counters_.placed_bytes[1] = 1 << 20;
  at(AgentCounter::walk_files) = at(AgentCounter::staged_files) = 2;
  EXPECT_EQ(line(),
            "monarch=1 hit=50.0% pfs=1.00M/1.00M ops=-100% meta=-50% nvme=0 ram=1.00M staged=100% peer=0 "
            "nodes=1/3 err=0");
  NodeCounts& others = counters_.others;
  const auto other = [&](auto c) -> uint64_t& {
    if constexpr (std::is_same_v<decltype(c), TaskCounter>)
      return others.task[static_cast<uint32_t>(c)];
    else
      return others.agent[static_cast<uint32_t>(c)];
  };
  counters_.ended = 1;
  others.opens_tier = 60;
  other(TaskCounter::waited_hits) = 20;
  others.read_calls_tier = 10;
  others.read_bytes_tier = 2 << 20;
  other(TaskCounter::read_bytes_pfs) = 1 << 20;
  other(TaskCounter::read_calls_pfs) = 5;
  other(AgentCounter::agent_reads_pfs) = 5;
  other(AgentCounter::walk_dirs) = 30;
  others.placed_bytes[static_cast<uint32_t>(Medium::kRam)] = 3 << 20;
  others.placed_bytes[static_cast<uint32_t>(Medium::kHdd)] = 1 << 20;
  at(AgentCounter::dataset_bytes) = 1 << 20;
  other(AgentCounter::dataset_bytes) = 9 << 20;
  other(AgentCounter::walk_files) = 6;
  other(AgentCounter::staged_files) = 2;
  other(AgentCounter::peer_bytes) = 5 << 20;
  other(AgentCounter::tier_errors) = 4;
  EXPECT_EQ(line(),
            "monarch=1 hit=62.5% pfs=2.00M/4.00M ops=-60% meta=-50% nvme=0 ram=4.00M hdd=1.00M staged=50% "
            "files=4/8 peer=5.00M nodes=2/3 err=4");
  counters_.ended = 2;
  other(AgentCounter::dup_files) = 1;
  at(AgentCounter::evicted_files) = 3;
  other(AgentCounter::evicted_files) = 4;
  at(AgentCounter::peer_errors) = 2;
  other(AgentCounter::peer_timeouts) = 3;
  other(AgentCounter::peer_bad) = 4;
  other(AgentCounter::late_nodes) = 2;
  EXPECT_EQ(line().substr(line().find("nodes=")), "nodes=3/3 err=4 late=2 evicted=7 dup=1 peererr=9");
  counters_.ended = kMostCount;
  EXPECT_TRUE(has(line(), " nodes=3/3 ")) << "not more than there are: " << line();
}

TEST_F(CommentLine, OneFileThatIsMissingIsNot100Percent) {
  at(AgentCounter::walk_files) = 1000;
  for (const auto& [files, text] :
       {std::pair{999u, " staged=99% files=999/1000 "}, {1000u, " staged=100% nodes="}}) {
    at(AgentCounter::staged_files) = files;
    at(AgentCounter::source_errors) = 1000 - files;
    EXPECT_TRUE(has(line(), text)) << line();
  }
}

TEST_F(CommentLine, StagedIsOfTheBytesAsFarAsTheyAreKnown) {
  at(AgentCounter::walk_files) = 4;
  at(AgentCounter::staged_files) = 3;
  at(AgentCounter::no_fit_files) = 1;
  at(AgentCounter::sized_files) = 4;
  at(AgentCounter::dataset_bytes) = 100;
  counters_.placed_bytes[0] = 10;
  EXPECT_TRUE(has(line(), " staged=10% files=3/4 ")) << line();
  at(AgentCounter::walk_files) = 8;
  EXPECT_TRUE(has(line(), " staged=5% files=3/8 ")) << "others are as large: " << line();
  at(AgentCounter::walk_files) = 4;
  at(AgentCounter::staged_files) = 1;
  EXPECT_TRUE(has(line(), " staged=10% files=1/4 ")) << "staged in chunks: " << line();
  at(AgentCounter::walk_files) = at(AgentCounter::staged_files) = at(AgentCounter::evicted_files) = 1;
  at(AgentCounter::no_fit_files) = at(AgentCounter::dataset_bytes) = counters_.placed_bytes[0] = 0;
  EXPECT_TRUE(has(line(), " staged=0% files=0/1 ")) << "evicted: " << line();
}

TEST_F(CommentLine, TheOutputEndsWithWhatThePfsWasSpared) {
  Closing of;
  const auto text = [&] { return closing_text(counters_, of); };
  EXPECT_TRUE(text().starts_with("no program has used the dataset through Monarch: programs that are st"));
  at(AgentCounter::late_nodes) = 1;
  EXPECT_EQ(text(), "the agent was not ready in time, and what the job read is not counted");
  at(TaskCounter::opens_pfs) = 1;
  EXPECT_EQ(text(),
            "opened 1 file; 0 came from the PFS; more is not counted, as the agent was not ready in time");
  at(AgentCounter::late_nodes) = 0;
  EXPECT_EQ(text(), "opened 1 file; 0 came from the PFS");
  counters_.read_bytes_tier[0] = counters_.read_bytes_tier[2] = 246 << 20;
  at(TaskCounter::read_bytes_pfs) = 246 << 20;
  at(TaskCounter::wait_ns) = 999'999'999;
  EXPECT_EQ(text(), "read 738M, 246M of it from the PFS");
  at(AgentCounter::agent_bytes_pfs) = 492 << 20;
  EXPECT_EQ(text(), "read 738M, 738M of it from the PFS; each file was read about once");
  at(AgentCounter::agent_bytes_pfs) = 1000 << 20;
  EXPECT_EQ(text(), "read 738M; 1.22G came from the PFS; each file was read about once");
  at(TaskCounter::mmap_bytes) = 1 << 20;
  at(AgentCounter::agent_bytes_pfs) = 0;
  EXPECT_EQ(text(), "read 738M and mapped 1.00M; 246M came from the PFS") << "of what is not known";
  at(TaskCounter::mmap_bytes) = 0;
  for (const auto& [s, waited] : {std::pair{1, "1 s"}, {119, "119 s"}, {299, "4 min"}, {7200, "2 h"}}) {
    at(TaskCounter::wait_ns) = static_cast<uint64_t>(s) * 1'000'000'000;
    EXPECT_EQ(text(), std::string("read 738M, 246M of it from the PFS; ") + waited + " of waiting for files");
  }
  at(TaskCounter::wait_ns) = 0;
  const std::string read = "read 738M, 246M of it from the PFS; ";
  at(AgentCounter::no_fit_files) = 1;
  EXPECT_EQ(text(), read + "the tiers had no room for 1 file");
  at(AgentCounter::no_fit_files) = 2;
  at(AgentCounter::tier_errors) = 1;
  EXPECT_EQ(text(), read + "a tier failed, tell the administrator");
  of = {"n1", 4, AgentEnd::kBefore, "report on n1: monarchctl report 8"};
  EXPECT_EQ(text(), "on n1, one of 4 nodes: " + read +
                        "the agent ended early, and the rest came from the PFS; report on n1: monarchctl "
                        "report 8");
  counters_.others.read_bytes_tier = 1 << 30;
  EXPECT_TRUE(text().starts_with("on n1, one of 4 nodes: read 738M, ")) << "of this node alone";
}

// ---- account for

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
  std::string account(JobRecord& r, const AccountPatience& patience = kPatient) {
    return logged([&] { status_ = finish(state_, r, account_for(state_, &r, patience)); });
  }
  std::string report_of(const JobRecord& r) const {
    return state_.path() + "/reports/" + std::to_string(kUid) + "/" + r.name + ".json";
  }
  Status status_;
};

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
  r = recorded(r.job);
  EXPECT_EQ(account(r), "");
  EXPECT_TRUE(status_.ok());
  EXPECT_TRUE(state_.spooled().empty());
  EXPECT_FALSE(exists(report_of(r)));
}

TEST_F(AccountForTest, OnlyTheFirstNodeHasALineForSacctAndOnlyWhereThereIsADatabase) {
  JobRecord second = ended(1), without = ended(2), lost = ended(3);
  second.first_node = false;
  without.of_cluster.account_program = "";
  for (JobRecord r : {second, without}) {
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
  JobRecord r = ended(1);
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

// A directory that the user can write to, or only by a group; the first node alone writes.
TEST_F(AccountForTest, TheOwnerHasTheReportInTheFileThatWasNamed) {
  constexpr gid_t kGroup = 4242;
  const std::string own = scratch_.dir("own"), shared = scratch_.dir("shared"), roots = scratch_.dir("roots"),
                    secret = scratch_.file("secret", "root's");
  EXPECT_EQ(::chown(own.c_str(), kUid, kUid), 0);
  EXPECT_EQ(::chown(shared.c_str(), 0, kGroup), 0);
  fs::permissions(shared, fs::perms(0770));
  fs::create_symlink(secret, own + "/report.1.json");
  uint32_t job = 0;
  for (const std::string& dir : {own, shared, roots, own}) {
    JobRecord r = ended(++job);
    r.first_node = job != 4;
    r.user.groups = {kGroup};
    r.report_file = owners_report(dir + "/report.%j.json", r.job);
    const std::string log = logged([&] {
      status_ = finish(state_, r, account_for(state_, &r, kPatient));
      wait_children();
    });
    const std::string file = dir + "/report." + std::to_string(job) + ".json";
    struct stat st {};
    const bool is_there = dir != roots && r.first_node;
    EXPECT_EQ(::lstat(file.c_str(), &st) == 0, is_there) << file;
    EXPECT_EQ(has(log, "its report is not in"), dir == roots) << log;
    if (!is_there) continue;
    EXPECT_TRUE(S_ISREG(st.st_mode) && st.st_uid == kUid) << "a link there is replaced";
    EXPECT_EQ(contents(file), contents(report_of(r)));
  }
  EXPECT_EQ(contents(secret), "root's");
}

TEST_F(AccountForTest, NobodyWaitsForTheFileSystemOfTheOwnersFile) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    LockedDirectory locked(scratch_.file("file", ""));
    if (!locked.is_ready()) return;
    const std::string own = scratch_.dir("own");
    m->check(::chown(own.c_str(), kUid, kUid) == 0, "a directory");
    JobRecord r = ended(1);
    r.report_file = own + "/report";
    locked.lock(::open(own.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    account(r);
    m->check(exists(report_of(r)) && status_.ok(), "it is accounted for");
    locked.end();
    wait_children();
    m->check(exists(own + "/report"), "the file comes once the file system answers");
  });
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

TEST_F(AccountForTest, TheOutputEndsWithWhatTheCountersSayOfAJobThatHasAnAgent) {
  JobRecord r = ended(1);
  const auto closing = [&](const std::string& conf = "") {
    EXPECT_TRUE(state_.write_record(r).ok());
    return closing_of_job(state_, r.job, conf.empty() ? "" : scratch_.file("c.conf", conf));
  };
  const std::string read = "opened 4 files; 0 came from the PFS",
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
  r.notes.by_default = true;
  EXPECT_EQ(closing(), "") << "nobody has asked for it";
  fs::remove(r.run_dir + "/board");
  EXPECT_EQ(closing(), "") << "and nobody knows";
  r.notes.by_default = false;
  EXPECT_EQ(closing(),
            "what the job read is not known: the counters of its agent on n1 cannot be read; the log "
            "of root's helpers there has more");
  EXPECT_EQ(closing_of_job(state_, record(2).job, ""), "") << "nothing is known of it";
}

// The owner keeps the directory locked in the kernel for reading, and somebody waits to write there: who
// looks for the name of a file that is gone waits, too, and cannot be killed.
TEST_F(AccountForTest, WhoHangsInWhatTheOthersToldIsNotedAndLeftBehind) {
  with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
    JobRecord r = ended(1);
    r.nodes = 2;
    r.peers = true;
    std::ofstream(r.run_dir + "/" + kSeriesFile) << "none\n";
    give(r, kSeriesFile);
    locked->lock(::open(r.run_dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const pid_t writes = ::fork();
    if (writes == 0) ::_exit(::mkdir((r.run_dir + "/new").c_str(), 0700));
    m->check(is_soon_in_kernel(writes), "it waits");
    // Not one that waits for a disk for a moment. The report has its time.
    clock_.pass_once([before = children_in_state('D'), looks = 0]() mutable {
      looks = children_in_state('D') > before ? looks + 1 : 0;
      if (looks <= 20) return false;
      before = children_in_state('D');
      return true;
    });
    account(r);
    m->check(state_.spooled().size() == 1 && exists(report_of(r)), "all else is kept");
    m->check(hangs(*state_.read_record(r.job.key())), "it is noted: the remover will not be another one");
    for (const int pid : Cgroups().processes(state_.helpers_cgroup())) ::kill(pid, SIGKILL);
    m->check(Cgroups().hierarchies().empty() || !Cgroups().processes(state_.helpers_cgroup()).empty(),
             "no step of the job's has it");
    locked->end();
    while (::waitpid(-1, nullptr, 0) > 0) continue;
    Cgroups().remove_if_empty(state_.helpers_cgroup());
  });
}

}  // namespace
}  // namespace monarch
