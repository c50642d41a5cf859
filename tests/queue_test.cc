// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/queue.h"

#include "runtime/base/memory.h"
#include "tests/placement_fixture.h"

namespace monarch {
namespace {

constexpr Ref kOne = 101, kTwo = 102, kThree = 103;  // of no entry
constexpr int kTurns = 2;

class QueueTest : public PlacementTest, public Others {
 protected:
  QueueTest() {
    config_.prefetch = AgentConfig::Prefetch::kOn;
    config_.stage_again = 1;
    config_.threads = 3;  // one for background work
    prepare();
    rates_.emplace(config_, clock_);
    source_ = std::make_unique<PfsSource>(catalog_.get(), &*dataset_, board_->get(), &*rates_);
  }
  ~QueueTest() override { end(); }

  WorkQueue& queue() {
    if (!queue_) {
      context_.reset(new PlacementContext{&*catalog_, &*hierarchy_, &*dataset_, board_->get(), config_,
                                          source_.get(), nullptr, clock_});
      context_->threads = config_.threads;
      queue_.emplace(&*context_, this);
    }
    return *queue_;
  }
  std::optional<uint32_t> next_chunk(Ref ref) override {
    const auto at = chunks_.find(ref);
    if (at == chunks_.end() || at->second == 0) return {};
    return --at->second;
  }
  int64_t due() override { return due_; }
  bool is_short() override { return rests_; }
  bool affords(uint64_t bytes) override { return bytes < money_; }
  Reserved reserve(uint64_t bytes) override { return {nullptr, uint64_t{affords(bytes)}}; }
  Copier* copier() {
    queue();  // which makes the context
    copiers_.emplace_back(board_->get(), &*rates_, &context_->stopping);
    return &copiers_.back();
  }
  // What a thread of its own takes, which has it until done(); there is always something to look at.
  Staging take() {
    Copier* one = copier();
    std::unique_ptr<Staging> taken = queue().take(one);
    if (!taken) return {0, Why::kLook};
    if (taken->why == Why::kLook)
      queue().done(one);
    else
      taken_.push_back(one);
    return std::move(*taken);
  }
  void done() {
    for (Copier* one : taken_) queue().done(one);
    taken_.clear();
  }
  // The usual threads, for kOne.
  void all_work() {
    for (int i = 0; i < config_.threads; ++i) {
      queue().demand(kOne);
      EXPECT_EQ(take().ref, kOne);
    }
  }
  bool idle() { return take().why == Why::kLook; }
  Ref file(const std::string& name, uint64_t bytes) {
    const Ref ref = catalog_->add(rel(name), DT_REG);
    catalog_->entry(ref).size = bytes;
    return ref;
  }
  bool take_turn(Ref ref, Copier* one) {
    auto file = std::make_unique<Staging>(Staging{ref, Why::kPrefetch});
    file->step = Staging::Step::kOpened;
    return queue().take_turn(&file, *one);
  }
  void fill_turns() {
    for (int i = 0; i < kTurns; ++i) ASSERT_TRUE(take_turn(kOne, copier()));
  }

