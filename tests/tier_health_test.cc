// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/tier_health.h"

#include <fcntl.h>

#include <optional>

#include "runtime/placement/write_back.h"
#include "tests/faulty_os.h"
#include "tests/placement_fixture.h"
#include "tests/quiet.h"

namespace monarch {
namespace {

constexpr int64_t kSecond = 1000000000;
constexpr int kMisfits = 8;
constexpr uint64_t kQuota = 1 << 20;
constexpr uint64_t kTried = state_word(State::kNoFit, Reason::kTierError);

class TierHealthTest : public PlacementTest {
 protected:
  TierHealthTest() {
    config_.prefetch = AgentConfig::Prefetch::kOn;
    config_.threads = 4;
    tiers_.clear();
    add_tier("fast", kQuota);
    add_tier("slow", kQuota);
    prepare();
    rates_.emplace(config_, clock_);
    source_ = std::make_unique<PfsSource>(catalog_.get(), &*dataset_, board_->get(), &*rates_);
    context_.reset(new PlacementContext{&*catalog_, &*hierarchy_, &*dataset_, board_->get(), config_,
                                        source_.get(), nullptr, clock_});
    context_->threads = config_.threads;
    queue_.emplace(&*context_, &others_);
    health_.emplace(&*context_, &*queue_);
    copier_.emplace(board_->get(), &*rates_, &context_->stopping);
    file_ = catalog_->add(rel("f"), DT_REG);
  }
  ~TierHealthTest() override { end(); }

  void set_state(uint64_t word) { catalog_->entry(file_).state = word; }
  bool is_full() const { return board_->get()->header.full == 1; }
  bool is_failed(int tier) const { return catalog_->header().tiers[tier].failed == 1; }
  int64_t from_now(int64_t then) { return then - clock_.now_ns(); }
  // Whether the file is prefetched now. It would be taken by that.
  bool is_prefetched() {
    const std::unique_ptr<Staging> taken = queue_->take(&*copier_);
    queue_->done(&*copier_);
    return taken->why == Why::kPrefetch;
  }
  void no_room(int times) {
    const uint64_t before = word("f");
    for (int i = 0; i < times; ++i) health_->no_room(file_);
    set_state(before);
  }

  std::unique_ptr<PlacementContext> context_;
  Others others_;
  std::optional<WorkQueue> queue_;
  std::optional<TierHealth> health_;
  std::optional<Copier> copier_;
  Ref file_ = 0;
};

TEST_F(TierHealthTest, PrefetchEndsAfterSomeInARowThatFindNoRoom) {
  health_->note_size(2 * kQuota);
  no_room(kMisfits - 1);
  health_->found_room();
  no_room(kMisfits - 1);
  EXPECT_FALSE(is_full());
  no_room(1);
  EXPECT_TRUE(is_full());
  EXPECT_FALSE(is_prefetched());
  EXPECT_EQ(counter(AgentCounter::no_fit_files), 2u * kMisfits - 1);
}

TEST_F(TierHealthTest, PrefetchGoesOnWhileAFileOfUsualSizeFits) {
  health_->note_size(kQuota);
  no_room(2 * kMisfits);
  EXPECT_FALSE(is_full());
  EXPECT_TRUE(is_prefetched());
}

TEST_F(TierHealthTest, WhereRoomGrewWhatDidNotFitIsTriedAgain) {
  health_->note_size(2 * kQuota);
  no_room(kMisfits);
  set_state(state_word(State::kNoFit));
  health_->room_grew();
  EXPECT_FALSE(is_full());
  no_room(kMisfits - 1);
  EXPECT_FALSE(is_full()) << "it is counted anew";
  EXPECT_TRUE(is_prefetched());
}

TEST_F(TierHealthTest, AShortageEndsWhenItIsTime) {
  health_->put_off(file_, EMFILE);
  EXPECT_EQ(word("f"), kTried);
  EXPECT_TRUE(health_->is_short());
  const int64_t due = health_->due();
  EXPECT_EQ(from_now(due), kSecond);
  health_->look();
  EXPECT_TRUE(health_->is_short()) << "it is not time";
  EXPECT_EQ(word("f"), kTried);
  clock_.advance_ms(1000);
  health_->ran_short(EMFILE);
  EXPECT_EQ(health_->due(), due) << "one pause at a time";
  health_->look();
  EXPECT_FALSE(health_->is_short());
  EXPECT_EQ(health_->due(), INT64_MAX);
  EXPECT_EQ(word("f"), state_word(State::kKnown));
}

TEST_F(TierHealthTest, EachPauseIsLongerUntilACopySucceeds) {
  const auto pause = [&] {
    health_->ran_short(EMFILE);
    const int64_t seconds = from_now(health_->due()) / kSecond;
    clock_.advance(seconds * kSecond);
    health_->look();
    return seconds;
  };
  for (const int64_t seconds : {1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300}) EXPECT_EQ(pause(), seconds);
  health_->placed();
  EXPECT_EQ(pause(), 1);
}

TEST_F(TierHealthTest, AShortageDoesNotBeginAnewWhatHadEnded) {
  health_->note_size(2 * kQuota);
  no_room(kMisfits);
  health_->put_off(file_, EMFILE);
  clock_.advance_ms(1000);
  health_->look();
  EXPECT_EQ(word("f"), state_word(State::kKnown));
  EXPECT_TRUE(is_full());
  EXPECT_FALSE(is_prefetched());
}

TEST_F(TierHealthTest, ATierThatOpensAgainTakesWhatItDidNot) {
  health_->note_size(2 * kQuota);
  no_room(kMisfits);
  health_->failed(1, Error{EIO, "a test"});
  health_->no_room(file_);
  EXPECT_EQ(word("f"), kTried) << "it may be taken later";
  clock_.advance_ms(10000);
  health_->look();
  EXPECT_FALSE(tier(1).closed());
  EXPECT_FALSE(is_failed(1));
  EXPECT_FALSE(is_full());
  no_room(kMisfits - 1);
  EXPECT_FALSE(is_full()) << "it is counted anew";
  EXPECT_EQ(word("f"), state_word(State::kKnown));
  EXPECT_TRUE(is_prefetched());
}

// ---- write back

constexpr uint64_t kMostBytes = 64 * kMiB;
constexpr int kMostKept = 256;

class WriteBackTest : public ::testing::Test {
 protected:
  void add(Ref entry, uint64_t bytes = 1, Staging::Step step = Staging::Step::kNamed) {
    auto file = std::make_unique<Staging>(Staging{entry});
    file->copy = Fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    file->st.st_size = static_cast<off_t>(bytes);
    file->step = step;
    write_back_->add(std::move(file));
  }
  bool ends(int copies) {
    return eventually([&] { return ended_ == copies; });
  }
  // Adds in another thread, which waits there.
  std::thread adder(Ref entry, uint64_t bytes = 1) {
    return std::thread([=, this] {
      add(entry, bytes);
      ended_when_added_ = ended_.load();
    });
  }

