// SPDX-License-Identifier: Apache-2.0
// Copying a range, in each way that a tier may want.
#include "runtime/placement/copier.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/base/uring.h"
#include "runtime/metadata/board.h"
#include "runtime/placement/copying.h"
#include "tests/faulty_os.h"
#include "tests/quiet.h"
#include "tests/scratch.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

bool has_uring() {
  std::vector<char> room(4096);
  char* buffer = room.data();
  return Uring::create(&buffer, 1, room.size()) != nullptr;
}

// For a child: nothing of a piece's size can be had after it.
void take_all_memory() {
  static void* volatile taken;
  static void* volatile spare = std::malloc(64 << 10);
  const rlimit none{1, 1};
  ::setrlimit(RLIMIT_AS, &none);
  const auto take = [] {
    do {
      taken = std::aligned_alloc(4096, kMiB);
    } while (taken);
  };
  take();
  std::free(spare);  // for what is small
  take();            // it may have been beside what was too small
}

class CopierTest : public ::testing::Test {
 protected:
  CopierTest() {
    Result<BoardFile> board = BoardFile::create(scratch_.dir("run"));
    EXPECT_TRUE(board.ok());
    board_.emplace(board.take());
    copier_.emplace(board_->get(), &rates_, &stopping_);
  }
  void source(uint64_t bytes) { source(noise(bytes, 7)); }
  void source(std::string content) {
    expected_ = std::move(content);
    source_ = Fd(::open(scratch_.file("source", expected_).c_str(), O_RDONLY | O_CLOEXEC));
    copy_ = Fd(::open((scratch_ / "copy").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  }
  Status copy(Writing writing, uint64_t offset = 0, uint64_t bytes = UINT64_MAX) {
    const uint64_t size = expected_.size();
    return copier_->copy(
        {source_.get(), copy_.get(), size, offset, std::min(bytes, size - offset), writing, false});
  }
  // 0: the copy is there, and right.
  int copies(Writing writing) {
    return copy(writing).ok() && contents(scratch_ / "copy") == expected_ ? 0 : 1;
  }
  uint64_t counter(AgentCounter c) { return total(*board_->get(), c); }

  // As tests/quiet.h.
  bool comes(const std::atomic<bool>& done) {
    return eventually(&clock_, [&] { return done.load(); });
  }

  ManualClock clock_;
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
                              kMiB + 1, 4 * kMiB, 4 * kMiB + 77, 17 * kMiB + 4097}) {
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

TEST_F(CopierTest, EachPieceIsTold) {
  for (const uint64_t size : {uint64_t{5}, 3 * kMiB + 1, 21 * kMiB + 5}) {
    source(size);
    std::map<uint64_t, std::string> told;
    CopyRange range = {.source = source_.get(), .copy = copy_.get(), .file_bytes = size, .bytes = size};
    range.copied = [&](uint64_t offset, std::string_view piece) { told[offset] = piece; };
    ASSERT_TRUE(copier_->copy(range).ok());
    std::string all;
    for (const auto& [offset, piece] : told) {
      EXPECT_EQ(offset, all.size());
      EXPECT_TRUE(piece.size() == kMiB || offset + piece.size() == size);
      all += piece;
    }
    EXPECT_TRUE(all == expected_);
  }
}

TEST_F(CopierTest, WhoSendsLearnsThatTheTierFails) {
  source(3 * kMiB);
  const Intercept full(Call::kPwrite, [](Arguments&) { return ENOSPC; });
  int sent = 0;
  const Status written = copier_->write({.copy = copy_.get(), .file_bytes = 3 * kMiB, .bytes = 3 * kMiB},
                                        [&](char*, const Copier::Put& put) -> Status {
                                          ++sent;
                                          MONARCH_TRY(put(0, kMiB));
                                          ++sent;
                                          return {};
                                        });
  ASSERT_FALSE(written.ok());
  EXPECT_EQ(written.error().code, ENOSPC);
  EXPECT_EQ(sent, 1);
}

TEST_F(CopierTest, WhatComesFromElsewhereEndsWithTheAgent) {
  source(kMiB);
  stopping_ = true;
  EXPECT_EQ(copier_
                ->write({.copy = copy_.get(), .file_bytes = kMiB, .bytes = kMiB},
                        [](char*, const Copier::Put& put) { return put(0, kMiB); })
                .error()
                .code,
            EINTR);
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
  source(9 * kMiB + 5);
  std::filesystem::resize_file(scratch_ / "source", 6 * kMiB + 100);
  for (const Writing writing : {Writing::kMemory, Writing::kBuffered, Writing::kDirect}) {
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

TEST_F(CopierTest, StopsBetweenPieces) {
  source(8 * kMiB);
  stopping_ = true;
  const Status copied = copy(Writing::kBuffered);
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, EINTR);
}

TEST_F(CopierTest, WhatNobodyWaitsForKeepsToTheRatesUntilSomebodyDoes) {
  config_.pfs_bandwidth = kMiB;
  Rates slow(config_, clock_);
  Copier copier(board_->get(), &slow, &stopping_);
  source(12 * kMiB);
  std::atomic<bool> ended{false};
  std::thread background([&] {
    const uint64_t size = expected_.size();
    EXPECT_TRUE(copier.copy({source_.get(), copy_.get(), size, 0, size, Writing::kBuffered, true}).ok());
    ended = true;
  });
  pass(&clock_, 3000);
  EXPECT_FALSE(ended);
  EXPECT_LE(counter(AgentCounter::agent_bytes_pfs), 4 * kMiB) << "of twelve seconds' worth";
  copier.hurry();
  EXPECT_TRUE(comes(ended));
  background.join();
  EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
}

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

// What io_uring(7) did not do, plain calls do, and they tell what was wrong.
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

TEST_F(CopierTest, TheRingIsUsedWhereThereIsOne) {
  std::atomic<int> submitted{0};
  const Intercept ring(Call::kUringSubmit, [&](Arguments&) {
    ++submitted;
    return 0;
  });
  source(Copier::kSeveralPieces);
  ASSERT_EQ(copies(Writing::kMemory), 0);
  if (!has_uring()) GTEST_SKIP() << "no io_uring here";
  EXPECT_GT(submitted, 0);
}

TEST_F(CopierTest, ARingThatIsOfNoUseIsNotMadeAnew) {
  std::atomic<int> submitted{0};
  const Intercept ring(Call::kUringSubmit, [&](Arguments&) {
    ++submitted;
    return ENOMEM;
  });
  source(9 * kMiB + 5);
  ASSERT_EQ(copies(Writing::kMemory), 0);
  EXPECT_LE(submitted, 1);
}

// It is not asked over and over meanwhile.
TEST_F(CopierTest, ARingThatTakesNoMoreNowIsAskedOnceSomethingHasEnded) {
  for (const int error : {EAGAIN, EBUSY})
    for (const int taken : {0, 1}) {
      SCOPED_TRACE(std::to_string(error) + ", taken " + std::to_string(taken));
      copier_.emplace(board_->get(), &rates_, &stopping_);
      std::atomic<int> submitted{0};
      const Intercept ring(Call::kUringSubmit, [&](Arguments&) {
        const int n = ++submitted;
        return n <= taken ? 0 : n < 1000 ? error : ENOMEM;
      });
      source(17 * kMiB + 5);
      ASSERT_EQ(copies(Writing::kMemory), 0);
      EXPECT_LE(submitted, taken + 2 * static_cast<int>(Copier::kPieces) + 1);
    }
}

TEST_F(CopierTest, WithoutMemoryForAPieceNothingIsCopied) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "sanitizers need memory of their own";
#endif
  source(1000);
  ASSERT_EQ(copies(Writing::kMemory), 0);
  EXPECT_EQ(in_child([&] {
              Copier first(board_->get(), &rates_, &stopping_);  // it has no buffer yet
              take_all_memory();
              const Status copied = first.copy({.source = source_.get(),
                                                .copy = copy_.get(),
                                                .file_bytes = expected_.size(),
                                                .bytes = expected_.size()});
              return copied.ok() ? 1 : copied.error().code;
            }),
            ENOMEM);
}

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

TEST_F(CopierTest, OnlyASparseCopyIsLeftEmptyWhereThereAreZeros) {
  constexpr size_t kBlock = 4096;
  const std::string alike(kBlock, 'x'), zeros(kBlock, '\0'), begins = '\0' + std::string(kBlock - 1, 'y');
  const std::string blocks = alike + begins + zeros + zeros + alike;
  for (const Writing writing : {Writing::kMemory, Writing::kBuffered, Writing::kDirect})
    for (const std::string& end : {std::string(100, '\0'), std::string(100, 'z')}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(writing)) + end[0]);
      const auto written = [&](bool sparse) {
        source(blocks + end);
        EXPECT_EQ(::ftruncate(copy_.get(), static_cast<off_t>(expected_.size())), 0);
        Ranges ranges;
        const Intercept writes(Call::kPwrite, [&](Arguments& a) {
          ranges.emplace_back(a.offset, a.bytes);
          return 0;
        });
        const uint64_t size = expected_.size();
        EXPECT_TRUE(copier_
                        ->copy({.source = source_.get(),
                                .copy = copy_.get(),
                                .file_bytes = size,
                                .bytes = size,
                                .writing = writing,
                                .sparse = sparse})
                        .ok());
        EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
        return ranges;
      };
      const uint64_t rest = writing == Writing::kDirect ? kBlock : end.size();
      EXPECT_EQ(written(false), (Ranges{{0, 5 * kBlock + rest}}));
      Ranges data = {{0, 2 * kBlock}, {4 * kBlock, kBlock}};
      if (end[0] != '\0') data.back().second += rest;
      EXPECT_EQ(written(true), data);
    }
}

