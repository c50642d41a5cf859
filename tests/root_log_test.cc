// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/root_log.h"

#include <sys/file.h>

#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

class RootLogTest : public NodeTest {
 protected:
  const std::string file_ = scratch_ / "log";

  void fill() { scratch_.file("log", std::string(kFullLog - 1, 'x') + "\n"); }
  // What such a process logs; the default logger stays.
  void says(const std::string& line, const std::string& file) { says(line, file, clock_); }
  void says(const std::string& line, const std::string& file, Clock& clock) {
    const auto before = spdlog::default_logger();
    RootLog log(state_.path(), file, clock);
    spdlog::info("{}", line);
    spdlog::set_default_logger(before);
  }
  // This process's standard error becomes the file that complaints() reads.
  void redirect() const {
    ::close(2);
    (void)!::open((scratch_ / "err").c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
  }
  std::string complaints() const { return contents(scratch_ / "err"); }
  // What a process says there that cannot log to `file` where, before each such call, that happens.
  std::string complains(const std::string& file, long call = -1, const CallHandler& handler = {}) {
    const int code = in_child([&] {
      if (call >= 0 && !before_call(call, handler)) return 99;
      redirect();
      says("line", file);
      return 0;
    });
    return code == 99 ? "untrapped" : complaints();
  }
};

TEST_F(RootLogTest, IsMadeForNobodyElseWithItsDirectory) {
  says("first", scratch_ / "logs/x.log");
  says("second", scratch_ / "logs/x.log");
  const std::string text = contents(scratch_ / "logs/x.log");
  EXPECT_LT(text.find("first\n"), text.find("second\n")) << text;
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2) << text;
  EXPECT_EQ(fs::status(scratch_ / "logs/x.log").permissions() & fs::perms(0137), fs::perms(0));
  EXPECT_EQ(fs::status(scratch_ / "logs").permissions() & fs::perms(0066), fs::perms(0));
  EXPECT_TRUE(no_child_is_left());
}

TEST_F(RootLogTest, AFullOneBecomesTheOlderOne) {
  fill();
  says("anew", file_);
  EXPECT_EQ(fs::file_size(scratch_ / "log.1"), static_cast<uintmax_t>(kFullLog));
  EXPECT_TRUE(has(contents(file_), "anew\n"));
  EXPECT_EQ(fs::status(file_).permissions() & fs::perms(0137), fs::perms(0));
}

TEST_F(RootLogTest, OneThatCannotBeRotatedIsWrittenOn) {
  fill();
  scratch_.dir("log.1");
  says("still", file_);
  EXPECT_TRUE(has(contents(file_).substr(kFullLog), "still\n"));
  fs::remove(scratch_ / "log.1");
  const Fd log(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::flock(log.get(), LOCK_EX), 0);  // as another does that rotates it
  says("meanwhile", file_);
  EXPECT_FALSE(exists(scratch_ / "log.1"));
  EXPECT_TRUE(contents(file_).ends_with("meanwhile\n"));
}

TEST_F(RootLogTest, OneThatAnotherHasRotatedIsNotRotatedAgain) {
  fill();
  bool rotated = false;
  const auto rotate = [&](CallArguments a) {
    struct stat st;
    if (rotated || ::fstat(static_cast<int>(a[0]), &st) != 0 || st.st_size < kFullLog) return 0;
    rotated = true;
    fs::rename(file_, scratch_ / "log.1");
    scratch_.file("log", "theirs\n");
    return 0;
  };
  if (complains(file_, SYS_flock, rotate) == "untrapped")
    GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(fs::file_size(scratch_ / "log.1"), static_cast<uintmax_t>(kFullLog));
  const std::string text = contents(file_);
  EXPECT_TRUE(text.starts_with("theirs\n") && has(text, "line\n")) << text;
}

