// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/board.h"

#include <signal.h>

#include <utility>

#include "preload/decide/waiting.h"
#include "tests/catalog_fixture.h"
#include "tests/quiet.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;
constexpr int kLongMs = 3600 * 1000;  // no test waits for it

BoardFile make_board(const std::string& run_dir) {
  Result<BoardFile> board = BoardFile::create(run_dir);
  EXPECT_TRUE(board.ok()) << board.error().text;
  return board.take();
}

// A child process that has run `body`, and sleeps until it is killed.
class Child {
 public:
  explicit Child(const std::function<void()>& body) : pid_(::fork()) {
    if (pid_ != 0) {
      EXPECT_TRUE(eventually([this] { return done_->load(); }));
      return;
    }
    body();
    for (*done_ = true;;) ::pause();
  }
  ~Child() { kill(); }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, -1), nullptr, 0);
  }

 private:
  const Shared<std::atomic<bool>> done_;
  pid_t pid_;
};

class BoardTest : public ::testing::Test {
 protected:
  std::vector<std::string> drain(RequestRing* ring, uint32_t roots = 1) {
    std::vector<std::string> taken;
    ring->drain(roots, [&](const RelPath& path, uint32_t) {
      taken.emplace_back(path.path, path.len);
      EXPECT_EQ(path.hash, path_hash(path.root, path.path, path.len));
    });
    return taken;
  }

  // A process that is the agent, as far as tasks can tell.
  Child living_agent() {
    return Child([this] { (void)declare_alive(board_).ok(); });
  }

  Scratch scratch_;
  BoardFile file_ = make_board(scratch_.path());
  Board* const board_ = file_.get();
};

// ---- the file

TEST_F(BoardTest, IsOneAllocatedFileOfTheUsers) {
  const struct stat st = stat_of(scratch_ / "board");
  EXPECT_EQ(st.st_mode & 07777, 0600u);
  EXPECT_EQ(static_cast<uint64_t>(st.st_size), sizeof(Board));
  EXPECT_GE(st.st_blocks * 512, st.st_size);
  EXPECT_EQ(BoardFile::create(scratch_.path()).error().code, EEXIST);
  EXPECT_EQ(BoardFile::create(scratch_ / "missing").error().code, ENOENT);
}

TEST_F(BoardTest, AnotherVersionIsRefused) {
  const auto code = [&] {
    const Result<BoardFile> board = BoardFile::open(scratch_.path());
    return board.ok() ? 0 : board.error().code;
  };
  BoardHeader& h = board_->header;
  for (auto* byte : {reinterpret_cast<char*>(&h.magic), reinterpret_cast<char*>(&h.version),
                     reinterpret_cast<char*>(&h.bytes)}) {
    ++*byte;
    EXPECT_EQ(code(), EPROTO) << byte - reinterpret_cast<char*>(&h);
    --*byte;
    EXPECT_EQ(code(), 0);
  }
  fs::resize_file(scratch_ / "board", sizeof(Board) - 1);
  EXPECT_EQ(code(), ENOENT);
  EXPECT_EQ(BoardFile::open(scratch_ / "missing").error().code, ENOENT);
}

TEST(BoardFull, ADirectoryTooSmallIsAnError) {
  Scratch scratch;
  const auto create = [&] {
    EXPECT_EQ(BoardFile::create(scratch.path()).error().code, ENOSPC);
    EXPECT_FALSE(fs::exists(scratch / "board"));
  };
  if (!with_tmpfs(scratch.path(), 1 << 20, create)) GTEST_SKIP() << "mounting needs root";
}

TEST_F(BoardTest, InvalidBitsAreKeptPerHashAndTheBoardTellsWhichKindsThereAre) {
  const std::atomic<uint32_t>& kinds = board_->header.changed;
  EXPECT_EQ(kinds.load(), 0u);
  for (const uint32_t hash : {0u, 1u, 63u, 64u, 0xffffffffu}) {
    EXPECT_FALSE(is_invalid(*board_, hash));
    set_invalid(board_, hash, kChangedInodes);
    EXPECT_TRUE(is_invalid(*board_, hash));
    EXPECT_EQ(kinds.load(), uint32_t{kChangedInodes});
  }
  for (const uint32_t hash : {2u, 65u, 0xfffffffeu}) EXPECT_FALSE(is_invalid(*board_, hash));
  set_invalid(board_, 0);  // of a file with the same hash: hits look for its kind from now on
  EXPECT_EQ(kinds.load(), uint32_t{kChangedInodes} | kChangedFiles);
}