TEST_F(CopierTest, WhatIsWrittenPastThePageCacheIsWrittenInWholeBlocks) {
  source(kMiB + 5);
  if (os::set_direct(copy_.get(), true) != 0) GTEST_SKIP() << "no O_DIRECT here";
  const Intercept gives_in(Call::kSetDirect, [](Arguments&) {
    ADD_FAILURE() << "a write was refused";
    return 0;
  });
  EXPECT_EQ(copies(Writing::kDirect), 0);
}

TEST_F(CopierTest, ACopyThatCannotBeCutToItsSizeIsNone) {
  source(kMiB + 5);
  std::vector<off_t> cuts;
  const Intercept fails(Call::kFtruncate, [&](Arguments& a) {
    cuts.push_back(a.offset);
    return EIO;
  });
  EXPECT_TRUE(copy(Writing::kDirect, 0, kMiB).ok()) << "not the end";
  EXPECT_TRUE(cuts.empty());
  const Status copied = copy(Writing::kDirect);
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, EIO);
  EXPECT_EQ(cuts, std::vector<off_t>{kMiB + 5});
  source(kMiB);
  EXPECT_TRUE(copy(Writing::kDirect).ok()) << "there is nothing to cut";
}

// What the end of a copying may wait for: in the page cache only what O_DIRECT was refused for.
TEST_F(CopierTest, ErrorsOfWriteBackAreFoundWhereItIsWaitedFor) {
  for (const int error : {EIO, ENOSYS}) {
    const Intercept lost(Call::kFinishSync, error);
    source(kMiB + 5);
    const Status copied = copy(Writing::kDirect);
    EXPECT_EQ(copied.ok(), error == ENOSYS);
    if (!copied.ok()) {
      EXPECT_EQ(copied.error().code, EIO);
    }
    source(40 * kMiB);
    EXPECT_TRUE(copy(Writing::kMemory).ok()) << "there is no device";
  }
}

