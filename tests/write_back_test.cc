// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/write_back.h"

#include <fcntl.h>

#include <optional>

#include "tests/faulty_os.h"
#include "tests/quiet.h"

namespace monarch {
namespace {

constexpr uint64_t kMostBytes = 64 * kMiB;
constexpr int kMostKept = 256;

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
  add(3, 1, NamedCopy::Stage::kPublished);
  add(4, 1, NamedCopy::Stage::kRefused);
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