// ---- the request ring

TEST_F(BoardTest, AFullRingTakesNoMoreUntilItIsDrained) {
  RequestRing ring(board_);
  EXPECT_TRUE(drain(&ring).empty());
  std::vector<std::string> posted = {std::string(kPathBytes - 1, 'x')};
  for (uint32_t i = 1; i < kSlots; ++i) posted.push_back("a/f" + std::to_string(i));
  std::sort(posted.begin(), posted.end());
  for (uint64_t round = 1; round <= 3; ++round) {
    for (const std::string& path : posted) ASSERT_NE(post_request(board_, rel(path)).slot, nullptr);
    EXPECT_EQ(post_request(board_, rel("one more")).slot, nullptr);
    std::vector<std::string> taken = drain(&ring);
    std::sort(taken.begin(), taken.end());
    EXPECT_EQ(taken, posted);
    EXPECT_TRUE(drain(&ring).empty()) << "each once";
    EXPECT_EQ(total(*board_, AgentCounter::requests), round * kSlots);
  }
}

TEST_F(BoardTest, ASlotThatIsClaimedForTooLongIsFreed) {
  ManualClock clock;
  RequestRing ring(board_, clock);
  // A task that is stopped between claiming and publishing.
  RequestSlot& slot = board_->slots[5];
  slot.word = slot_word(7, SlotState::kClaimed);
  EXPECT_TRUE(drain(&ring).empty());
  clock.advance_ms(kStaleSeconds * 1000 + 1);
  uint64_t claimed = slot_word(8, SlotState::kClaimed);
  slot.word = claimed;  // another claim, seen for the first time
  EXPECT_TRUE(drain(&ring).empty());
  clock.advance_ms(kStaleSeconds * 1000);
  EXPECT_TRUE(drain(&ring).empty());
  EXPECT_EQ(slot.word, claimed) << "freed too early";
  clock.advance_ms(1);
  EXPECT_TRUE(drain(&ring).empty());
  EXPECT_EQ(slot_state(slot.word), SlotState::kFree);
  // It comes back: it publishes nothing, whether the slot is free or somebody else's by then.
  EXPECT_FALSE(slot.word.compare_exchange_strong(claimed, slot_word(8, SlotState::kReady)));
  for (uint32_t i = 0; i < kSlots; ++i)
    ASSERT_NE(post_request(board_, rel("f" + std::to_string(i))).slot, nullptr);
  claimed = slot_word(8, SlotState::kClaimed);
  EXPECT_FALSE(slot.word.compare_exchange_strong(claimed, slot_word(8, SlotState::kReady)));
  EXPECT_EQ(drain(&ring).size(), kSlots);
}

TEST_F(BoardTest, GarbageInTheRingIsIgnored) {
  struct Garbage {
    uint32_t root, len;
    std::string path;
  };
  const std::vector<Garbage> garbage = {{0, 0, ""},
                                        {0, kPathBytes, "a"},
                                        {0, 0xffffffff, "a"},
                                        {1, 1, "a"},
                                        {0xffffffff, 1, "a"},
                                        {0, 2, ".."},
                                        {0, 6, "a/../b"},
                                        {0, 2, "/a"},
                                        {0, 2, "a/"},
                                        {0, 4, "a//b"},
                                        {0, 1, "."},
                                        {0, 3, std::string("a\0b", 3)},
                                        {0, kPathBytes - 1, "a"}};
  const auto post = [&](size_t at, const Garbage& g) {
    RequestSlot& slot = board_->slots[at];
    slot.hash = 99;
    slot.root = g.root;
    slot.len = g.len;
    std::copy(g.path.begin(), g.path.end(), slot.path);
    slot.word = slot_word(3, SlotState::kReady);
  };
  for (size_t i = 0; i < garbage.size(); ++i) post(i, garbage[i]);
  RequestRing ring(board_);
  EXPECT_TRUE(drain(&ring).empty());
  for (size_t i = 0; i < garbage.size(); ++i)
    EXPECT_EQ(slot_state(board_->slots[i].word), SlotState::kFree) << i;
  post(1, {0, 1, "a"});  // a wrong hash is computed anew: drain() looks
  EXPECT_EQ(drain(&ring), std::vector<std::string>{"a"});
}

