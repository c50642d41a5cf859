// SPDX-License-Identifier: Apache-2.0
// Copying a range, in each way that a tier may want.
#include "runtime/placement/copier.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <optional>
#include <thread>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/metadata/board.h"
#include "runtime/placement/copying.h"
#include "tests/faulty_os.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class CopierTest : public ::testing::Test {
 protected:
  CopierTest() {
    Result<BoardFile> board = BoardFile::create(scratch_.dir("run"));
    EXPECT_TRUE(board.ok());
    board_.emplace(board.take());
    copier_.emplace(board_->get(), &rates_, &stopping_);
  }
  void source(uint64_t bytes) {
    expected_ = noise(bytes, 7);
    source_ = Fd(::open(scratch_.file("source", expected_).c_str(), O_RDONLY | O_CLOEXEC));
    copy_ = Fd(::open((scratch_ / "copy").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  }
  Status copy(Writing writing, uint64_t offset = 0, uint64_t bytes = UINT64_MAX) {
    const uint64_t size = expected_.size();
    return copier_->copy(
        {source_.get(), copy_.get(), size, offset, std::min(bytes, size - offset), writing, false});
  }
  uint64_t counter(AgentCounter c) { return total(*board_->get(), c); }

  Scratch scratch_;
  std::optional<BoardFile> board_;
  AgentConfig config_;
  Rates rates_{config_};
  std::atomic<bool> stopping_{false};
  std::optional<Copier> copier_;
  Fd source_, copy_;
  std::string expected_;
};

TEST_F(CopierTest, EverySizeInEveryWay) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{4096}, kMiB - 1, kMiB,
                              kMiB + 1, 4 * kMiB, 4 * kMiB + 77, 17 * kMiB + 4097, 40 * kMiB + 3}) {
    for (const Writing writing : {Writing::kMemory, Writing::kBuffered, Writing::kDirect}) {
      SCOPED_TRACE(std::to_string(size) + " bytes, way " + std::to_string(static_cast<int>(writing)));
      source(size);
      if (writing == Writing::kDirect && os::set_direct(copy_.get(), true) != 0) continue;
      const uint64_t before = counter(AgentCounter::agent_bytes_pfs);
      const Status copied = copy(writing);
      ASSERT_TRUE(copied.ok()) << copied.error().text;
      EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
      EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs) - before, size) << "each byte is read once";
    }
  }
}

TEST_F(CopierTest, ARangeLeavesTheRestAlone) {
  source(9 * kMiB + 5);
  if (os::set_direct(copy_.get(), true) != 0) GTEST_SKIP() << "no O_DIRECT here";
  ASSERT_TRUE(copy(Writing::kDirect, 8 * kMiB).ok());
  EXPECT_EQ(std::filesystem::file_size(scratch_ / "copy"), expected_.size());
  ASSERT_TRUE(copy(Writing::kDirect, 0, 8 * kMiB).ok());
  EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
}

TEST_F(CopierTest, WithoutIoUringTheSame) {
  source(9 * kMiB + 5);
  if (os::set_direct(copy_.get(), true) != 0) GTEST_SKIP() << "no O_DIRECT here";
  Intercept short_reads(Call::kPread, [](Arguments& a) {
    a.bytes = std::min<size_t>(a.bytes, 300000);
    return 0;
  });
  for (uint64_t at = 0; at < expected_.size(); at += kMiB) ASSERT_TRUE(copy(Writing::kDirect, at, kMiB).ok());
  EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
}

TEST_F(CopierTest, AFileSystemThatTakesODirectAndRefusesTheWrite) {
  source(3 * kMiB + 5);
  Intercept writes(Call::kPwrite,
                   [first = true](Arguments&) mutable { return std::exchange(first, false) ? EINVAL : 0; });
  ASSERT_TRUE(copy(Writing::kDirect, 3 * kMiB).ok());
  ASSERT_TRUE(copy(Writing::kDirect, 0, kMiB).ok());
  ASSERT_TRUE(copy(Writing::kDirect, kMiB, 2 * kMiB).ok());
  EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
}

TEST_F(CopierTest, AShorterSourceIsAnErrorOfTheSource) {
  source(6 * kMiB);
  std::filesystem::resize_file(scratch_ / "source", 2 * kMiB + 10);
  for (const Writing writing : {Writing::kBuffered, Writing::kDirect}) {
    if (writing == Writing::kDirect && os::set_direct(copy_.get(), true) != 0) continue;
    const Status copied = copy(writing);
    ASSERT_FALSE(copied.ok());
    EXPECT_TRUE(is_source_error(copied.error())) << copied.error().text;
  }
}

// Each piece is written without an error; the device then refuses it.
TEST_F(CopierTest, ErrorsOfWriteBackAreFoundInTheMiddleOfALargeFile) {
  source(40 * kMiB);
  Intercept lost(Call::kFinishSync, EIO);
  const Status copied = copy(Writing::kBuffered);
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, EIO);
  EXPECT_FALSE(is_source_error(copied.error()));
}

TEST_F(CopierTest, AFileSystemWithoutSyncFileRangeIsTaken) {
  source(40 * kMiB);
  Intercept none(Call::kFinishSync, ENOSYS);
  EXPECT_TRUE(copy(Writing::kBuffered).ok());
}