  const Scratch scratch_;
  const std::string path_ = scratch_.file("f", "x");
  std::vector<Ref> published_;
  std::atomic<int> ended_{0}, lost_{0}, ended_when_added_{-1};
  std::optional<WriteBack> write_back_{
      std::in_place, WriteBack::Events{[this](Staging* file) {
                                         published_.push_back(file->ref);
                                         file->step = Staging::Step::kPublished;
                                       },
                                       [this](std::unique_ptr<Staging>, const Status& written) {
                                         lost_ += !written.ok();
                                         ++ended_;
                                       }}};
};

TEST_F(WriteBackTest, IsWaitedForInAnotherThread) {
  Held device(Call::kFinishSync);
  for (const Ref entry : {1u, 2u, 3u}) add(entry);
  ASSERT_TRUE(eventually([&] { return device.is_reached(); }));
  EXPECT_EQ(ended_, 0);
  device.go_on();
  EXPECT_TRUE(ends(3));
  EXPECT_EQ(lost_, 0);
}

TEST_F(WriteBackTest, WithoutAThreadIsWaitedForAtOnce) {
  const Intercept threads(Call::kStartThread, EAGAIN);
  add(1);
  EXPECT_EQ(ended_, 1);
}

TEST_F(WriteBackTest, OnlySomeErrorsSayThatACopyIsLost) {
  for (const int error : {ENOSYS, EINVAL, EIO, ENOSPC}) {
    const Intercept device(Call::kFinishSync, error);
    const int ended = ended_, lost = lost_;
    add(1);
    EXPECT_TRUE(ends(ended + 1));
    EXPECT_EQ(lost_ - lost, error == EIO || error == ENOSPC) << error;
  }
}

TEST_F(WriteBackTest, NoMoreIsKeptThanMayBe) {
  for (const bool of_bytes : {true, false}) {
    SCOPED_TRACE(of_bytes);
    ended_ = 0;
    Held device(Call::kFinishSync);
    const int most = of_bytes ? 1 : kMostKept;
    for (int i = 0; i < most; ++i) add(1, of_bytes ? 2 * kMostBytes : 1);  // one of any size, alone
    EXPECT_EQ(ended_, 0);
    std::thread one_more = adder(2);
    EXPECT_TRUE(quiet());
    device.go_on();
    one_more.join();
    EXPECT_GE(ended_when_added_, 1);
    EXPECT_TRUE(ends(most + 1));
  }
}

TEST_F(WriteBackTest, WhatIsHurriedIsPublishedAtOnceAndOnce) {
  Held device(Call::kFinishSync);
  add(1);
  ASSERT_TRUE(eventually([&] { return device.is_reached(); }));
  add(2);
  add(3, 1, Staging::Step::kPublished);
  add(4, 1, Staging::Step::kRefused);
  for (const Ref entry : {2u, 3u, 4u, 5u, 1u, 2u}) write_back_->hurry(entry);
  EXPECT_EQ(published_, (std::vector<Ref>{2, 1}));
  device.go_on();
  EXPECT_TRUE(ends(4));
}

TEST_F(WriteBackTest, WhatIsKeptIsForgottenAtItsEnd) {
  Held device(Call::kFinishSync);
  add(1, kMostBytes);
  ASSERT_TRUE(eventually([&] { return device.is_reached(); }));
  std::thread second = adder(2, kMostBytes);
  EXPECT_TRUE(quiet());
  std::thread stop([&] { write_back_->stop(); });
  second.join();  // it does not wait for the device any more
  EXPECT_EQ(ended_when_added_, 0);
  device.go_on();
  stop.join();
  EXPECT_EQ(device.reached(), 1);
  EXPECT_EQ(ended_, 1);
}

}  // namespace
}  // namespace monarch