TEST_F(BoardTest, NoRequestOfManyThreadsIsLost) {
  constexpr int kThreads = 4, kRequests = 3000;
  std::atomic<int> posted{0};
  Threads tasks(kThreads, [&](uint32_t t) {
    for (int i = 0; i < kRequests; ++i) {
      const std::string path = std::to_string(t) + "/" + std::to_string(i);
      while (!post_request(board_, rel(path)).slot) std::this_thread::yield();
      ++posted;
    }
  });
  RequestRing ring(board_);
  std::vector<std::string> taken;
  EXPECT_TRUE(eventually([&] {
    for (std::string& path : drain(&ring)) taken.push_back(std::move(path));
    if (taken.size() < kThreads * kRequests) ring.wait(10);
    return taken.size() >= kThreads * kRequests;
  }));
  tasks.join();
  std::sort(taken.begin(), taken.end());
  EXPECT_EQ(std::unique(taken.begin(), taken.end()), taken.end());
  EXPECT_EQ(taken.size(), static_cast<size_t>(posted));
}

// ---- what tasks saw

TEST_F(BoardTest, WhatWasSeenIsTakenOnce) {
  SeenSlots seen(board_);
  std::vector<uint32_t> taken;
  const auto take = [&](const Seen& s) { taken.push_back(s.entry); };
  const auto post = [&](uint32_t entry) {
    SeenSlot* slot = claim_seen(board_);
    if (!slot) return false;
    slot->seen.entry = entry;
    post_seen(board_, slot);
    return true;
  };
  EXPECT_FALSE(seen.drain(take));
  EXPECT_TRUE(seen.is_drained());
  for (uint32_t round = 0; round < 3; ++round) {
    for (uint32_t i = 0; i < kSeenSlots; ++i) ASSERT_TRUE(post(i));
    EXPECT_FALSE(post(kSeenSlots)) << "there is no room, and nobody waits for it";
    EXPECT_FALSE(seen.is_drained());
    EXPECT_TRUE(seen.drain(take));
    EXPECT_TRUE(seen.is_drained());
    std::sort(taken.begin(), taken.end());
    ASSERT_EQ(taken.size(), kSeenSlots);
    EXPECT_EQ(std::unique(taken.begin(), taken.end()), taken.end());
    taken.clear();
  }
  ASSERT_NE(claim_seen(board_), nullptr);  // its task ends before it publishes
  for (uint32_t i = 1; i < kSeenSlots; ++i) ASSERT_TRUE(post(i));
  EXPECT_FALSE(post(0)) << "the slot is lost, no more";
  EXPECT_TRUE(seen.drain(take));
  EXPECT_EQ(taken.size(), kSeenSlots - 1);
}

TEST_F(BoardTest, TasksTellWhileTheAgentTakes) {
  constexpr uint32_t kThreads = 4, kTold = 20000;
  SeenSlots seen(board_);
  RequestRing ring(board_);
  std::atomic<uint64_t> sum{0};
  uint64_t got = 0;
  std::atomic<uint32_t> ended{0};
  Threads tasks(kThreads, [&](uint32_t t) {
    for (uint32_t i = 0; i < kTold; ++i) {
      SeenSlot* slot = claim_seen(board_);
      if (!slot) continue;
      slot->seen.entry = t * kTold + i;
      slot->seen.values.size = ~uint64_t{t * kTold + i};
      sum += t * kTold + i;
      post_seen(board_, slot);
    }
    ++ended;
  });
  const auto take = [&](const Seen& s) {
    EXPECT_EQ(s.values.size, ~uint64_t{s.entry}) << "it is not torn";
    got += s.entry;
  };
  EXPECT_TRUE(eventually([&] {
    const bool last = ended == kThreads;
    seen.drain(take);
    if (!last) ring.wait(1, kNaps, [] { return true; });
    return last;
  }));
  tasks.join();
  seen.drain(take);
  EXPECT_EQ(got, sum);
  EXPECT_GT(got, 0u);
}

