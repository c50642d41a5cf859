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

// How a process that has opened a log so, with so many threads, ends for want of memory.
int end_of(const std::function<void()>& open, int threads, const std::string& standard_error) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::dup2(::open(standard_error.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600),
           STDERR_FILENO);
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

TEST(NoMemory, TheProcessEndsWithOneLineInItsLog) {
  const Scratch scratch;
  const std::string log = scratch / "log", standard_error = scratch / "stderr", other = scratch / "other";
  const auto descriptor = [](const std::string& file) {
    return Fd(::open(file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  };
  struct Case {
    const char* what;
    std::function<void()> open;
    std::string has_line;  // of the files; none, if it is empty
    int threads = 1;
  };
  for (const Case& c :
       std::vector<Case>{{"a file", [&] { EXPECT_TRUE(open_log(log, "info").ok()); }, log},
                         {"several threads", [&] { EXPECT_TRUE(open_log(log, "info").ok()); }, log, 8},
                         {"a descriptor", [&] { EXPECT_TRUE(open_log(descriptor(log), "info").ok()); }, log},
                         // A child that works with the owner's rights closes root's log.
                         {"another file has its number",
                          [&] {
                            Fd fd = descriptor(log);
                            const int number = fd.get();
                            EXPECT_TRUE(open_log(std::move(fd), "info").ok());
                            EXPECT_EQ(::dup2(descriptor(other).get(), number), number);
                          },
                          standard_error},
                         {"no file", [] { EXPECT_TRUE(open_log("stderr", "info").ok()); }, standard_error},
                         {"off", [&] { EXPECT_TRUE(open_log(log, "off").ok()); }, ""}}) {
    SCOPED_TRACE(c.what);
    for (const std::string& file : {log, other}) std::ofstream(file, std::ios::trunc);
    const int status = end_of(c.open, c.threads, standard_error);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT && !WCOREDUMP(status)) << status;
    for (const std::string& file : {log, other, standard_error}) {
      const std::string text = contents(file);
      if (file != c.has_line) {
        EXPECT_EQ(text, "") << file;
        continue;
      }
      EXPECT_TRUE(text.ends_with("]: error: no memory is left: this one ends\n")) << text;
      EXPECT_EQ(text.find('\n'), text.size() - 1) << text;
      EXPECT_EQ(text.find(" monarchd["), std::string("2001-02-03T04:05:06.789").size()) << text;
    }
  }
}

}  // namespace
}  // namespace monarch