// What comes from elsewhere is written to the tier as what is read here.
class CopierWriteTest : public CopierTest {
 protected:
  Status write(Copier* copier, Writing writing) {
    const uint64_t size = expected_.size();
    return copier->write({.copy = copy_.get(), .file_bytes = size, .bytes = size, .writing = writing},
                         [&](char* room, const Copier::Put& put) -> Status {
                           for (uint64_t at = 0; at < size; at += kMiB) {
                             const uint64_t bytes = std::min(kMiB, size - at);
                             expected_.copy(room, bytes, at);
                             MONARCH_TRY(put(at, bytes));
                           }
                           return {};
                         });
  }
};

TEST_F(CopierWriteTest, BytesAreWrittenInEveryWay) {
  for (const Writing writing : {Writing::kMemory, Writing::kBuffered, Writing::kDirect}) {
    source(17 * kMiB + 77);
    if (writing == Writing::kDirect && os::set_direct(copy_.get(), true) != 0) continue;
    const Status written = write(&*copier_, writing);
    ASSERT_TRUE(written.ok()) << written.error().text;
    EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
    EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), 0u);
  }
}

// Whether the bytes are read here or come from elsewhere.
TEST_F(CopierWriteTest, DirtyPagesAreBoundedByWindows) {
  const Intercept none(Call::kUringSubmit, ENOMEM);  // piece by piece
  for (const bool from_elsewhere : {false, true})
    for (const Writing writing : {Writing::kBuffered, Writing::kMemory}) {
      std::vector<uint64_t> waited;
      const Intercept waits(Call::kFinishSync, [&](Arguments& a) {  // the device itself is not waited for
        waited.push_back(static_cast<uint64_t>(a.offset) / kMiB);
        EXPECT_EQ(a.bytes, 8 * kMiB);
        return EINVAL;
      });
      source(41 * kMiB);
      EXPECT_TRUE((from_elsewhere ? write(&*copier_, writing) : copy(writing)).ok());
      EXPECT_EQ(waited, writing == Writing::kBuffered ? (std::vector<uint64_t>{0, 8, 16, 24})
                                                      : std::vector<uint64_t>{});
    }
}