TEST_F(BoardTest, TheDoorbellWakesAnAgentThatSleepsAndNoOther) {
  SeenSlots seen(board_);
  RequestRing ring(board_);
  const auto take = [&] { return drain(&ring).size() + (seen.drain([](const Seen&) {}) ? 1 : 0); };
  const std::function<void()> posts[] = {[&] { post_request(board_, rel("a")); },
                                         [&] { post_seen(board_, claim_seen(board_)); }};
  take();
  for (const auto& post : posts) {
    SCOPED_TRACE(&post - posts);
    const uint32_t bell = board_->header.doorbell;
    std::atomic<int> woken{0};
    std::thread agent([&] {
      ring.wait(kLongMs, kSleeps, [&] { return seen.is_drained(); });
      EXPECT_EQ(take(), 1u);
      ++woken;
      EXPECT_TRUE(eventually([&] { return board_->header.doorbell == bell + 2 || !seen.is_drained(); }));
      ring.wait(kLongMs, kSleeps, [&] { return seen.is_drained(); });  // rung before: it does not sleep
      EXPECT_EQ(take(), 1u);
      ++woken;
    });
    EXPECT_TRUE(eventually([&] { return board_->header.agent_sleeps == kSleeps; }));
    post();
    EXPECT_TRUE(eventually([&] { return woken == 1; }));
    post();
    EXPECT_TRUE(eventually([&] { return woken == 2; }));
    agent.join();
  }
  ring.wait(10);  // without a request it returns
  const uint32_t bell = board_->header.doorbell;
  board_->header.agent_sleeps = kNaps;
  post_seen(board_, claim_seen(board_));
  EXPECT_EQ(board_->header.doorbell, bell) << "it looks by itself";
}

// ---- whether the agent lives

TEST_F(BoardTest, TheAgentLivesAsLongAsItsThreadForAllProcesses) {
  const auto lives = [&] {
    const int seen_by_child = in_child([&] {
      const Result<BoardFile> board = BoardFile::open(scratch_.path());
      return board.ok() ? int{agent_lives(*board->get())} : 2;
    });
    EXPECT_EQ(seen_by_child, int{agent_lives(*board_)});
    return agent_lives(*board_);
  };
  EXPECT_FALSE(lives());
  std::thread([&] {
    EXPECT_TRUE(declare_alive(board_).ok());
    EXPECT_TRUE(lives());
  }).join();
  EXPECT_FALSE(lives());
}

// ---- asking and waiting

