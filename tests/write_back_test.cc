// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/write_back.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <vector>

#include "tests/faulty_os.h"
#include "tests/quiet.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

constexpr uint64_t kMostBytes = 64 * kMiB;
constexpr Ref kMostKept = 256;

// What is waited for does not end before let_go(); then all does.
class Device {
 public:
  ~Device() { let_go(); }
  void let_go() { held_ = false; }
  bool is_waited_for() const { return waits_ > 0; }
  int waits() const { return waits_; }
  bool waits_in(std::thread::id thread) const { return thread_ == thread; }

 private:
  int wait() {
    thread_ = std::this_thread::get_id();
    ++waits_;
    eventually([this] { return !held_; });
    return 0;
  }
  std::atomic<bool> held_{true};
  std::atomic<int> waits_{0};
  std::atomic<std::thread::id> thread_{};
  const Intercept sync_{Call::kFinishSync, [this](Arguments&) { return wait(); }};
};

class WriteBackTest : public ::testing::Test {
 protected:
  void add(Ref entry, uint64_t bytes = 1, NamedCopy::Stage stage = NamedCopy::Stage::kNamed) {
    NamedCopy copy;
    copy.entry = entry;
    copy.fd = Fd(::open(path_.c_str(), O_RDWR | O_CLOEXEC));
    copy.bytes = bytes;
    copy.stage = stage;
    write_back_->add(std::move(copy));
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
  std::optional<WriteBack> write_back_{std::in_place,
                                       WriteBack::Events{[this](NamedCopy& copy) {
                                                           published_.push_back(copy.entry);
                                                           copy.stage = NamedCopy::Stage::kPublished;
                                                         },
                                                         [this](const NamedCopy&, const Status& written) {
                                                           lost_ += !written.ok();
                                                           ++ended_;
                                                         }}};
};

TEST_F(WriteBackTest, IsWaitedForInAnotherThread) {
  Device device;
  for (const Ref entry : {1u, 2u, 3u}) add(entry);
  ASSERT_TRUE(eventually([&] { return device.is_waited_for(); }));
  EXPECT_FALSE(device.waits_in(std::this_thread::get_id()));
  EXPECT_EQ(ended_, 0);
  device.let_go();
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

TEST_F(WriteBackTest, NoMoreBytesAreKeptThanMayBe) {
  Device device;
  add(1, 2 * kMostBytes);  // alone
  std::thread second = adder(2);
  EXPECT_TRUE(quiet());
  device.let_go();
  second.join();
  EXPECT_GE(ended_when_added_, 1);
  EXPECT_TRUE(ends(2));
}

TEST_F(WriteBackTest, NoMoreCopiesAreKeptThanMayBe) {
  Device device;
  for (Ref entry = 1; entry <= kMostKept; ++entry) add(entry);
  EXPECT_EQ(ended_, 0);
  std::thread last = adder(kMostKept + 1);
  EXPECT_TRUE(quiet());
  device.let_go();
  last.join();
  EXPECT_GE(ended_when_added_, 1);
  EXPECT_TRUE(ends(kMostKept + 1));
}

TEST_F(WriteBackTest, WhatIsHurriedIsPublishedAtOnceAndOnce) {
  Device device;
  add(1);
  ASSERT_TRUE(eventually([&] { return device.is_waited_for(); }));
  add(2);
  add(3, 1, NamedCopy::Stage::kPublished);
  add(4, 1, NamedCopy::Stage::kRefused);
  for (const Ref entry : {2u, 3u, 4u, 5u, 1u, 2u}) write_back_->hurry(entry);
  EXPECT_EQ(published_, (std::vector<Ref>{2, 1}));
  device.let_go();
  EXPECT_TRUE(ends(4));
}

TEST_F(WriteBackTest, OneThatIsStoppedTakesNoCopy) {
  const int before = open_descriptors();
  write_back_->stop();
  add(1);
  EXPECT_EQ(open_descriptors(), before);
  EXPECT_EQ(ended_, 0);
}

TEST_F(WriteBackTest, WhatIsKeptIsForgottenAtItsEnd) {
  Device device;
  add(1, kMostBytes);
  ASSERT_TRUE(eventually([&] { return device.is_waited_for(); }));
  std::thread second = adder(2, kMostBytes);
  EXPECT_TRUE(quiet());
  std::thread stop([&] { write_back_->stop(); });
  second.join();  // it does not wait for the device any more
  EXPECT_EQ(ended_when_added_, 0);
  device.let_go();
  stop.join();
  EXPECT_EQ(device.waits(), 1);
  EXPECT_EQ(ended_, 1);
}

// Without a thread of its own, those that add wait for each other.
TEST_F(WriteBackTest, WhoWaitsForAnotherEndsWithIt) {
  const Intercept threads(Call::kStartThread, EAGAIN);
  Device device;
  std::thread first = adder(1);
  ASSERT_TRUE(eventually([&] { return device.is_waited_for(); }));
  std::thread second([&] { add(2); });
  EXPECT_TRUE(quiet());
  EXPECT_EQ(device.waits(), 1);
  write_back_->stop();
  second.join();
  EXPECT_EQ(ended_, 0);
  device.let_go();
  first.join();
  EXPECT_EQ(device.waits(), 1);
  EXPECT_EQ(ended_, 1);
}

}  // namespace
}  // namespace monarch
