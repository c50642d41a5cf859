// SPDX-License-Identifier: Apache-2.0
// Copying a range, in each way that a tier may want.
#include "runtime/placement/copier.h"

#include <fcntl.h>
#include <sys/syscall.h>

#include <map>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "runtime/base/fd.h"
#include "runtime/base/uring.h"
#include "runtime/metadata/board.h"
#include "runtime/placement/copying.h"
#include "tests/faulty_os.h"
#include "tests/quiet.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

bool has_uring() {
  std::vector<char> room(4096);
  char* buffer = room.data();
  return Uring::create(&buffer, 1, room.size()) != nullptr;
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
  CopyRange whole(Writing writing) const {
    return {source_.get(), copy_.get(), expected_.size(), 0, expected_.size(), writing, false};
  }
  Status copy(Writing writing, uint64_t offset = 0, uint64_t bytes = UINT64_MAX) {
    CopyRange range = whole(writing);
    range.offset = offset;
    range.bytes = std::min(bytes, expected_.size() - offset);
    return copier_->copy(range);
  }
  // As of bytes that come from elsewhere.
  Status write(Writing writing) {
    const uint64_t size = expected_.size();
    return copier_->write({.copy = copy_.get(), .file_bytes = size, .bytes = size, .writing = writing},
                          [&](char* room, const Copier::Put& put) -> Status {
                            for (uint64_t at = 0; at < size; at += kMiB) {
                              const uint64_t bytes = std::min(kMiB, size - at);
                              expected_.copy(room, bytes, at);
                              MONARCH_TRY(put(at, bytes));
                            }
                            return {};
                          });
  }
  bool is_right() const { return contents(scratch_ / "copy") == expected_; }
  // Whether the copy is there, and right.
  bool copies(Writing writing) { return copy(writing).ok() && is_right(); }
  // Of a file system that has it.
  bool takes(Writing writing) const {
    return writing != Writing::kDirect || os::set_direct(copy_.get(), true) == 0;
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

constexpr Writing kWays[] = {Writing::kMemory, Writing::kBuffered, Writing::kDirect};

TEST_F(CopierTest, EverySizeInEveryWay) {
  for (const uint64_t size : {uint64_t{0}, uint64_t{1}, uint64_t{4095}, uint64_t{4096}, kMiB - 1, kMiB,
                              kMiB + 1, 4 * kMiB, 4 * kMiB + 77, 17 * kMiB + 4097}) {
    for (const Writing writing : kWays) {
      SCOPED_TRACE(std::to_string(size) + " bytes, way " + std::to_string(static_cast<int>(writing)));
      source(size);
      if (!takes(writing)) continue;
      const uint64_t before = counter(AgentCounter::agent_bytes_pfs);
      const uint64_t pfs_ns = counter(AgentCounter::pfs_ns), peer_ns = counter(AgentCounter::peer_ns);
      EXPECT_TRUE(copies(writing));
      EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs) - before, size) << "each byte is read once";
      EXPECT_EQ(counter(AgentCounter::peer_ns), peer_ns);
      const uint64_t copied_ns = counter(AgentCounter::pfs_ns);
      EXPECT_EQ(copied_ns > pfs_ns, size > 0);
      source(size);
      EXPECT_TRUE(takes(writing) && write(writing).ok() && is_right()) << "from elsewhere";
      EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs) - before, size);
      EXPECT_EQ(counter(AgentCounter::pfs_ns), copied_ns);
      EXPECT_EQ(counter(AgentCounter::peer_ns) > peer_ns, size > 0);
    }
  }
}

TEST_F(CopierTest, ShortReadsAndWritesLoseNothing) {
  const Intercept none(Call::kUringSubmit, ENOMEM);
  const Intercept reads(Call::kPread, [](Arguments& a) { a.bytes = std::min<size_t>(a.bytes, 300000); });
  const Intercept writes(Call::kPwrite, [](Arguments& a) { a.bytes = std::min<size_t>(a.bytes, 81920); });
  for (const Writing writing : kWays) {
    source(9 * kMiB + 5);
    if (takes(writing)) {
      EXPECT_TRUE(copies(writing)) << static_cast<int>(writing);
    }
  }
}