class WaitTest : public BoardTest {
 protected:
  WaitTest() {
    Result<std::unique_ptr<Catalog>> catalog = Catalog::create(scratch_.path(), {{1}}, {}, {}, {1});
    EXPECT_TRUE(catalog.ok());
    catalog_ = catalog.take();
  }
  WaitEnd wait_for(const std::string& path, Found* found = nullptr) {
    Found mine;
    return request_and_wait(board_, catalog_->reader(), rel(path), found ? found : &mine);
  }
  void settle(Ref ref, uint64_t word) {
    Entry& e = catalog_->entry(ref);
    e.state = word;
    wake_parked(board_, e.hash);
  }
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(WaitTest, WhatIsSettledNeedsNoAgent) {
  for (const State state : {State::kPlaced, State::kNoFit, State::kPass, State::kLarge, State::kDropped}) {
    const std::string name = std::to_string(static_cast<int>(state));
    settle(catalog_->add(rel(name), DT_REG), state_word(state));
    Found found;
    EXPECT_EQ(wait_for(name, &found), WaitEnd::kSettled);
    EXPECT_EQ(state_of(found.entry->state), state);
  }
  RequestRing ring(board_);
  EXPECT_TRUE(drain(&ring).empty()) << "nothing was asked";
}

TEST_F(WaitTest, IsWokenWhenTheFileIsPlaced) {
  const Child agent = living_agent();
  constexpr int kTasks = 8;
  std::atomic<int> settled{0};
  Threads tasks(kTasks, [&](uint32_t) {
    Found found;
    settled += wait_for("a/f", &found) == WaitEnd::kSettled && state_of(found.entry->state) == State::kPlaced;
  });
  RequestRing ring(board_);
  Ref ref = 0;
  EXPECT_TRUE(eventually([&] {
    ring.drain(1, [&](const RelPath& path, uint32_t) {
      ref = catalog_->add(path, DT_UNKNOWN);
      catalog_->entry(ref).state = state_word(State::kQueued);
    });
    return ref != 0;
  }));
  for (const State state : {State::kQueued, State::kStaging}) {
    catalog_->entry(ref).state = state_word(state);
    EXPECT_TRUE(quiet());
    EXPECT_EQ(settled, 0);
  }
  settle(ref, state_word(State::kPlaced));
  tasks.join();
  EXPECT_EQ(settled, kTasks);
}

// It may be prefetched slowly: the agent is to know that somebody waits.
TEST_F(WaitTest, WhatIsBeingStagedIsAskedForOnce) {
  const Child agent = living_agent();
  const Ref ref = catalog_->add(rel("f"), DT_REG);
  catalog_->move(ref, state_word(State::kKnown), state_word(State::kStaging));
  std::atomic<pid_t> waits{0};
  std::thread task([&] {
    waits = ::gettid();
    EXPECT_EQ(wait_for("f"), WaitEnd::kSettled);
  });
  RequestRing ring(board_);
  size_t asked = 0;
  EXPECT_TRUE(eventually([&] { return (asked += drain(&ring).size()) > 0; }));
  const int64_t slept = sleeps_of(waits);
  EXPECT_TRUE(eventually([&] { return sleeps_of(waits) >= slept + 3; })) << "some slices of its wait";
  asked += drain(&ring).size();
  EXPECT_EQ(asked, 1u);
  settle(ref, state_word(State::kNoFit));
  task.join();
}

TEST_F(WaitTest, IsRefusedIfTheAgentMakesNoEntry) {
  const Child agent = living_agent();
  std::atomic<bool> refused{false};
  std::thread task([&] { refused = wait_for("f") == WaitEnd::kRefused; });
  RequestRing ring(board_);
  EXPECT_TRUE(eventually([&] { return !drain(&ring).empty(); }));
  task.join();
  EXPECT_TRUE(refused);
}

TEST_F(WaitTest, EndsAfterItsLimit) {
  const Child agent = living_agent();
  const int64_t start = system_clock().now_ns();
  EXPECT_EQ(wait_for("f"), WaitEnd::kTimeout);
  EXPECT_GE(system_clock().now_ns() - start, kWaitFloorNs);
}

TEST(WaitLimit, IsTwiceTheTimeTheBytesTakeWithinBounds) {
  EXPECT_EQ(wait_limit_ns(1 << 30, 0), kWaitFloorNs) << "no rate measured yet";
  EXPECT_EQ(wait_limit_ns(50, 100), kWaitFloorNs);
  EXPECT_EQ(wait_limit_ns(1000, 100), 20000000000);
  EXPECT_EQ(wait_limit_ns(UINT64_MAX, 1), 3600000000000) << "never more than an hour";
}

TEST_F(WaitTest, AllReturnSoonWhenTheAgentIsKilled) {
  board_->header.bytes_per_second = 1;  // so that the wait itself is long
  Child agent = living_agent();
  const Ref ref = catalog_->add(rel("f"), DT_REG);
  catalog_->move(ref, state_word(State::kKnown), state_word(State::kStaging));
  catalog_->entry(ref).size = 1000;
  std::atomic<int> waiting{0}, told{0};
  Threads tasks(8, [&](uint32_t) {
    ++waiting;
    told += wait_for("f") == WaitEnd::kNoAgent;
  });
  EXPECT_TRUE(eventually([&] { return waiting == 8; }));
  EXPECT_TRUE(quiet());
  EXPECT_EQ(told, 0);
  agent.kill();
  EXPECT_TRUE(eventually([&] { return told == 8; })) << "the wait itself takes half an hour";
  settle(ref, state_word(State::kNoFit));
  tasks.join();
}

// ---- counters

TEST_F(BoardTest, CountersSumOverProcessesAndSurviveThem) {
  constexpr int kEach = 1000;
  const auto count_all = [&] {
    for (int i = 0; i < kEach; ++i) {
      count(board_, TaskCounter::read_bytes_pfs, 10);
      my_shard(board_).opens_tier[1].fetch_add(1);
      my_shard(board_).read_bytes_tier[1].fetch_add(100);
      my_shard(board_).read_calls_tier[1].fetch_add(2);
    }
  };
  {
    const Child first(count_all), second(count_all), third(count_all);
    Threads(4, [&](uint32_t) { count_all(); }).join();
  }
  board_->placed_bytes[1] = 77;
  const Result<BoardFile> other = BoardFile::open(scratch_.path());
  ASSERT_TRUE(other.ok());
  EXPECT_EQ(total(*other->get(), TaskCounter::read_bytes_pfs), 70u * kEach);
  EXPECT_EQ(total(*other->get(), TaskCounter::waits), 0u);
  const TierTotals tier = tier_totals(*other->get(), 1);
  EXPECT_EQ(std::tuple(tier.opens, tier.read_bytes, tier.read_calls, tier.placed_bytes),
            std::tuple(7u * kEach, 700u * kEach, 14u * kEach, 77u));
  EXPECT_EQ(tier_totals(*other->get(), 0).opens, 0u);
}

}  // namespace
}  // namespace monarch
