// SPDX-License-Identifier: Apache-2.0
// Large files whose source, copy or tier fails between the chunks; and tiers that fail when they are tried.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <thread>

#include "runtime/base/os.h"
#include "tests/placement_fixture.h"

namespace monarch {
namespace {

constexpr uint64_t kMiB = 1 << 20;

class LargeFault : public PlacementTest {
 protected:
  LargeFault() {
    config_.stage_wait_max = 1000;
    config_.threads = 1;
    scratch_.file("pfs/f", noise(4 * kMiB, 1));
  }
  void ask(uint32_t chunk = 0) { placement_->demand_chunk(rel("f"), chunk); }
  // That nothing of it is left, and its word says why.
  void expect_end(uint64_t end) {
    ASSERT_TRUE(eventually([&] { return word("f") == end; })) << word("f");
    placement_->stop();
    EXPECT_EQ(word("f"), end);
    EXPECT_EQ(files_on(), 0);
    EXPECT_EQ(tier().used(), 0u);
    EXPECT_EQ((*board_)->placed_bytes[0], 0u);
    EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
  }
};

TEST_F(LargeFault, AChangeOfTheSameSizeIsNoticed) {
  start();
  std::atomic<int> reads{0};
  Intercept change(Call::kPread, [&](Arguments&) {
    if (++reads == 2) scratch_.file("pfs/f", noise(4 * kMiB, 2));
    return 0;
  });
  demand("f");
  ask();
  expect_end(state_word(State::kDropped, Reason::kChanged));
  EXPECT_EQ(counter(AgentCounter::dropped_files), 1u);
}

TEST_F(LargeFault, WhatFailsForTwoThreadsAtOnceIsCountedOnce) {
  config_.threads = 3;
  start();
  std::atomic<int> reading{0};
  const Intercept broken(Call::kPread, [&](Arguments&) {
    ++reading;
    for (int i = 0; i < 3000 && reading < 2; ++i) ::usleep(10000);
    return EIO;
  });
  demand("f");
  ask(0);
  ask(2);
  ASSERT_TRUE(eventually([&] { return counter(AgentCounter::source_errors) > 0; }));
  placement_->stop();
  EXPECT_GE(reading, 2);
  EXPECT_EQ(counter(AgentCounter::source_errors), 1u);
  EXPECT_EQ(tier().used(), 0u);
}

TEST_F(LargeFault, WhatTheEndCutsShortIsNoFault) {
  start();
  std::atomic<bool> reading{false}, ending{false};
  const Intercept reads(Call::kPread, [&](Arguments&) {
    reading = true;
    for (int i = 0; i < 3000 && !ending; ++i) ::usleep(10000);
    return 0;
  });
  demand("f");
  ask();
  ASSERT_TRUE(eventually([&] { return reading.load(); }));
  std::thread end([&] { placement_->stop(); });
  ::usleep(100000);
  ending = true;
  end.join();
  EXPECT_FALSE(tier().closed());
  for (const AgentCounter c : {AgentCounter::tier_errors, AgentCounter::source_errors})
    EXPECT_EQ(counter(c), 0u);
  EXPECT_EQ(state("f"), State::kLarge);
}

TEST_F(LargeFault, AChangeBeforeTheFirstChunkIsNoticed) {
  for (const uint64_t bytes : {4 * kMiB, 5 * kMiB}) {
    SCOPED_TRACE(bytes);
    const std::string name = "f" + std::to_string(bytes);
    scratch_.file("pfs/" + name, noise(4 * kMiB, 1));
    if (!placement_) start();
    demand(name);
    scratch_.file("pfs/" + name, noise(bytes, 2));
    placement_->demand_chunk(rel(name), 0);
    ASSERT_TRUE(eventually([&] { return word(name) == state_word(State::kDropped, Reason::kChanged); }));
  }
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), 0u);
  EXPECT_EQ(counter(AgentCounter::dropped_files), 2u);
  EXPECT_EQ(files_on(), 0);
}

TEST_F(LargeFault, WhatTheJobWritesMeanwhileIsDropped) {
  start();
  std::atomic<int> reads{0};
  Intercept write(Call::kPread, [&](Arguments&) {
    if (++reads == 1) set_invalid(board_->get(), rel("f").hash);
    return 0;
  });
  demand("f");
  ask();
  expect_end(state_word(State::kDropped, Reason::kWritten));
  EXPECT_EQ(counter(AgentCounter::dropped_files), 1u);
}

TEST_F(LargeFault, ASourceThatCannotBeOpenedAnyMore) {
  start();
  demand("f");
  {
    Intercept opens(Call::kOpenBeneath, EACCES);
    ask();
    expect_end(state_word(State::kPass, Reason::kUnreadable));
  }
  EXPECT_EQ(counter(AgentCounter::source_errors), 1u);
}

TEST_F(LargeFault, ASourceThatCannotBeLookedAt) {
  start();
  demand("f");
  {
    Intercept looks(Call::kFstat, EIO);
    ask();
    expect_end(state_word(State::kPass, Reason::kSourceError));
  }
  EXPECT_EQ(counter(AgentCounter::source_errors), 1u);
}