TEST_F(CopierTest, EachPieceIsTold) {
  for (const uint64_t size : {uint64_t{5}, 3 * kMiB + 1, 21 * kMiB + 5}) {
    source(size);
    std::map<uint64_t, std::string> told;
    CopyRange range = whole(Writing::kBuffered);
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

TEST_F(CopierTest, ARangeLeavesTheRestAlone) {
  source(9 * kMiB + 5);
  if (!takes(Writing::kDirect)) GTEST_SKIP() << "no O_DIRECT here";
  ASSERT_TRUE(copy(Writing::kDirect, 8 * kMiB).ok());
  EXPECT_EQ(std::filesystem::file_size(scratch_ / "copy"), expected_.size());
  ASSERT_TRUE(copy(Writing::kDirect, 0, 8 * kMiB).ok());
  EXPECT_TRUE(is_right());
}

TEST_F(CopierTest, AFileSystemThatTakesODirectAndRefusesTheWrite) {
  source(3 * kMiB + 5);
  Intercept writes(Call::kPwrite,
                   [first = true](Arguments&) mutable { return std::exchange(first, false) ? EINVAL : 0; });
  ASSERT_TRUE(copy(Writing::kDirect, 3 * kMiB).ok());
  ASSERT_TRUE(copy(Writing::kDirect, 0, kMiB).ok());
  ASSERT_TRUE(copy(Writing::kDirect, kMiB, 2 * kMiB).ok());
  EXPECT_TRUE(is_right());
}

TEST_F(CopierTest, AShorterOrLongerSourceIsAnErrorOfTheSource) {
  for (const uint64_t bytes : {uint64_t{100}, kMiB, 9 * kMiB + 5})
    for (const uint64_t instead : {bytes - 1, bytes * 2 / 3, bytes + 1})
      for (const Writing writing : kWays) {
        source(bytes);
        if (!takes(writing)) continue;
        std::filesystem::resize_file(scratch_ / "source", instead);
        const Status copied = copy(writing);
        ASSERT_FALSE(copied.ok()) << bytes << " " << instead;
        EXPECT_TRUE(is_source_error(copied.error())) << copied.error().text;
      }
}

// As ioprio_get(2) says: a class from bit 13 on, a level below.
TEST_F(CopierTest, WhatNobodyWaitsForHasItsOwnIoPriority) {
  using Io = AgentConfig::Io;
  if (::syscall(SYS_ioprio_set, 1, 0, 0) != 0) GTEST_SKIP() << "not allowed here";
  std::thread([] {
    const long usual = ::syscall(SYS_ioprio_get, 1, 0);
    for (const auto& [io, wanted] : {std::pair(Io::kNormal, usual),
                                     {Io::kLow, 2 << 13 | 7},
                                     {Io::kIdle, 3 << 13},
                                     {Io::kLow, 2 << 13 | 7},
                                     {Io::kNormal, usual}}) {
      set_io_priority(io);
      EXPECT_EQ(::syscall(SYS_ioprio_get, 1, 0), wanted) << static_cast<int>(io);
    }
  }).join();
}

// It tells how long a file of some size takes; what is small tells of latency only.
TEST_F(CopierTest, TheRateIsToldByLargePieces) {
  auto& rate = (*board_)->header.bytes_per_second;
  for (const uint64_t size : {100 * kMiB / 1024, kMiB, 40 * kMiB}) {  // the last by several calls at a time
    rate = 0;
    source(size);
    ASSERT_TRUE(copy(Writing::kMemory).ok());
    EXPECT_EQ(rate > 0, size >= kMiB) << size;
  }
  rate = uint64_t{1} << 50;
  source(kMiB);
  ASSERT_TRUE(copy(Writing::kMemory).ok());
  EXPECT_TRUE(rate < uint64_t{1} << 50 && rate > uint64_t{1} << 49) << "one piece changes it little";
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
    Intercept reads(Call::kPread, [&](Arguments&) { ++plain; });
    const Status copied = copy(Writing::kMemory);
    ASSERT_TRUE(copied.ok()) << copied.error().text;
    if (written == 0) GTEST_SKIP() << "no io_uring here";
    EXPECT_GE(plain, 1);
    EXPECT_TRUE(is_right());
  }
}

TEST_F(CopierTest, TheRingIsUsedAndOneThatIsOfNoUseIsNotMadeAnew) {
  for (const int error : {0, ENOMEM}) {
    std::atomic<int> submitted{0};
    const Intercept ring(Call::kUringSubmit, [&](Arguments&) {
      ++submitted;
      return error;
    });
    source(9 * kMiB + 5);
    ASSERT_TRUE(copies(Writing::kMemory));
    EXPECT_EQ(submitted > 0, has_uring());
    if (error) {
      EXPECT_LE(submitted, 1);
    }
  }
}

using Ranges = std::vector<std::pair<uint64_t, uint64_t>>;

TEST_F(CopierTest, OnlyASparseCopyIsLeftEmptyWhereThereAreZeros) {
  constexpr size_t kBlock = 4096;
  const std::string alike(kBlock, 'x'), zeros(kBlock, '\0'), begins = '\0' + std::string(kBlock - 1, 'y');
  const std::string blocks = alike + begins + zeros + zeros + alike;
  for (const Writing writing : kWays)
    for (const std::string& end : {std::string(100, '\0'), std::string(100, 'z')}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(writing)) + end[0]);
      const auto written = [&](bool sparse) {
        source(blocks + end);
        EXPECT_EQ(::ftruncate(copy_.get(), static_cast<off_t>(expected_.size())), 0);
        Ranges ranges;
        const Intercept writes(Call::kPwrite, [&](Arguments& a) { ranges.emplace_back(a.offset, a.bytes); });
        CopyRange range = whole(writing);
        range.sparse = sparse;
        EXPECT_TRUE(copier_->copy(range).ok());
        EXPECT_TRUE(is_right());
        return ranges;
      };
      const uint64_t rest = writing == Writing::kDirect ? kBlock : end.size();
      EXPECT_EQ(written(false), (Ranges{{0, 5 * kBlock + rest}}));
      Ranges data = {{0, 2 * kBlock}, {4 * kBlock, kBlock}};
      if (end[0] != '\0') data.back().second += rest;
      EXPECT_EQ(written(true), data);
    }
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