TEST_F(CopierWriteTest, OnlyWhatIsWrittenPastThePageCacheIsCutAndWaitedFor) {
  const Intercept lost(Call::kFinishSync, EIO), uncut(Call::kFtruncate, EIO);
  source(kMiB + 5);
  EXPECT_FALSE(write(&*copier_, Writing::kDirect).ok());
  EXPECT_TRUE(write(&*copier_, Writing::kBuffered).ok());
  EXPECT_TRUE(write(&*copier_, Writing::kMemory).ok());
}

TEST_F(CopierWriteTest, WhoRestsHoldsNoMemory) {
  source(1000);
  char* room = nullptr;
  const auto send = [&](char* given, const Copier::Put&) -> Status {
    room = given;
    room[7] = 'x';
    return {};
  };
  ASSERT_TRUE(copier_->write({.copy = copy_.get(), .file_bytes = 1000, .bytes = 1000}, send).ok());
  copier_->rest();
  EXPECT_EQ(room[7], '\0') << "the kernel gives a new page";
  EXPECT_TRUE(write(&*copier_, Writing::kMemory).ok()) << "it goes on with it";
  EXPECT_TRUE(contents(scratch_ / "copy") == expected_);
}

// A file system that answers bit by bit does not hold up the end.
TEST_F(CopierTest, StopsBetweenReads) {
  source(kMiB);
  int reads = 0;
  const Intercept bits(Call::kPread, [&](Arguments& a) {
    a.bytes = 1000;
    if (++reads == 3) stopping_ = true;
    return 0;
  });
  const Status copied = copy(Writing::kMemory);
  ASSERT_FALSE(copied.ok());
  EXPECT_EQ(copied.error().code, EINTR);
  EXPECT_EQ(reads, 3);
}

constexpr uint64_t AgentConfig::*kRates[] = {&AgentConfig::pfs_bandwidth, &AgentConfig::tier_bandwidth};

TEST_F(CopierTest, WhatNobodyWaitsForWaitsForEachRate) {
  for (const auto rate : kRates) {
    config_ = {};
    config_.*rate = kMiB;
    Rates rates(config_, clock_);
    Copier copier(board_->get(), &rates, &stopping_);
    source(1000);
    const int64_t begin = clock_.now_ns();
    Throttle& counted = config_.pfs_bandwidth ? rates.pfs_bytes : rates.tier_bytes;
    EXPECT_TRUE(counted.wait(kMiB / 2, [] { return false; }));  // 0.5 s, of which 0.1 s are lent
    std::atomic<bool> done{false};
    std::thread copies([&] {
      EXPECT_TRUE(copier.copy({source_.get(), copy_.get(), 1000, 0, 1000, Writing::kMemory, true}).ok());
      done = true;
    });
    EXPECT_TRUE(comes(done));
    copies.join();
    EXPECT_EQ(clock_.now_ns() - begin, 400'000'000);
  }
}

TEST_F(CopierTest, WhatIsHurriedOnIsCounted) {
  for (const auto rate : kRates) {
    config_ = {};
    config_.*rate = kMiB;
    Rates rates(config_, clock_);
    Throttle& counted = config_.pfs_bandwidth ? rates.pfs_bytes : rates.tier_bytes;
    Copier copier(board_->get(), &rates, &stopping_);
    source(kMiB / 2);
    const int64_t begin = clock_.now_ns();
    EXPECT_TRUE(counted.wait(kMiB / 2, [] { return false; }));
    std::atomic<bool> copied{false}, done{false};
    std::thread copies([&] {
      const uint64_t size = expected_.size();
      EXPECT_TRUE(copier.copy({source_.get(), copy_.get(), size, 0, size, Writing::kMemory, true}).ok());
      copied = true;
      EXPECT_TRUE(counted.wait(1, [] { return false; }));
      done = true;
    });
    ASSERT_TRUE(clock_.await_waiting(1)) << "for the rate";
    copier.hurry();
    EXPECT_TRUE(comes(copied));
    EXPECT_TRUE(comes(done));
    copies.join();
    EXPECT_GE(clock_.now_ns() - begin, 900'000'000) << "1 s worth, less 0.1 s in advance";
  }
}

}  // namespace
}  // namespace monarch