TEST_F(RootLogTest, IsFollowedWhereOthersHaveRotatedItAndWhenItIsFull) {
  const auto before = spdlog::default_logger();
  RootLog log(state_.path(), file_, clock_);
  const auto first = spdlog::default_logger();
  log.follow();
  EXPECT_EQ(spdlog::default_logger(), first) << "what it has left out is counted still";
  fs::rename(file_, scratch_ / "log.1");
  spdlog::info("three");
  log.follow();
  spdlog::info("four");
  EXPECT_TRUE(has(contents(scratch_ / "log.1"), "three\n"));
  EXPECT_TRUE(has(contents(file_), "four\n") && !has(contents(file_), "three\n"));
  fs::resize_file(file_, kFullLog);
  log.follow();
  spdlog::info("five");
  EXPECT_LT(fs::file_size(file_), 100u);
  EXPECT_EQ(fs::file_size(scratch_ / "log.1"), static_cast<uintmax_t>(kFullLog));
  fs::rename(file_, scratch_ / "moved");
  scratch_.dir("log");
  log.follow();
  spdlog::info("still");
  spdlog::set_default_logger(before);
  EXPECT_TRUE(has(contents(scratch_ / "moved"), "still\n")) << "where there is no other it is kept";
}

TEST_F(RootLogTest, WhatIsNoFileIsNotMadeAndAnErrorIsTold) {
  if (::access("/dev/log", F_OK) == 0) GTEST_SKIP() << "syslog is here";
  EXPECT_EQ(in_child([&] {
              redirect();
              if (::chdir(scratch_.dir("here").c_str()) != 0) return 1;
              for (const char* file : {"", "stderr", "syslog"}) {
                RootLog log(state_.path(), file, clock_);
                log.follow();
                spdlog::info("to '{}'", file);
              }
              return 0;
            }),
            0);
  EXPECT_TRUE(fs::is_empty(scratch_ / "here"));
  EXPECT_TRUE(has(complaints(), "to ''\n") && has(complaints(), "to 'stderr'\n")) << complaints();
  EXPECT_FALSE(has(complaints(), "instead")) << complaints();
  const std::string said = complains(scratch_ / "tier");
  EXPECT_TRUE(has(said, "/tier: Is a directory; to stderr instead") && has(said, ": line")) << said;
}

// As all can of /var/log.
TEST_F(RootLogTest, WhoKeepsItsDirectoryLockedHoldsUpNoHelper) {
  with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
    locked->lock(::open(scratch_.dir("logs").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    for (const char* why :
         {": not opened within 500 ms: a process may keep", "/log.lock: another helper holds it; "})
      m->check(is_soon_done([&] {
                 redirect();
                 says("line", scratch_ / "logs/log", system_clock());
                 return ::access("/dev/log", F_OK) == 0 ||
                        (has(complaints(), why) && has(complaints(), ": line\n"));
               }),
               std::string("it logs elsewhere, and tells why: ") + why);
    m->check(!state_.lock_file("log.lock", 0).ok(), "the one that hangs keeps the lock");
  });
}

TEST_F(RootLogTest, WhoKeepsItsDirectoryLockedDoesNotKeepItFromBeingWritten) {
  with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
    const std::string file = scratch_.file("logs/log", "");
    const Fd log(::open(file.c_str(), O_RDWR | O_CLOEXEC));  // and so the kernel has its name in its cache
    locked->lock(::open((scratch_ / "logs").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const auto adds = [&](const std::string& line) {
      struct stat st {};
      (void)::fstat(log.get(), &st);
      m->check(is_soon_done([&] {
                 says(line, file, system_clock());
                 return true;
               }),
               line);
      std::string text(4096, '\0');
      const ssize_t n = ::pread(log.get(), text.data(), text.size(), st.st_size);
      return text.substr(0, static_cast<size_t>(std::max<ssize_t>(n, 0)));
    };
    const std::string small = adds("small");
    m->check(has(small, "small\n") && std::count(small.begin(), small.end(), '\n') == 1,
             "is opened at once: " + small);
    m->check(::ftruncate(log.get(), kFullLog) == 0, "make it full");
    const std::string late = adds("late"), again = adds("again");
    m->check(has(late, "not opened within 500 ms") && has(late, "; it is full, and is written on\n"),
             "is told: " + late);
    m->check(has(late, "late\n") && has(again, "again\n"), "is written on: " + again);
    m->check(std::count(again.begin(), again.end(), '\n') == 1, "is told once while it hangs: " + again);
  });
}

}  // namespace
}  // namespace monarch