// Whether the bytes are read here or come from elsewhere.
TEST_F(CopierTest, DirtyPagesAreBoundedByWindows) {
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
      EXPECT_TRUE((from_elsewhere ? write(writing) : copy(writing)).ok());
      EXPECT_EQ(waited, writing == Writing::kBuffered ? (std::vector<uint64_t>{0, 8, 16, 24})
                                                      : std::vector<uint64_t>{});
    }
}

// A file system that answers bit by bit does not hold up the end.
TEST_F(CopierTest, StopsBetweenReadsAndPieces) {
  source(kMiB);
  int reads = 0;
  const Intercept bits(Call::kPread, [&](Arguments& a) {
    a.bytes = 1000;
    if (++reads == 3) stopping_ = true;
  });
  EXPECT_EQ(copy(Writing::kMemory).error().code, EINTR);
  EXPECT_EQ(reads, 3);
  EXPECT_EQ(copy(Writing::kBuffered).error().code, EINTR);
  EXPECT_EQ(write(Writing::kMemory).error().code, EINTR) << "what comes from elsewhere ends, too";
  EXPECT_EQ(reads, 3);
}

// In the page cache nothing is waited for but within a large file: each of its pieces is written without an
// error, and the device then refuses it.
TEST_F(CopierTest, ErrorsOfWriteBackAreFoundWhereItIsWaitedFor) {
  const auto fails = [&](Writing writing, uint64_t bytes, int error) {
    const Intercept lost(Call::kFinishSync, error);
    source(bytes);
    const Status copied = copy(writing), written = write(writing);
    EXPECT_EQ(copied.ok(), written.ok());
    if (!copied.ok()) {
      EXPECT_EQ(copied.error().code, error);
      EXPECT_FALSE(is_source_error(copied.error()));
    }
    return !copied.ok();
  };
  EXPECT_TRUE(fails(Writing::kDirect, kMiB + 5, EIO)) << "O_DIRECT was refused";
  EXPECT_FALSE(fails(Writing::kDirect, kMiB + 5, ENOSYS));
  EXPECT_FALSE(fails(Writing::kBuffered, kMiB + 5, EIO));
  EXPECT_TRUE(fails(Writing::kBuffered, 40 * kMiB, EIO));
  EXPECT_FALSE(fails(Writing::kMemory, 40 * kMiB, EIO)) << "there is no device";
}

constexpr uint64_t AgentConfig::*kRates[] = {&AgentConfig::pfs_bandwidth, &AgentConfig::tier_bandwidth};