  std::atomic<int64_t> due_{0};
  std::atomic<bool> rests_{false};
  std::atomic<uint64_t> money_{UINT64_MAX};  // pays for a file of less
  std::map<Ref, uint32_t> chunks_;           // to fill
  std::unique_ptr<PlacementContext> context_;
  std::optional<WorkQueue> queue_;
  std::list<Copier> copiers_;
  std::vector<Copier*> taken_;
};

bool operator==(const Staging& a, const Staging& b) {
  return a.ref == b.ref && a.why == b.why && a.chunk == b.chunk && a.change == b.change;
}

// What comes from other nodes is waited for by more threads than the PFS is to see.
TEST_F(QueueTest, AThreadForMoreTakesOnlyWhatSomebodyWaitsFor) {
  (void)catalog_->add(rel("f"), DT_REG);
  all_work();
  chunks_[kOne] = 1;
  queue().fill(kOne, WorkQueue::Place::kWanted);
  std::atomic<Ref> taken{0};
  std::atomic<int> others{0};
  std::thread more([&, mine = copier()] {
    while (const std::unique_ptr<Staging> work = queue().take(mine, WorkQueue::Thread::kMore)) {
      others += work->why != Why::kDemand && work->why != Why::kChunk;
      taken = work->ref;
      queue().done(mine);
    }
  });
  queue().demand(kThree);
  EXPECT_TRUE(eventually([&] { return taken == kThree; })) << "all usual ones work";
  queue().demand_chunk(kTwo, 5);
  EXPECT_TRUE(eventually([&] { return taken == kTwo; }));
  queue().wake();
  queue().demand(kThree);
  EXPECT_TRUE(eventually([&] { return taken == kThree; }));
  EXPECT_EQ(others, 0);
  done();
  EXPECT_TRUE(take() == (Staging{kOne, Why::kFill, 0}));
  done();
  context_->stopping = true;
  queue().wake();
  more.join();
}

TEST_F(QueueTest, WhatSomebodyWaitsForComesFirst) {
  config_.threads = 10;
  const Ref file = catalog_->add(rel("f"), DT_REG);
  queue().stage_again(kTwo, 7);
  chunks_[kOne] = 1;
  queue().fill(kOne, WorkQueue::Place::kLast);
  queue().demand_chunk(kTwo, 5);
  queue().demand(kThree);
  clock_.advance_ms(1000);
  EXPECT_TRUE(take() == (Staging{kThree, Why::kDemand}));
  EXPECT_TRUE(take() == (Staging{kTwo, Why::kChunk, 5}));
  EXPECT_TRUE(take() == (Staging{kOne, Why::kFill, 0}));
  EXPECT_TRUE(take() == (Staging{kTwo, Why::kAgain, 0, 7}));
  EXPECT_TRUE(take() == (Staging{file, Why::kPrefetch}));
  EXPECT_TRUE(idle());
}

TEST_F(QueueTest, EachFileIsPrefetchedOnceAndNoOther) {
  const std::vector<Ref> files = {catalog_->add(rel("a"), DT_REG), catalog_->add(rel("b"), DT_REG),
                                  catalog_->add(rel("c"), DT_REG)};
  catalog_->entry(files[1]).state = state_word(State::kPlaced);
  EXPECT_EQ(take().ref, files[0]);
  EXPECT_EQ(state("a"), State::kStaging);
  EXPECT_EQ(state("c"), State::kKnown);
  EXPECT_TRUE(idle()) << "there is one thread for it";
  done();
  EXPECT_EQ(take().ref, files[2]);
  done();
  EXPECT_TRUE(idle());
  EXPECT_EQ(state("b"), State::kPlaced);
}

TEST_F(QueueTest, WhatTheJobWillUseIsPrefetchedFirstAndInItsOrder) {
  const Ref a = file("a", 500), b = file("b", 500), c = file("c", 500), placed = file("p", 500);
  catalog_->entry(placed).state = state_word(State::kPlaced);
  money_ = 0;
  EXPECT_TRUE(idle());
  EXPECT_TRUE(queue().hint({1, 0, 0, {b}}));
  EXPECT_TRUE(queue().hint({0, 1, 0, {0, a + 1, 0xffffffff, placed, c, c}}));
  queue().demand(kOne);
  EXPECT_EQ(take().ref, kOne) << "an open waits for it";
  for (const Ref next : {c, b}) {
    const Staging work = take();
    EXPECT_TRUE(work.ref == next && work.why == Why::kPrefetch && work.hinted) << next;
    EXPECT_TRUE(idle()) << "there is one thread for it";
    done();
  }
  EXPECT_TRUE(idle()) << "nothing pays for the rest";
  money_ = UINT64_MAX;
  queue().start_over(WorkQueue::Prefetch::kAsItWas);
  const Staging rest = take();
  EXPECT_TRUE(rest.ref == a && !rest.hinted);
  EXPECT_EQ(counter(AgentCounter::hinted_files), 2u);
}

// Nodes with the same order read other files each, and find what the others have read.
TEST_F(QueueTest, OfWhatTheJobWillUseComesFirstWhatThisNodeIsTheHomeOf) {
  struct Second : PfsSource {
    using PfsSource::PfsSource;
    bool is_ours(Ref ref) override { return own.count(ref) != 0; }
    std::set<Ref> own;
  };
  constexpr size_t kFiles = 100, kLooksAt = 32;  // two nodes
  config_.nodes = 2;
  auto source = std::make_unique<Second>(catalog_.get(), &*dataset_, board_->get(), &*rates_);
  std::vector<Ref> all, own, others;
  for (size_t i = 0; i < kFiles; ++i) {
    all.push_back(file("f" + std::to_string(i), 500));
    (i % 2 == 1 ? own : others).push_back(all.back());
  }
  source->own.insert(own.begin(), own.end());
  source_ = std::move(source);
  EXPECT_TRUE(queue().hint({0, 0, 0, all}));
  std::vector<Ref> taken;
  for (size_t i = 0; i < kFiles; ++i) {
    taken.push_back(take().ref);
    done();
  }
  EXPECT_TRUE(idle());
  EXPECT_TRUE(std::equal(taken.begin(), taken.begin() + kLooksAt - 1, own.begin()));
  EXPECT_EQ(taken[kLooksAt - 1], others[0]) << "it is not put off for long";
  EXPECT_EQ(std::set<Ref>(taken.begin(), taken.end()), std::set<Ref>(all.begin(), all.end()));
  std::erase_if(taken, [&](Ref ref) { return std::find(own.begin(), own.end(), ref) != own.end(); });
  EXPECT_EQ(taken, others) << "in the order of the job";
}

// Tasks wait for the lock meanwhile.
TEST_F(QueueTest, OfWhatIsStagedMeanwhileSomeIsLookedAtAtATimeAndOnce) {
  constexpr size_t kMostLooks = 4096;
  const Ref a = file("a", 500), staged = file("s", 500), b = file("b", 500);
  std::vector<Ref> all(3 * kMostLooks, staged);
  all.push_back(b);
  EXPECT_TRUE(queue().hint({0, 0, 0, all}));
  catalog_->entry(staged).state = state_word(State::kPlaced);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(idle()) << "what nobody has told of waits, too";
  EXPECT_EQ(take().ref, b);
  done();
  EXPECT_TRUE(queue().hint({1, 0, 0, all})) << "all is staged, or in work";
  EXPECT_EQ(take().ref, a);
}

TEST_F(QueueTest, NothingIsPrefetchedWhileItRestsOrAfterItsEnd) {
  catalog_->add(rel("f"), DT_REG);
  rests_ = true;
  EXPECT_TRUE(idle());
  rests_ = false;
  queue().end_prefetch();
  EXPECT_TRUE(idle());
  queue().start_over(WorkQueue::Prefetch::kAsItWas);
  EXPECT_TRUE(idle());
  queue().start_over(WorkQueue::Prefetch::kAgain);
  EXPECT_FALSE(idle());
}

TEST_F(QueueTest, PrefetchThatIsOffStaysSo) {
  config_.prefetch = AgentConfig::Prefetch::kOff;
  const Ref hinted = file("f", 500), large = file("large", 500);
  catalog_->entry(large).state = large_word(0);
  EXPECT_TRUE(queue().hint({0, 0, 0, {hinted}}));
  queue().prefetch_large(large);
  queue().start_over(WorkQueue::Prefetch::kAgain);
  EXPECT_TRUE(idle());
}

TEST_F(QueueTest, AfterItsEndOnlyTheLineIsWorkedOff) {
  catalog_->add(rel("f"), DT_REG);
  fill_turns();
  EXPECT_FALSE(take_turn(kTwo, copier()));
  queue().end_prefetch();
  EXPECT_TRUE(idle()) << "it is not its turn";
  queue().end_turn();
  const Staging work = take();
  EXPECT_TRUE(work == (Staging{kTwo, Why::kPrefetch}));
  EXPECT_EQ(work.step, Staging::Step::kOpened);
  done();
  EXPECT_TRUE(idle());
}

TEST_F(QueueTest, WhoStandsInLineIsHurried) {
  fill_turns();
  Copier* hurried = copier();
  hurried->hurry();
  EXPECT_TRUE(take_turn(kOne, hurried)) << "it waits for no turn";
  EXPECT_FALSE(take_turn(kTwo, copier()));
  EXPECT_FALSE(take_turn(kThree, copier()));
  queue().hurry(kOne);
  EXPECT_TRUE(idle());
  queue().hurry(kThree);
  const Staging work = take();
  EXPECT_TRUE(work == (Staging{kThree, Why::kDemand}));
  EXPECT_EQ(work.step, Staging::Step::kOpened);
  EXPECT_TRUE(idle());
}

TEST_F(QueueTest, WhoWorksOnAFileIsHurriedAndNoOther) {
  queue().demand(kOne);
  queue().demand(kTwo);
  take();
  take();
  queue().hurry(kTwo);
  EXPECT_FALSE(taken_[0]->hurried());
  EXPECT_TRUE(taken_[1]->hurried());
  Copier* second = taken_[1];
  second->begin();
  done();
  queue().hurry(kTwo);
  EXPECT_FALSE(second->hurried()) << "it works on something else";
}

TEST_F(QueueTest, FilesAreFilledInTheirOrder) {
  using Place = WorkQueue::Place;
  config_.threads = 20;
  Ref ref = 0;
  for (const Place place : {Place::kLast, Place::kFirst, Place::kWanted, Place::kWanted, Place::kLast}) {
    chunks_[++ref] = 1;
    queue().fill(ref, place);
  }
  for (const Ref next : {3u, 4u, 2u, 1u, 5u}) EXPECT_EQ(take().ref, next);
  EXPECT_TRUE(idle());
}

TEST_F(QueueTest, WhatIsWantedAsAWholeHasAllThreadsButOne) {
  chunks_ = {{kOne, 1}, {kTwo, 3}};
  queue().fill(kTwo, WorkQueue::Place::kLast);
  EXPECT_EQ(take().ref, kTwo);
  EXPECT_TRUE(idle()) << "nobody waits for it";
  queue().fill(kOne, WorkQueue::Place::kWanted);
  EXPECT_EQ(take().ref, kOne);
  EXPECT_TRUE(idle()) << "kept for demand";
  done();
  queue().demand(kThree);
  EXPECT_EQ(take().ref, kThree);
  EXPECT_EQ(take().ref, kTwo);
  chunks_[kOne] = 1;
  queue().fill(kOne, WorkQueue::Place::kWanted);
  EXPECT_TRUE(idle()) << "kept for demand";
  done();
  EXPECT_EQ(take().ref, kOne);
  EXPECT_TRUE(idle()) << "the other one is not wanted";
}

TEST_F(QueueTest, WhatTheJobWroteIsLookedAtLaterAndOnce) {
  queue().stage_again(kOne, 7);
  queue().stage_again(kOne, 8);
  EXPECT_TRUE(idle()) << "it is not time";
  clock_.advance_ms(999);
  EXPECT_TRUE(idle()) << "nor now";
  clock_.advance_ms(1);
  EXPECT_TRUE(take() == (Staging{kOne, Why::kAgain, 0, 7}));
  queue().stage_again(kOne, 9);
  done();
  clock_.advance_ms(1000);
  EXPECT_TRUE(idle());
  queue().stage_again(kOne, 10);
  queue().demand(kOne);
  take();
  done();
  queue().stage_again(kOne, 11);
  clock_.advance_ms(1000);
  EXPECT_TRUE(take() == (Staging{kOne, Why::kAgain, 0, 10}));
  done();
  EXPECT_TRUE(idle());
}

TEST_F(QueueTest, WhatNobodyWaitsForRestsWhileMemoryIsShort) {
  config_.prefetch = AgentConfig::Prefetch::kOff;
  chunks_ = {{kOne, 1}, {kTwo, 2}};
  if (!while_memory_is_short([&] {
        queue().stage_again(kThree, 7);
        clock_.advance_ms(1000);
        EXPECT_TRUE(idle()) << "what the job wrote";
        queue().fill(kOne, WorkQueue::Place::kLast);
        EXPECT_TRUE(idle());
        queue().fill(kTwo, WorkQueue::Place::kWanted);
        EXPECT_EQ(take().ref, kTwo) << "somebody waits for it";
        queue().demand_chunk(kOne, 3);
        EXPECT_TRUE(take() == (Staging{kOne, Why::kChunk, 3}));
        done();
        chunks_.erase(kTwo);
        EXPECT_TRUE(idle());
        due_ = INT64_MAX;
        std::atomic<bool> ended{false};
        std::thread thread([&] {
          EXPECT_EQ(take().ref, kOne) << "by itself";
          done();
          EXPECT_EQ(take().ref, kThree);
          ended = true;
        });
        EXPECT_TRUE(clock_.await_waiting(1)) << "to look again";
        memory_is("900000");
        EXPECT_TRUE(eventually([&] { return ended.load(); }));
        due_ = 0;
        queue().wake();
        thread.join();
      }))
    GTEST_SKIP() << "mounting needs root";
}

// One that is needed again soon keeps its memory; an idle one has none, and is not woken for nothing.
TEST_F(QueueTest, AThreadForMoreRestsAfterSomeTime) {
  Copier* mine = copier();
  char* room = nullptr;
  ASSERT_TRUE(mine->write({},
                          [&](char* given, const Copier::Put&) -> Status {
                            room = given;
                            *room = 'x';
                            return {};
                          })
                  .ok());
  all_work();
  std::unique_ptr<Staging> work;
  std::thread more([&] { work = queue().take(mine, WorkQueue::Thread::kMore); });
  ASSERT_TRUE(clock_.await_waiting(1));
  clock_.advance_ms(199);
  queue().wake();
  EXPECT_TRUE(quiet());
  EXPECT_EQ(*room, 'x');
  EXPECT_EQ(clock_.waiting(), 1u) << "for as long as at first";
  clock_.advance_ms(1);
  EXPECT_TRUE(quiet());
  EXPECT_EQ(*room, '\0');
  EXPECT_EQ(clock_.next_ns(), -1) << "without a limit";
  queue().demand(kThree);
  more.join();
  EXPECT_TRUE(work && *work == (Staging{kThree, Why::kDemand}));
}

// ---- what prefetch can pay for

TEST_F(QueueTest, WhatCannotBePaidForIsPassedOver) {
  config_.threads = 20;
  const Ref large = file("large", 1000), larger = file("larger", 2000), small = file("small", 10),
            unknown = file("unknown", 0);
  money_ = 100;
  EXPECT_EQ(take().ref, small);
  EXPECT_EQ(take().ref, unknown);
  EXPECT_FALSE(queue().is_poor()) << "there was something";
  EXPECT_TRUE(idle());
  EXPECT_TRUE(queue().is_poor());
  money_ = 1001;
  EXPECT_EQ(take().ref, large);
  EXPECT_TRUE(idle());
  EXPECT_TRUE(queue().is_poor());
  EXPECT_EQ(state("larger"), State::kKnown);
  queue().end_prefetch();
  EXPECT_FALSE(queue().is_poor()) << "what has ended does not rest";
  queue().start_over(WorkQueue::Prefetch::kAgain);
  money_ = UINT64_MAX;
  EXPECT_EQ(take().ref, larger);
  EXPECT_TRUE(idle());
  EXPECT_FALSE(queue().is_poor()) << "all is prefetched";
}

// A file whose size nobody knows may be the next to be paid for: what comes after it waits.
TEST_F(QueueTest, WhatWasPassedOverIsNotForgottenForOneOfNoKnownSize) {
  const Ref large = file("a", 100), unknown = file("b", 0);
  money_ = 0;
  EXPECT_TRUE(idle());
  money_ = 1000;
  EXPECT_EQ(take().ref, large);
  done();
  EXPECT_EQ(take().ref, unknown);
}

TEST_F(QueueTest, WhatWasPutBackIsTakenOnceItCanBePaidFor) {
  config_.threads = 20;
  const Ref first = file("first", 0), second = file("second", 0);
  EXPECT_EQ(take().ref, first);
  EXPECT_EQ(take().ref, second);
  EXPECT_TRUE(idle());
  const auto put_back = [&](Ref ref, uint64_t bytes) {
    catalog_->entry(ref).size = bytes;
    catalog_->entry(ref).state = state_word(State::kKnown);
    queue().pass_over(bytes);
  };
  money_ = 100;
  put_back(first, 200);
  put_back(second, 500);
  EXPECT_TRUE(idle());
  EXPECT_TRUE(queue().is_poor());
  money_ = 201;
  EXPECT_EQ(take().ref, first) << "the least counts";
  EXPECT_TRUE(idle());
  money_ = 501;
  EXPECT_EQ(take().ref, second);
  EXPECT_TRUE(idle());
}

TEST_F(QueueTest, ALargeFileThatWasOnlyOpenedIsPrefetchedAfterTheOthers) {
  const auto opened = [&](const std::string& name) {
    const Ref ref = file(name, 500);
    catalog_->entry(ref).state = large_word(0);
    queue().prefetch_large(ref);
    return ref;
  };
  const Ref begun = opened("begun"), large = opened("large"), other = file("other", 5);
  catalog_->entry(begun).state = large_word(7);
  EXPECT_TRUE(take() == (Staging{other, Why::kPrefetch}));
  done();
  money_ = 500;
  EXPECT_TRUE(idle());
  EXPECT_TRUE(queue().is_poor());
  money_ = 501;
  rests_ = true;
  EXPECT_TRUE(idle());
  rests_ = false;
  queue().end_prefetch();
  EXPECT_TRUE(idle());
  queue().start_over(WorkQueue::Prefetch::kAgain);
  const Staging work = take();
  EXPECT_TRUE(work == (Staging{large, Why::kFill}));
  EXPECT_TRUE(work.reserved);
  EXPECT_FALSE(queue().is_poor());
  done();
  EXPECT_TRUE(idle()) << "once";
}

}  // namespace
}  // namespace monarch
