// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <latch>
#include <optional>

#include "runtime/base/clock.h"
#include "runtime/base/escape.h"
#include "runtime/base/memory.h"
#include "runtime/base/mountinfo.h"
#include "runtime/base/throttle.h"
#include "tests/logged.h"
#include "tests/quiet.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

// ---- escaped(), and the log that applies it

// Takes memory until there is none. Sanitizers have an operator new of their own, which asks no handler.
void use_all_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::get_new_handler()();
#else
  const rlimit little = {64 << 20, 64 << 20};
  ::setrlimit(RLIMIT_DATA, &little);
  for (;;) static_cast<volatile char*>(::operator new(1 << 10))[0] = 1;
#endif
}

// How a process that has opened a log so ends for want of memory, in all of its threads at once.
int end_without(int threads, const std::string& standard_error, const std::function<void()>& open) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(::open(standard_error.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), STDERR_FILENO);
    end_without_memory("monarchd", "this one ends");
    open();
    std::latch all(threads);  // none could begin without memory
    const auto work = [&] {
      all.arrive_and_wait();
      use_all_memory();
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(work);
    work();
  }
  int status = 0;
  EXPECT_EQ(::waitpid(pid, &status, 0), pid);
  return status;
}

TEST(Escape, WhatIsPlainStaysAndNothingMakesAnotherLineOrMovesTheCursor) {
  for (const char* plain : {"", "open /scratch/x: Permission denied", "Größe 数据 🙂"})
    EXPECT_EQ(escaped(plain), plain);
  using namespace std::string_view_literals;
  for (const auto& [text, out] : std::vector<std::pair<std::string_view, std::string>>{
           {"x\n2026-11-22 root: all is well\r", "x\\n2026-11-22 root: all is well\\x0d"},
           {"\0\t\x1b[2J\x7f"sv, "\\x00\\t\\x1b[2J\\x7f"},
           {"\xc2\x85|\xe2\x80\xa8|\xe2\x80\xae", "\\xc2\\x85|\\xe2\\x80\\xa8|\\xe2\\x80\\xae"},
           {"a\\nb", "a\\\\nb"},
           // Bytes that are not UTF-8:
           {"\xff\xfe", "\\xff\\xfe"},
           {"\xc3", "\\xc3"},                              // cut in the middle
           {"\xc0\x8a", "\\xc0\\x8a"},                     // a line break in two bytes
           {"\xe0\x80\x8a", "\\xe0\\x80\\x8a"},            // and in three
           {"\xed\xa0\x80", "\\xed\\xa0\\x80"},            // half of a pair
           {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}})  // beyond the last character
    EXPECT_EQ(escaped(text), out);
}

TEST(Log, ProcessWithoutMemoryEndsWithOneLine) {
  const Scratch scratch;
  const std::string log = scratch / "log", standard_error = scratch / "stderr";
  const auto opens = [&](const char* level) { return [&, level] { (void)open_log(log, level).ok(); }; };
  for (const int threads : {1, 8}) {
    const int status = end_without(threads, standard_error, opens("info"));
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && !WCOREDUMP(status)) << status;
    const std::string text = contents(log);
    EXPECT_TRUE(text.ends_with("]: error: no memory is left: this one ends\n")) << text;
    EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
    std::filesystem::remove(log);
  }
  end_without(1, standard_error, opens("off"));
  EXPECT_EQ(contents(log) + contents(standard_error), "");
  end_without(1, standard_error, [] { (void)open_log("stderr", "info").ok(); });
  EXPECT_TRUE(contents(standard_error).ends_with("]: error: no memory is left: this one ends\n"));
}

// ---- memory

constexpr uint64_t kGiB = 1 << 30;

class Memory : public ::testing::Test {
 protected:
  Memory() {
    scratch_.file("proc/meminfo",
                  "MemTotal:       20971520 kB\nMemFree:         1000 kB\nMemAvailable:   10485760 kB\n");
  }
  MemoryState state() const { return read_memory(scratch_ / "proc", scratch_ / "cg"); }
  void cgroup(const std::string& dir, const std::string& limit, uint64_t used, uint64_t cache) const {
    scratch_.file("cg/" + dir + "/memory.max", limit + "\n");
    scratch_.file("cg/" + dir + "/memory.current", std::to_string(used) + "\n");
    scratch_.file("cg/" + dir + "/memory.stat",
                  "anon 5\ninactive_file " + std::to_string(cache) + "\nactive_file 0\n");
  }
  Scratch scratch_;
};

TEST_F(Memory, IsWhatIsAvailableLessAReserve) {
  EXPECT_EQ(state().spare, 9 * kGiB) << "10 GiB available, less a twentieth of 20";
  EXPECT_EQ(state().stalled, 0);
}

TEST_F(Memory, NothingKnownLimitsNothing) {
  EXPECT_EQ(read_memory(scratch_ / "none", scratch_ / "none").spare, UINT64_MAX);
}

TEST_F(Memory, TheControlGroupLimitsAndItsFilePagesMakeWay) {
  scratch_.file("proc/self/cgroup", "0::/slurm/job1/step\n");
  cgroup("slurm/job1/step", std::to_string(4 * kGiB), 3 * kGiB, 2 * kGiB);
  EXPECT_EQ(state().spare, 3 * kGiB - 4 * kGiB / 20);
  cgroup("slurm/job1", std::to_string(2 * kGiB), 2 * kGiB, 0);
  EXPECT_EQ(state().spare, 0u) << "so does a group above it";
  cgroup("slurm/job1", "max", 0, 0);
  EXPECT_EQ(state().spare, 3 * kGiB - 4 * kGiB / 20);
}

