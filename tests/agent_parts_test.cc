// SPDX-License-Identifier: Apache-2.0
// Parts of an agent: what it tells of staging, whether anybody uses the dataset, and the library for peers.

#include "runtime/agent/load_peers.h"
#include "runtime/agent/progress.h"
#include "runtime/agent/use_watch.h"
#include "runtime/layout/board_client.h"
#include "tests/placement_fixture.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

// ---- what it tells of staging, from a catalog that a test fills

class ProgressTest : public PlacementTest {
 protected:
  // A source of which one file is another node's to stage.
  class Shared : public PfsSource {
   public:
    using PfsSource::PfsSource;
    bool is_ours(Ref ref) override {
      ++asked;
      if (stops && stopped == 0) {
        clock->advance_ms(600 * 1000);
        stopped = clock->now_ns();
      }
      return ref != other;
    }
    std::atomic<Ref> other{0};
    std::atomic<int> asked{0};
    bool stops = false;  // the agent, once, while it looks
    std::atomic<int64_t> stopped{0};
    ManualClock* clock = nullptr;
  };
  ProgressTest() { start(); }
  ~ProgressTest() override {
    progress_.reset();
    end();
  }

  Ref file(const std::string& name, uint64_t state, uint64_t bytes) {
    const Ref ref = catalog_->add(rel(name), DT_REG);
    catalog_->entry(ref).size = bytes;
    catalog_->entry(ref).state = state;
    return ref;
  }
  Ref file(const std::string& name, State state, Reason reason, uint64_t bytes) {
    return file(name, state_word(state, reason), bytes);
  }
  ProgressFile& progress() {
    if (!progress_)
      progress_.emplace(ProgressFile::Parts{directory_.get(), 0, board_->get(), catalog_.get(), &shared_,
                                            walker_.get(), placement_.get(), AgentConfig::Prefetch::kOn, 1},
                        clock_);
    return *progress_;
  }
  std::string told(const std::string& key) const {
    std::ifstream in(run_dir_ + "/" + kStateFile);
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(key + "=")) return line.substr(key.size() + 1);
    return "";
  }
  bool tells(const std::string& key, const std::string& value) {
    return eventually([&] { return told(key) == value; });
  }
  void moved() { add(board_->get(), AgentCounter::staged_files); }

  const Fd directory_{::open(run_dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  Shared shared_{nullptr, nullptr, nullptr, nullptr};
  std::optional<ProgressFile> progress_;
};

TEST_F(ProgressTest, EachFileCountsByWhatBecameOfIt) {
  walk();
  file("placed", State::kPlaced, Reason::kNone, 100);
  file("empty", State::kPlaced, Reason::kNone, 0);
  file("no-room", State::kNoFit, Reason::kNone, 10);
  file("tier-failed", State::kNoFit, Reason::kTierError, 20);
  file("unreadable", State::kPass, Reason::kUnreadable, 30);
  file("changed", State::kDropped, Reason::kChanged, 40);
  const Ref large = file("large", State::kLarge, Reason::kNone, 50);
  struct stat st = monarch::source_stat(7);
  st.st_size = 50;
  const Ref chunks = catalog_->start_chunks(large, 0, st);
  catalog_->entry(large).state = large_word(chunks);
  file("excluded", State::kPass, Reason::kExcluded, 1000);
  file("again", again_word(large), 1000);
  file("anew", anew_word(large), 1000);
  file("other-node's", State::kKnown, Reason::kNone, 1000);
  shared_.other = catalog_->reader().find(rel("other-node's")).ref;
  (void)catalog_->add(rel("directory"), DT_DIR);
  progress().start();
  EXPECT_TRUE(tells("state", "staging-in")) << "the large file goes on";
  catalog_->close_chunks(chunks);
  EXPECT_TRUE(tells("state", "staged-in"));
  const std::string text = contents(run_dir_ + "/state");
  const size_t length = text.size();
  EXPECT_EQ(text.substr(0, text.find("pad=")),
            "state=staged-in\npercent=40\nfiles=7\nstaged_files=2\nbytes=250\nstaged_bytes=100\n"
            "all_bytes=250\nrate=0\nno_room=2\nfailed=3\n");
  file("seen", State::kKnown, Reason::kNone, 150);
  moved();
  EXPECT_TRUE(tells("state", "staging-in")) << "it waits, and its size is known";
  EXPECT_EQ(told("percent"), "40") << "it never falls";
  EXPECT_EQ(told("all_bytes"), "400");
  (*board_)->header.full = 1;
  EXPECT_TRUE(tells("state", "staged-in"));
  EXPECT_EQ(told("no_room"), "3");
  EXPECT_EQ(contents(run_dir_ + "/state").size(), length);
  catalog_->entry(file("only-opened", State::kKnown, Reason::kNone, 70)).state = large_word(0);
  moved();
  EXPECT_TRUE(tells("no_room", "4"));
  EXPECT_EQ(told("state"), "staged-in");
}

TEST_F(ProgressTest, HowMuchThereIsIsToldOnceAllIsListed) {
  walker_ = std::make_unique<Walker>(
      catalog_.get(), &*dataset_, board_->get(), &rates_->pfs_stats, [] {}, nullptr, clock_);
  file("placed", State::kPlaced, Reason::kNone, 100);
  progress().start();
  EXPECT_TRUE(tells("state", "staging-in")) << "more may be found";
  EXPECT_EQ(told("percent"), "0");
  EXPECT_EQ(told("staged_files"), "1");
  EXPECT_EQ(told("all_bytes"), "0");
}

TEST(StagingRate, IsThatOfTheLastSeconds) {
  constexpr int64_t kSecond = 1'000'000'000;
  StagingRate rate(5 * kSecond);
  EXPECT_EQ(rate.look(5 * kSecond, 100), 0u);
  EXPECT_EQ(rate.look(7 * kSecond, 400), 200u);
  EXPECT_EQ(rate.look(15 * kSecond, 1000), 100u) << "since the beginning";
  EXPECT_EQ(rate.look(25 * kSecond, 2000), 100u) << "since the beginning, and then since 1000";
  EXPECT_EQ(rate.look(27 * kSecond, 3200), 183u);
  EXPECT_EQ(rate.look(35 * kSecond, 3200), 120u);
  EXPECT_EQ(rate.look(60 * kSecond, 3200), 0u) << "it rests";
  EXPECT_EQ(rate.look(61 * kSecond, 0), 0u) << "copies were removed";
}

TEST_F(ProgressTest, PartsOfAFileAreToldAsTheyCome) {
  walk();
  file("large", large_word(0), 100);
  progress().start();
  EXPECT_TRUE(tells("state", "staging-in"));
  EXPECT_EQ(told("percent"), "0");
  (*board_)->placed_bytes[0] = 50;  // no file more
  EXPECT_TRUE(tells("percent", "50"));
  EXPECT_TRUE(eventually([&] { return std::stoull(told("rate")) > 0; }));
  progress().stop();
  EXPECT_EQ(told("state") + told("percent") + told("rate"), "teardown500");
}

TEST_F(ProgressTest, AnAgentThatWasStoppedWhileItLookedTellsSoon) {
  walk();
  const Ref waits = file("waits", State::kQueued, Reason::kNone, 100);
  shared_.clock = &clock_;
  shared_.stops = true;
  progress().start();
  EXPECT_TRUE(tells("state", "staging-in"));
  catalog_->entry(waits).state = state_word(State::kPlaced);
  moved();
  EXPECT_TRUE(tells("state", "staged-in"));
  EXPECT_LE(clock_.now_ns() - shared_.stopped, 2'000'000'000);
}

TEST_F(ProgressTest, WhatDoesNotMoveIsNotLookedAt) {
  walk();
  file("placed", State::kPlaced, Reason::kNone, 100);
  progress().start();
  EXPECT_TRUE(tells("state", "staged-in"));
  const int asked = shared_.asked;
  pass(1500);
  EXPECT_EQ(shared_.asked, asked);
  moved();
  EXPECT_TRUE(eventually([&] { return shared_.asked > asked; }));
}

TEST_F(ProgressTest, WithoutAThreadWhoWaitsGoesOn) {
  {
    const Intercept none(Call::kStartThread, EAGAIN);
    progress().start();
  }
  EXPECT_EQ(told("state"), "allocated");
  progress().stop();
  EXPECT_EQ(told("state"), "teardown");
}

// ---- whether anybody uses the dataset

class UseWatchTest : public ::testing::Test {
 protected:
  UseWatchTest() {
    Result<BoardFile> board = BoardFile::create(scratch_.dir("run"));
    EXPECT_TRUE(board.ok());
    board_.emplace(board.take());
    directory_ = Fd(::open((scratch_ / "run").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  void began(int64_t ms) const { scratch_.file("run/began", std::to_string(ms)); }
  UseWatch watch(int patience_s) { return {(*board_).get(), directory_.get(), patience_s, clock_}; }

  ManualClock clock_;
  const Scratch scratch_;
  std::optional<BoardFile> board_;
  Fd directory_;
};

TEST_F(UseWatchTest, WhoHasNoPatienceIsNeverAsked) {
  began(0);
  UseWatch never = watch(0);
  EXPECT_FALSE(never.is_unused());
  EXPECT_EQ(never.wait_ms(), -1) << "an idle agent stays idle";
}

TEST_F(UseWatchTest, WithoutATaskNothingIsUnused) {
  UseWatch one = watch(1);
  EXPECT_FALSE(one.is_unused()) << "there is no file";
  EXPECT_EQ(one.wait_ms(), 1000);
  for (const char* text : {"", "soon", "-5"}) {
    scratch_.file("run/began", text);
    EXPECT_FALSE(one.is_unused()) << text;
  }
  for (const int64_t far : {clock_.now_ms() + 3600000, INT64_MAX}) {
    began(far);
    EXPECT_FALSE(one.is_unused()) << far;
    EXPECT_EQ(one.wait_ms(), 1000) << far;
  }
  fs::remove(scratch_ / "run/began");
  ASSERT_EQ(::symlink(scratch_.file("elsewhere", "1").c_str(), (scratch_ / "run/began").c_str()), 0);
  EXPECT_FALSE(one.is_unused()) << "a link is not followed";
  fs::remove(scratch_ / "run/began");
  ASSERT_EQ(::mkfifo((scratch_ / "run/began").c_str(), 0600), 0);
  EXPECT_FALSE(one.is_unused()) << "and nobody waits for a writer";
  fs::remove(scratch_ / "run/began");
}

TEST_F(UseWatchTest, AUseEndsTheWatch) {
  began(0);
  UseWatch one = watch(1);
  EXPECT_TRUE(one.is_unused());
  EXPECT_EQ(one.wait_ms(), 200) << "a use is found soon";
  count(board_->get(), TaskCounter::opens_pfs);
  EXPECT_FALSE(one.is_unused());
  EXPECT_EQ(one.wait_ms(), -1);
}

// ---- the library for jobs of several nodes

TEST(LoadingPeersTest, WhatIsMissingIsNamed) {
  const std::string missing = "/nowhere/libmonarch_peers.so";
  const Result<CreatePeerNode*> none = LoadingPeers(missing).get();
  ASSERT_FALSE(none.ok());
  EXPECT_NE(none.error().text.find(missing), std::string::npos);
  const Result<CreatePeerNode*> other = LoadingPeers("libc.so.6").get();
  ASSERT_FALSE(other.ok()) << "a library of something else";
  EXPECT_NE(other.error().text.find("install it"), std::string::npos);
  const LoadingPeers nobody_asks(missing);
}

}  // namespace
}  // namespace monarch
