// SPDX-License-Identifier: Apache-2.0
// Large files whose source, copy or tier fails between the chunks.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <optional>
#include <thread>

#include "tests/placement_fixture.h"

namespace monarch {
namespace {

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
    EXPECT_TRUE(eventually([&] { return reading >= 2; }));
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
    EXPECT_TRUE(eventually([&] { return ending.load(); }));
    return 0;
  });
  demand("f");
  ask();
  ASSERT_TRUE(eventually([&] { return reading.load(); }));
  std::thread end([&] { placement_->stop(); });
  EXPECT_TRUE(quiet());
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

// What fails once a chunk is asked for, and what becomes of the file and of its tier.
struct Fault {
  const char* name;
  Call call;
  int error;
  uint64_t end;
  bool closes;                          // the tier: a missing file or a shortage says nothing about it
  std::optional<AgentCounter> counted;  // once
};
constexpr uint64_t kUnreadable = state_word(State::kPass, Reason::kUnreadable),
                   kSourceError = state_word(State::kPass, Reason::kSourceError),
                   kTierError = state_word(State::kNoFit, Reason::kTierError);

class LargeFaults : public LargeFault, public ::testing::WithParamInterface<Fault> {};

TEST_P(LargeFaults, LeaveNothingAndSayWhy) {
  const Fault& fault = GetParam();
  start();
  const Fd file(::open(tier().copies_path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (fault.call == Call::kFinishSync &&
      (!file || tier().driver().prepare(file.get(), 4 * kMiB, false) != Writing::kBuffered))
    GTEST_SKIP() << "written past the page cache here";
  demand("f");
  {
    const Intercept fails(fault.call, fault.error);
    ask();
    expect_end(fault.end);
  }
  EXPECT_EQ(tier().closed(), fault.closes);
  if (fault.counted) {
    for (const AgentCounter c :
         {AgentCounter::source_errors, AgentCounter::tier_errors, AgentCounter::put_off_files})
      EXPECT_EQ(counter(c), c == *fault.counted ? 1u : 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, LargeFaults,
    ::testing::Values(
        Fault{"SourceCannotBeOpened", Call::kOpenBeneath, EACCES, kUnreadable, false,
              AgentCounter::source_errors},
        Fault{"SourceCannotBeLookedAt", Call::kFstat, EIO, kSourceError, false, AgentCounter::source_errors},
        Fault{"TierTakesNoPart", Call::kFallocate, EIO, kTierError, true, AgentCounter::tier_errors},
        Fault{"WriteBackFails", Call::kFinishSync, EIO, kTierError, true, AgentCounter::tier_errors},
        Fault{"CopyGetsNoName", Call::kRenameat, EIO, kTierError, true, AgentCounter::tier_errors},
        Fault{"CopyIsGone", Call::kRenameat, ENOENT, kTierError, false, {}},
        Fault{"CopyGetsNoNameForLackOfMemory", Call::kRenameat, ENOMEM, kTierError, false,
              AgentCounter::put_off_files}),
    [](const ::testing::TestParamInfo<Fault>& fault) { return fault.param.name; });

}  // namespace
}  // namespace monarch
