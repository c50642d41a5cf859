// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/no_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/log.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

// Takes memory until there is none. Sanitizers have an operator new of their own, which asks no handler.
void use_all_memory() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::get_new_handler()();
#else
  constexpr size_t kPiece = 1 << 20;
  for (;;) static_cast<volatile char*>(::operator new(kPiece))[0] = 1;
#endif
}

class NoMemoryTest : public ::testing::Test {
 protected:
  // How a process that has opened a log so ends for want of memory; what it says on standard error is in
  // said().
  int end_of(const std::function<void()>& open, int threads = 1) {
    const std::string file = scratch_ / "stderr";
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int fd = ::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
      ::dup2(fd, STDERR_FILENO);
      open();
      end_without_memory("monarchd", "this one ends");
      std::vector<std::thread> others;
      others.reserve(static_cast<size_t>(threads));
      const rlimit little = {64 << 20, 64 << 20};
      if (threads == 1) ::setrlimit(RLIMIT_DATA, &little);
      for (int i = 1; i < threads; ++i) others.emplace_back([] { std::get_new_handler()(); });
      if (threads > 1) std::get_new_handler()();
      use_all_memory();
      ::_exit(0);
    }
    int status = 0;
    EXPECT_EQ(::waitpid(pid, &status, 0), pid);
    return status;
  }
  std::string said() const { return contents(scratch_ / "stderr"); }
  static void expect_line(const std::string& text) {
    const std::string end = "]: error: no memory is left: this one ends\n";
    EXPECT_TRUE(text.ends_with(end)) << text;
    EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
    EXPECT_EQ(text.find(" monarchd["), std::string("2001-02-03T04:05:06.789").size()) << text;
  }
  static void expect_killed(int status) {
    ASSERT_TRUE(WIFSIGNALED(status)) << status;
    EXPECT_EQ(WTERMSIG(status), SIGABRT);
    EXPECT_FALSE(WCOREDUMP(status));
  }
  const Scratch scratch_;
};

TEST_F(NoMemoryTest, TheProcessEndsWithALineInItsLog) {
  const std::string log = scratch_ / "log";
  expect_killed(end_of([&] { EXPECT_TRUE(open_log(log, "info").ok()); }));
  expect_line(contents(log));
  EXPECT_EQ(said(), "");
}

TEST_F(NoMemoryTest, ThereIsOneLineThoughSeveralThreadsHaveNone) {
  const std::string log = scratch_ / "log";
  expect_killed(end_of([&] { EXPECT_TRUE(open_log(log, "info").ok()); }, 8));
  expect_line(contents(log));
}

TEST_F(NoMemoryTest, TheLineGoesToALogThatIsADescriptor) {
  const std::string log = scratch_ / "log";
  expect_killed(end_of([&] {
    EXPECT_TRUE(
        open_log(Fd(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600)), "info").ok());
  }));
  expect_line(contents(log));
  EXPECT_EQ(said(), "");
}

// A child that works with the owner's rights closes root's log.
TEST_F(NoMemoryTest, TheLineGoesIntoNoOtherFileThatHasTheNumberOfTheLog) {
  const std::string log = scratch_ / "log", other = scratch_.file("other", "");
  expect_killed(end_of([&] {
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    EXPECT_TRUE(open_log(Fd(fd), "info").ok());
    const Fd opened(::open(other.c_str(), O_WRONLY | O_CLOEXEC));
    EXPECT_EQ(::dup2(opened.get(), fd), fd);
  }));
  EXPECT_EQ(contents(log), "");
  EXPECT_EQ(contents(other), "");
  expect_line(said());
}

TEST_F(NoMemoryTest, WithoutALogFileStandardErrorHasTheLine) {
  expect_killed(end_of([] { EXPECT_TRUE(open_log("stderr", "info").ok()); }));
  expect_line(said());
}

TEST_F(NoMemoryTest, ALogThatIsOffHasNoLine) {
  const std::string log = scratch_ / "log";
  expect_killed(end_of([&] { EXPECT_TRUE(open_log(log, "off").ok()); }));
  EXPECT_EQ(contents(log), "");
  EXPECT_EQ(said(), "");
}

}  // namespace
}  // namespace monarch
