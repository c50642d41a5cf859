// SPDX-License-Identifier: Apache-2.0
// A job's series: how it stays bounded, what is believed of it; and which reports of jobs are kept.
#include "runtime/metadata/series.h"

#include <fcntl.h>

#include <memory>

#include "runtime/agent/series_file.h"
#include "runtime/base/fd.h"
#include "runtime/metadata/board.h"
#include "runtime/node/job_report.h"
#include "runtime/node/reports.h"
#include "tests/manual_clock.h"
#include "tests/node_fixture.h"

namespace monarch {
namespace {

Series series_of(uint64_t samples, uint64_t apart = 1) {
  Series s;
  s.magic = kSeriesMagic;
  for (uint64_t i = 0; i < samples; ++i) {
    Sample sample;
    sample.ms = 1000 * i;
    sample.read_bytes_tier = apart * i;
    append(sample, &s);
  }
  return s;
}

TEST(Series, HasABoundAndKeepsItsBeginning) {
  const Series s = series_of(10 * kSamples);
  EXPECT_LE(s.count, kSamples);
  EXPECT_GE(s.count, kSamples / 2);
  EXPECT_EQ(s.samples[0].ms, 0u);
  EXPECT_EQ(s.samples[s.count - 1].ms, 1000u * (10 * kSamples - 1));
  for (uint64_t i = 0; i < s.count; ++i) EXPECT_EQ(s.samples[i].ms, 1000 * s.samples[i].read_bytes_tier);
  EXPECT_TRUE(plausible(s));
}

TEST(Series, ASampleIsLeftOutBetweenTwoThatAreAlike) {
  Series s;
  s.magic = kSeriesMagic;
  const auto sees = [&](uint64_t ms, uint64_t bytes) {
    Sample sample;
    sample.ms = ms;
    sample.read_bytes_tier = bytes;
    append(sample, &s);
    return s.count;
  };
  EXPECT_EQ(sees(0, 1), 1u);
  EXPECT_EQ(sees(1000, 2), 2u);
  EXPECT_EQ(sees(2000, 2), 3u) << "the end of a rest is another point than its beginning";
  EXPECT_EQ(sees(3000, 2), 3u);
  EXPECT_EQ(sees(4000, 1), 4u) << "unlike the last one";
  EXPECT_EQ(s.samples[2].ms, 3000u);
}

TEST(Series, WorkBeginsWithTheFirstOpen) {
  struct {
    uint64_t ms, opens_pfs = 0, opens_tier = 0, read_bytes_pfs = 0, work_ms = 0, work_pfs_ms = 0;
  } const cases[] = {{1}, {9}, {12, 0, 1, 0, 3}, {20, 1, 1, 5, 11, 8}, {30, 1, 1, 5, 21, 8}};
  Series series;
  for (const auto& c : cases) {
    Sample s;
    s.ms = c.ms, s.opens_pfs = c.opens_pfs, s.opens_tier = c.opens_tier, s.read_bytes_pfs = c.read_bytes_pfs;
    append(s, &series);
    EXPECT_EQ(std::pair(at_work(series).ms, at_work(series).pfs_ms), std::pair(c.work_ms, c.work_pfs_ms));
  }
}

TEST(Series, BytesOfFilesThatAreNotKnownAreGuessedByTheirMean) {
  EXPECT_EQ(bytes_of_all(20, 2, 5), 50u);
  EXPECT_EQ(bytes_of_all(20, 2, 2), 20u);
  EXPECT_EQ(bytes_of_all(20, 5, 2), 20u) << "more than are counted are known";
  EXPECT_EQ(bytes_of_all(0, 0, 5), 0u);
  EXPECT_EQ(bytes_of_all(20, 0, 5), 20u) << "of none there is no mean";
  EXPECT_EQ(bytes_of_all(kMostCount, 1, 5), kMostCount);
}

TEST(Series, OfNothingButOneIsRead) {
  const Scratch scratch;
  const Fd dir(::open(scratch.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_TRUE(write_series(dir.get(), series_of(5)).ok());
  const std::string path = scratch / "series", good = contents(path);
  const std::pair<const char*, std::string> cases[] = {
      {"empty", ""},
      {"too short", good.substr(0, good.size() - 1)},
      {"numbers that are none of an agent's", std::string(good.size(), '\xff')}};
  for (const auto& [what, text] : cases) {
    scratch.file("series", text);
    const Result<Series> read = read_series(scratch.path());
    EXPECT_TRUE(!read.ok() && read.error().code == EINVAL) << what;
  }
  scratch.file("series", good + "x");
  EXPECT_TRUE(read_series(scratch.path()).ok()) << "its writer has just written a shorter one";
  ::unlink(path.c_str());
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_FALSE(read_series(scratch.path()).ok()) << "a FIFO";
  ::unlink(path.c_str());
  scratch.file("other", good);
  ASSERT_EQ(::symlink((scratch / "other").c_str(), path.c_str()), 0);
  EXPECT_EQ(read_series(scratch.path()).error().code, EINVAL) << "a link";
}

TEST(Series, IsBelievedOnlyAsFarAsAnAgentCouldHaveWrittenIt) {
  EXPECT_TRUE(plausible(series_of(5)));
  const std::pair<const char*, void (*)(Series*)> cases[] = {
      {"more than there is room for", [](Series* s) { s->count = kSamples + 1; }},
      {"something else", [](Series* s) { s->magic ^= 1; }},
      {"time goes back", [](Series* s) { s->samples[3].ms = 1; }},
      {"a huge number", [](Series* s) { s->samples[4].placed_bytes[kMaxTiers - 1] = kMostCount + 1; }},
      {"a huge time", [](Series* s) { s->whole_ms = UINT64_MAX; }}};
  for (const auto& [what, spoil] : cases) {
    Series s = series_of(5);
    spoil(&s);
    EXPECT_FALSE(plausible(s)) << what;
    drop_implausible(&s);
    EXPECT_EQ(s.count, 0u) << what;
  }
}

class SeriesFileTest : public ::testing::Test {
 protected:
  SeriesFileTest() : dir_(::open(scratch_.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    Result<BoardFile> board = BoardFile::create(scratch_.path());
    if (!board.ok()) throw std::runtime_error(board.error().text);
    board_ = std::make_unique<BoardFile>(board.take());
    file_ = std::make_unique<SeriesFile>(dir_.get(), board_->get(), clock_.now_ns(), clock_);
  }
  uint64_t count() const {
    const Result<Series> read = read_series(scratch_.path());
    return read.ok() ? read->count : 0;
  }

  ManualClock clock_;
  const Scratch scratch_;
  const Fd dir_;
  std::unique_ptr<BoardFile> board_;
  std::unique_ptr<SeriesFile> file_;
};

TEST_F(SeriesFileTest, ASampleATimeAndWhenStagingEnds) {
  file_->look({});
  EXPECT_EQ(count(), 2u) << "when the agent began, and now";
  add(board_->get(), AgentCounter::agent_bytes_pfs, 500);
  file_->look({100, 1000, false, false});
  EXPECT_EQ(count(), 2u) << "too soon";
  file_->look({800, 1000, true, false});
  ASSERT_EQ(count(), 3u) << "at the end of staging it is never too soon";
  const Result<Series> read = read_series(scratch_.path());
  EXPECT_TRUE(read->settled_ms > 0 && read->whole_ms == 0);
  const Sample& last = read->samples[2];
  EXPECT_EQ(std::tuple(last.agent_bytes_pfs, last.staged_bytes, last.dataset_bytes),
            std::tuple(500u, 800u, 1000u));
  file_->look({1000, 1000, true, true});
  EXPECT_GT(read_series(scratch_.path())->whole_ms, 0u);
  file_->look({1000, 1000, true, true});
  EXPECT_EQ(count(), 4u) << "it ends once";
}

TEST_F(SeriesFileTest, RootsChildAddsWhatCameLast) {
  add(board_->get(), AgentCounter::peer_bytes, 1);
  file_->look({5, 10, false, false});
  add(board_->get(), AgentCounter::peer_bytes, 6);
  const Result<JobAccount> account = read_account(scratch_.path());
  ASSERT_TRUE(account.ok());
  ASSERT_EQ(account->series.count, 3u);
  EXPECT_EQ(account->series.samples[2].peer_bytes, 7u);
  EXPECT_EQ(account->series.samples[2].staged_bytes, 5u) << "which the board does not know";
  EXPECT_EQ(account->counters[AgentCounter::peer_bytes], 7u);
  ::unlink((scratch_ / "series").c_str());
  EXPECT_EQ(read_account(scratch_.path())->series.count, 0u);
}

// In a job that is over before the agent looks again, the board alone knows how far staging came.
TEST(Series, ItsEndSaysWhatWasStagedSinceTheLastLook) {
  const auto board = std::make_unique<Board>();
  const auto count = [&](AgentCounter counter, uint64_t n) { add(board.get(), counter, n); };
  count(AgentCounter::walk_files, 10);
  count(AgentCounter::staged_files, 4);
  count(AgentCounter::no_fit_files, 1);
  count(AgentCounter::pass_files, 1);
  count(AgentCounter::sized_files, 5);
  count(AgentCounter::dataset_bytes, 500);
  board->placed_bytes[0] = 300;
  board->placed_bytes[1] = 100;
  const auto ended = [&](Series series) {
    close_series(*board, &series);
    const Sample& last = series.samples[series.count - 1];
    return std::pair(last.staged_bytes, last.dataset_bytes);
  };
  Series series = series_of(1);
  EXPECT_EQ(ended(series), std::pair(uint64_t{400}, uint64_t{900})) << "the others are as large as the rest";
  board->placed_bytes[1] = 5000;
  EXPECT_EQ(ended(series), std::pair(uint64_t{900}, uint64_t{900})) << "no more than there is";
  series.samples[0].staged_bytes = 1000;
  series.samples[0].dataset_bytes = 2000;
  EXPECT_EQ(ended(series), std::pair(uint64_t{2000}, uint64_t{2000})) << "a look may know more";
  Series other = series;
  other.settled_ms = 1;
  EXPECT_EQ(ended(other), std::pair(uint64_t{1000}, uint64_t{2000})) << "nothing was left to stage";
  count(AgentCounter::sized_files, 4);
  EXPECT_EQ(ended(series), std::pair(uint64_t{1000}, uint64_t{500})) << "no estimate outlives what is known";
}

TEST(Report, OfAJobThatHasEndedIsJson) {
  JobRecord record;
  record.job.job = 4711;
  record.job.cluster = "c";
  record.job.node = "n1";
  record.user.uid = 7;
  TierRecord tier;
  tier.name = "\xff odd";
  tier.medium = "nvme";
  tier.quota = 7;
  record.tiers.push_back(tier);
  JobAccount account{};
  const auto told = [&](const NodesTold* nodes, AgentEnd end = AgentEnd::kWithJob) {
    const std::optional<Json> read = Json::parse(ended_report(record, account, nodes, end, "/a:/b"));
    EXPECT_TRUE(read);
    return read ? *read : Json();
  };
  const Json died = told(nullptr, AgentEnd::kBefore);
  EXPECT_FALSE(died.find("series"));
  EXPECT_EQ(Json::array({died["ended"]["agent_died"], died["uid"], died["datasets"]}),
            Json::array({true, 7, Json::array({"/a", "/b"})}));
  account.series = series_of(3);
  NodesTold nodes;
  nodes.nodes = nodes.count = 2;
  EXPECT_TRUE(told(nullptr)["job"].is_null());
  record.peers = record.first_node = true;
  EXPECT_TRUE(told(nullptr)["job"]["by_node"].is_null()) << "it is not known";
  const Json json = told(&nodes);
  EXPECT_EQ(json["job"]["by_node"].size(), 2u);
  EXPECT_EQ(Json::array({json["ended"]["job"], json["ended"]["agent_died"], json["tiers"].at(0)["granted"],
                         json["series"]["milliseconds"]}),
            Json::array({4711, false, 7, Json::array({0, 1000, 2000})}));
  EXPECT_EQ(json["series"]["placed"].size(), 1u);
}

TEST(Reports, TheOldestGo) {
  const std::vector<KeptReport> kept = {{"b", 200, 40}, {"a", 100, 40}, {"c", 300, 40}};
  const auto gone = [&](int days, uint64_t size, int64_t now) {
    std::string names;
    for (const KeptReport& report : excess(kept, {days, size}, now)) names += report.below;
    return names;
  };
  EXPECT_EQ(gone(1, 120, 300), "");
  EXPECT_EQ(gone(1, 119, 300), "a");
  EXPECT_EQ(gone(1, 79, 300), "ab");
  EXPECT_EQ(gone(1, 0, 300), "abc");
  EXPECT_EQ(gone(1, 1000, 86400 + 201), "ab") << "by age";
}

class KeptReportsTest : public StateDirTest {
 protected:
  Status keep(uid_t user, const std::string& name) const {
    JobRecord record;
    record.user.uid = user;
    record.name = name;
    return keep_report(state_, record, std::string(4096, 'x'), {1, 3 * 4096});
  }
  std::string below(uid_t user) const { return state_.path() + "/reports/" + std::to_string(user); }
};

TEST_F(KeptReportsTest, WhoKeepsTheOwnLockedHoldsUpOneHelper) {
  with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
    m->check(keep(1, "a").ok() && keep(2, "b").ok(), "two users have some");
    locked->lock(::open(below(1).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const pid_t first = ::fork();
    if (first == 0) ::_exit(keep(1, "c").ok() ? 0 : 1);
    m->check(is_soon_in_kernel(first) && eventually([&] { return !lock_if_free(below(1)); }), "one waits");
    m->check(is_soon_done([&] { return keep(1, "d").error().code == ETIMEDOUT; }), "the next does not");
    for (const char* name : {"e", "f", "g", "h"})
      m->check(is_soon_done([&] { return keep(2, name).ok(); }), "nor do others");
    m->check(names_in(below(2)).size() == 3, "whose number is bounded as before");
    locked->end();
    int status = -1;
    m->check(::waitpid(first, &status, 0) == first && status == 0, "once it is unlocked it has its report");
  });
}

}  // namespace
}  // namespace monarch