// It is counted all the same once somebody waits for it.
TEST_F(CopierTest, WhatNobodyWaitsForKeepsToEachRateUntilSomebodyDoes) {
  for (const bool hurried : {false, true})
    for (const auto rate : kRates) {
      SCOPED_TRACE(hurried);
      config_ = {};
      config_.*rate = kMiB;
      Rates rates(config_, clock_);
      Copier copier(board_->get(), &rates, &stopping_);
      const uint64_t size = hurried ? kMiB / 2 : 1000;
      source(size);
      const int64_t begin = clock_.now_ns();
      Throttle& counted = config_.pfs_bandwidth ? rates.pfs_bytes : rates.tier_bytes;
      EXPECT_TRUE(counted.wait(kMiB / 2, [] { return false; }));  // 0.5 s, of which 0.1 s are lent
      std::atomic<bool> copied{false}, done{false};
      std::thread copies([&] {
        EXPECT_TRUE(copier.copy({source_.get(), copy_.get(), size, 0, size, Writing::kMemory, true}).ok());
        copied = true;
        EXPECT_TRUE(!hurried || counted.wait(1, [] { return false; }));
        done = true;
      });
      ASSERT_TRUE(clock_.await_waiting(1)) << "for the rate";
      if (hurried) {
        copier.hurry();
        clock_.advance_ms(20);
        EXPECT_TRUE(monarch::eventually([&] { return copied.load(); })) << "at its next look";
      }
      EXPECT_TRUE(comes(done));
      copies.join();
      EXPECT_TRUE(is_right());
      const int64_t took = clock_.now_ns() - begin;
      EXPECT_TRUE(hurried ? took >= 900'000'000 : took == 400'000'000) << took;  // 0.1 s are in advance
    }
}

// ---- the ring: of a pipe, so that a read ends when the test wants it to

constexpr size_t kPiece = 4096;
constexpr unsigned kPieces = 4;

class UringTest : public testing::Test {
 protected:
  void SetUp() override {
    char* buffers[kPieces];
    for (unsigned i = 0; i < kPieces; ++i) buffers[i] = old_.data() + i * kPiece;
    ring_ = Uring::create(buffers, kPieces, kPiece);
    if (!ring_) GTEST_SKIP() << "no io_uring here";
    int ends[2];
    ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    from_ = Fd(ends[0]);
    into_ = Fd(ends[1]);
    copy_ = Fd(::open((scratch_ / "copy").c_str(), O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600));
  }
  static bool waits_for_ring(pid_t thread) {
    std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/syscall");
    long call = -1;
    return file >> call && call == SYS_io_uring_enter;
  }
  uint64_t copy() {
    return ring_->copy(
        {.from = from_.get(), .to = copy_.get(), .offset = 0, .bytes = kPieces * kPiece},
        [](uint64_t) { return true; }, [](uint64_t, std::string_view) {});
  }
  std::string copied() const { return contents(scratch_ / "copy"); }

  const Scratch scratch_;
  std::vector<char> old_ = std::vector<char>(kPieces * kPiece, 'o');
  std::unique_ptr<Uring> ring_;
  Fd from_, into_, copy_;
};

// As where memory lacks for the other entries: a write whose read was taken before it waits for nothing.
TEST_F(UringTest, AWriteIsNotSubmittedWithoutItsRead) {
  const std::string bytes(kPieces * kPiece, 'n');
  for (const size_t taken : {1, 2, 3}) {
    SetUp();
    if (IsSkipped()) return;
    const Intercept some(Call::kUringSubmit, [&, first = true](Arguments& a) mutable {
      if (std::exchange(first, false)) a.bytes = std::min(a.bytes, taken);
      return 0;
    });
    std::atomic<bool> ended{false};
    const pid_t copies = ::gettid();
    std::thread late([&] {
      EXPECT_TRUE(taken == 2 || eventually([&] { return ended || waits_for_ring(copies); }));
      (void)!::write(into_.get(), bytes.data(), bytes.size());
    });
    const uint64_t done = copy();
    ended = true;
    late.join();
    EXPECT_TRUE(copied() == bytes.substr(0, done)) << taken;
    EXPECT_LE(done, taken == 2 ? bytes.size() : taken / 2 * kPiece);
    EXPECT_TRUE(taken != 2 || done == bytes.size()) << "in parts";
  }
}

}  // namespace
}  // namespace monarch