TEST_F(CopierTest, StopsBetweenPieces) {
  source(8 * kMiB);
  stopping_ = true;
  const Status copied = copy(Writing::kBuffered);
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, EINTR);
}

TEST_F(CopierTest, WhatNobodyWaitsForKeepsToTheRatesUntilSomebodyDoes) {
  config_.pfs_bandwidth = kMiB;
  Rates slow(config_);
  Copier copier(board_->get(), &slow, &stopping_);
  source(60 * kMiB);
  std::atomic<bool> ended{false};
  std::thread background([&] {
    const uint64_t size = expected_.size();
    EXPECT_TRUE(copier.copy({source_.get(), copy_.get(), size, 0, size, Writing::kBuffered, true}).ok());
    ended = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_FALSE(ended) << "a minute's worth was copied at once";
  copier.hurry();
  EXPECT_TRUE(eventually([&] { return ended.load(); }));
  background.join();
  EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
}

// What io_uring(7) did not do, plain calls do, and they tell what was wrong.
// As ioprio_get(2) says: a class from bit 13 on, a level below.
TEST_F(CopierTest, WhatNobodyWaitsForHasItsOwnIoPriority) {
  if (::syscall(SYS_ioprio_set, 1, 0, 0) != 0) GTEST_SKIP() << "not allowed here";
  const auto priority = [] { return ::syscall(SYS_ioprio_get, 1, 0); };
  std::thread([&] {
    const long usual = priority();
    const auto becomes = [&](AgentConfig::Io io, long wanted) {
      set_io_priority(io);
      EXPECT_EQ(priority(), wanted) << static_cast<int>(io);
    };
    becomes(AgentConfig::Io::kNormal, usual);
    becomes(AgentConfig::Io::kLow, 2 << 13 | 7);
    becomes(AgentConfig::Io::kIdle, 3 << 13);
    becomes(AgentConfig::Io::kIdle, 3 << 13);
    becomes(AgentConfig::Io::kLow, 2 << 13 | 7);
    becomes(AgentConfig::Io::kNormal, usual);
  }).join();
}

// It tells how long a file of some size takes; what is small tells of latency only.
TEST_F(CopierTest, TheRateIsToldByLargePieces) {
  const auto& rate = (*board_)->header.bytes_per_second;
  source(100 << 10);
  ASSERT_TRUE(copy(Writing::kMemory).ok());
  EXPECT_EQ(rate, 0u);
  for (const uint64_t size : {kMiB, 40 * kMiB}) {  // by one call, and by several at a time
    (*board_)->header.bytes_per_second = 0;
    source(size);
    ASSERT_TRUE(copy(Writing::kMemory).ok());
    EXPECT_GT(rate, 0u) << size;
  }
  (*board_)->header.bytes_per_second = uint64_t{1} << 50;
  source(kMiB);
  ASSERT_TRUE(copy(Writing::kMemory).ok());
  EXPECT_LT(rate, uint64_t{1} << 50);
  EXPECT_GT(rate, uint64_t{1} << 49) << "one piece changes it little";
}

TEST_F(CopierTest, TheRateOfTheTierIsKeptTo) {
  config_.tier_bandwidth = 1;
  Rates slow(config_);
  Copier copier(board_->get(), &slow, &stopping_);
  EXPECT_TRUE(slow.tier_bytes.wait(1 << 20, [] { return false; }));  // the only one that passes
  source(1000);
  std::atomic<bool> done{false};
  std::thread copies([&] {
    EXPECT_TRUE(copier.copy({source_.get(), copy_.get(), 1000, 0, 1000, Writing::kMemory, true}).ok());
    done = true;
  });
  ::usleep(100000);
  EXPECT_FALSE(done);
  copier.hurry();
  copies.join();
}

TEST_F(CopierTest, WhatTheRingFailsToWriteIsCopiedByPlainCalls) {
  for (const int error : {0, EIO, ENOMEM, ECANCELED}) {
    SCOPED_TRACE(error);
    source(9 * kMiB + 5);
    std::atomic<int> written{0}, plain{0};
    Intercept ring(Call::kUringResult, [&](Arguments& a) {
      if (++written % 3 != 0) return 0;
      a.bytes /= 2;  // short, if it does not fail
      return error;
    });
    Intercept reads(Call::kPread, [&](Arguments&) {
      ++plain;
      return 0;
    });
    const Status copied = copy(Writing::kMemory);
    ASSERT_TRUE(copied.ok()) << copied.error().text;
    if (written == 0) GTEST_SKIP() << "no io_uring here";
    EXPECT_GE(plain, 1);
    EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
  }
}

TEST_F(CopierTest, ARingThatTakesNothingIsGivenUp) {
  source(9 * kMiB + 5);
  Intercept ring(Call::kUringSubmit, ENOMEM);
  const Status copied = copy(Writing::kMemory);
  ASSERT_TRUE(copied.ok()) << copied.error().text;
  EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
}

TEST_F(CopierTest, ASourceThatGetsShorterIsFoundByTheRingToo) {
  source(9 * kMiB + 5);
  std::filesystem::resize_file(scratch_ / "source", 6 * kMiB + 100);
  const Status copied = copy(Writing::kMemory);
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, ENODATA);
  EXPECT_TRUE(is_source_error(copied.error()));
}

}  // namespace
}  // namespace monarch