TEST_F(Memory, VersionOneOfControlGroups) {
  scratch_.file("proc/self/cgroup", "7:memory:/slurm/job1\n3:cpu:/other\n");
  scratch_.file("cg/memory/slurm/job1/memory.limit_in_bytes", std::to_string(4 * kGiB));
  scratch_.file("cg/memory/slurm/job1/memory.usage_in_bytes", std::to_string(2 * kGiB));
  scratch_.file("cg/memory/slurm/job1/memory.stat", "cache 1\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(state().spare, 3 * kGiB - 4 * kGiB / 20);
}

TEST_F(Memory, PressureIsThatOfTheLastTenSeconds) {
  scratch_.file(
      "proc/pressure/memory",
      "some avg10=12.34 avg60=1.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0 avg300=0 total=0\n");
  EXPECT_DOUBLE_EQ(state().stalled, 12.34);
}

TEST_F(Memory, OfThisMachineIsRead) {
  const MemoryState here = read_memory();
  EXPECT_LT(here.spare, UINT64_MAX);
  EXPECT_GE(here.stalled, 0);
}

// ---- mountinfo

TEST(MountLine, HasNamesAsTheyAre) {
  MountLine m;
  ASSERT_TRUE(
      parse_mount_line("65 44 0:40 /a\\040b /c\\011d\\134040\\012\\377\\08 rw,nosuid shared:1 master:2 - "
                       "fuse.x\\040y s\\040 ro,user_id=7",
                       &m));
  EXPECT_EQ(
      std::tuple(m.id, m.parent, m.device, m.root, m.point, m.options, m.type, m.source, m.super_options),
      std::tuple(65, 44, "0:40", "/a b", "/c\td\\040\n\xff\\08", "rw,nosuid", "fuse.x y", "s ",
                 "ro,user_id=7"));
}

// As kernels before Linux 5.1 let a user mount a FUSE file system.
TEST(MountLine, ASourceMayBeEmpty) {
  MountLine m;
  ASSERT_TRUE(parse_mount_line("65 44 0:40 / /m rw - fuse  rw,user_id=7", &m));
  EXPECT_EQ(m.source, "");
  EXPECT_EQ(m.super_options, "rw,user_id=7");
}

TEST(MountLine, WhatIsNoneIsRefused) {
  MountLine m;
  for (const char* line :
       {"", "65", "65 44 0:40 / /m rw", "65 44 0:40 / /m rw -", "65 44 0:40 / /m rw - fuse x",
        "65 44 0:40 / - rw fuse x rw", "65 44 0:40 / /m rw fuse x rw"})
    EXPECT_FALSE(parse_mount_line(line, &m)) << line;
}

TEST(MountLine, AnOptionIsAWholeOne) {
  EXPECT_TRUE(has_mount_option("rw,user_id=7", "user_id=7"));
  EXPECT_TRUE(has_mount_option("user_id=7,rw", "user_id=7"));
  EXPECT_FALSE(has_mount_option("rw,user_id=70", "user_id=7"));
  EXPECT_FALSE(has_mount_option("rw,xuser_id=7", "user_id=7"));
  EXPECT_FALSE(has_mount_option("", "user_id=7"));
}

// ---- throttle

const std::function<bool()> kNever = [] { return false; };

class ThrottleTest : public ::testing::Test {
 protected:
  // How long `threads` threads that each take one unit `times` times are held up in all, in milliseconds.
  int64_t ms_for(uint32_t threads, int times) {
    const int64_t begin = clock_.now_ns();
    std::atomic<int> made{0};
    Threads waiting(threads, [&](uint32_t) {
      for (int i = 0; i < times; ++i) made += rate_->wait(1, kNever);
    });
    EXPECT_TRUE(eventually(&clock_, [&] { return made == static_cast<int>(threads) * times; }));
    return (clock_.now_ns() - begin) / 1'000'000;
  }
  ManualClock clock_;
  std::optional<Throttle> rate_;
};

TEST_F(ThrottleTest, WithoutRateNothingWaits) {
  Throttle none(0, clock_);
  EXPECT_FALSE(none.limits());
  none.take(UINT64_MAX);
  EXPECT_TRUE(none.wait(UINT64_MAX, [] { return true; }));
}

// A rate is a promise to others: it is never passed, however many threads share it.
TEST_F(ThrottleTest, ThreadsTogetherKeepToTheRateButForTheBurst) {
  rate_.emplace(1000, clock_);
  const int64_t ms = ms_for(4, 100);
  EXPECT_GE(ms, 400 - 100 - 1);
  EXPECT_LE(ms, 400) << "and it is reached";
}

TEST_F(ThrottleTest, ExcessOfTakeHoldsUpWait) {
  rate_.emplace(1000, clock_);
  rate_->take(500);
  EXPECT_EQ(clock_.waiting(), 0u);
  EXPECT_EQ(ms_for(1, 1), 400);
}

TEST_F(ThrottleTest, DebtIsForgivenAfterTwoSeconds) {
  rate_.emplace(10, clock_);
  rate_->take(1000000);
  EXPECT_EQ(ms_for(1, 1), 1900);
}

TEST_F(ThrottleTest, WaiterGivesUpAtItsNextSlice) {
  rate_.emplace(1, clock_);
  EXPECT_TRUE(rate_->wait(3600, kNever));
  std::atomic<bool> stop{false};
  std::atomic<int> gave_up{0};
  Threads waiters(2, [&](uint32_t) { gave_up += !rate_->wait(1, [&] { return stop.load(); }); });
  ASSERT_TRUE(clock_.await_waiting(2));
  stop = true;
  clock_.advance_ms(20);
  waiters.join();
  EXPECT_EQ(gave_up, 2);
}

}  // namespace
}  // namespace monarch