TEST_F(LargeFault, ATierThatTakesNoPartialCopy) {
  start();
  demand("f");
  Intercept fault(Call::kFallocate, EIO);
  ask();
  expect_end(state_word(State::kNoFit, Reason::kTierError));
  EXPECT_TRUE(tier().closed());
  EXPECT_EQ(counter(AgentCounter::tier_errors), 1u);
}

TEST_F(LargeFault, WriteBackThatFailsIsNeverServed) {
  start();
  const Fd file(::open(tier().copies_path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file || tier().driver().prepare(file.get(), 4 * kMiB, false) != Writing::kBuffered)
    GTEST_SKIP() << "written past the page cache here";
  demand("f");
  {
    Intercept sync(Call::kFinishSync, EIO);
    ask();
    expect_end(state_word(State::kNoFit, Reason::kTierError));
  }
  EXPECT_TRUE(tier().closed());
}

// What renameat says when the whole copy gets its name.
class LargeEnd : public LargeFault, public ::testing::WithParamInterface<int> {};

TEST_P(LargeEnd, ACopyThatGetsNoNameIsNone) {
  const int error = GetParam();
  start();
  demand("f");
  {
    Intercept names(Call::kRenameat, error);
    ask();
    expect_end(state_word(State::kNoFit, Reason::kTierError));
  }
  EXPECT_EQ(tier().closed(), error == EIO) << "a missing file or a shortage says nothing about the tier";
  EXPECT_EQ(counter(AgentCounter::put_off_files), error == ENOMEM ? 1u : 0u);
}

INSTANTIATE_TEST_SUITE_P(Errors, LargeEnd, ::testing::Values(EIO, ENOENT, ENOMEM));

TEST_F(LargeFault, ADirectoryOfCopiesThatIsGoneComesBackForALargeOne) {
  start();
  demand("f");
  std::atomic<bool> removed{false};
  {
    Intercept names(Call::kRenameat, [&](Arguments&) {
      if (removed.exchange(true)) return 0;
      for (const auto& entry : std::filesystem::directory_iterator(tier().copies_path()))
        if (entry.path().filename() != "part") std::filesystem::remove_all(entry);
      return 0;
    });
    ask();
    ASSERT_TRUE(placed_at_last("f"));
  }
  EXPECT_TRUE(removed);
  EXPECT_TRUE(contents(copy_of("f")) == contents(pfs_ + "/f"));
}

// A tier that was closed is opened again only when it keeps what is written.
class Probe : public PlacementTest, public ::testing::WithParamInterface<std::pair<Call, int>> {};

TEST_P(Probe, ATierThatStillFailsStaysClosed) {
  start();
  tier().close("a test");
  LaterBy some(11);
  std::atomic<int> failed{0};
  {
    Intercept fault(GetParam().first, [&](Arguments&) {
      ++failed;
      return GetParam().second;
    });
    const bool open = tier().probe();
    if (failed == 0 && GetParam().first == Call::kFinishSync)
      GTEST_SKIP() << "written past the page cache here";
    EXPECT_GT(failed, 0);
    EXPECT_FALSE(open);
  }
  EXPECT_TRUE(tier().closed());
  const int64_t pause = tier().next_probe_ns() - os::clock_ns(CLOCK_MONOTONIC);
  if (GetParam().second == EMFILE) {
    EXPECT_LE(pause, 10 * int64_t{1000000000}) << "a shortage of the agent's says nothing about the tier";
  } else {
    EXPECT_GT(pause, 10 * int64_t{1000000000}) << "it is left alone for longer";
  }
  EXPECT_FALSE(tier().probe()) << "not at once";
  EXPECT_EQ(tier().room(), 0u);
  LaterBy more(60);
  EXPECT_TRUE(tier().probe());
  EXPECT_FALSE(tier().closed());
  EXPECT_GT(tier().room(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Calls, Probe,
                         ::testing::Values(std::pair{Call::kOpenat, EIO}, std::pair{Call::kOpenat, EMFILE},
                                           std::pair{Call::kFallocate, ENOSPC}, std::pair{Call::kPwrite, EIO},
                                           std::pair{Call::kFinishSync, EIO}, std::pair{Call::kPread, EIO}));

TEST_F(PlacementTest, ATierThatReturnsOtherBytesStaysClosed) {
  start();
  tier().close("a test");
  LaterBy some(11);
  {
    // Written over behind its back.
    Intercept reads(Call::kPread, [&](Arguments& a) {
      const int flags = ::fcntl(a.fd, F_GETFL);
      ::fcntl(a.fd, F_SETFL, flags & ~O_DIRECT);
      EXPECT_EQ(::pwrite(a.fd, "other", 5, 0), 5);
      return 0;
    });
    EXPECT_FALSE(tier().probe());
  }
  EXPECT_TRUE(tier().closed());
}

TEST_F(PlacementTest, AShortWriteOrReadIsNoSuccess) {
  start();
  for (const Call call : {Call::kPwrite, Call::kPread}) {
    tier().close("a test");
    LaterBy some(call == Call::kPwrite ? 11 : 3600);
    Intercept half(call, [](Arguments& a) {
      a.bytes /= 2;
      return 0;
    });
    EXPECT_FALSE(tier().probe()) << static_cast<int>(call);
    EXPECT_TRUE(tier().closed());
  }
}

}  // namespace
}  // namespace monarch
