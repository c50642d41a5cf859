// SPDX-License-Identifier: Apache-2.0
// runtime/base: escaped(), and the log that applies it.
#include "runtime/base/escape.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <latch>

#include "tests/logged.h"

namespace monarch {
namespace {

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

TEST(Escape, IsCutAtWholeCharacters) {
  EXPECT_EQ(escaped("abcdefgh", 8), "abcdefgh");
  EXPECT_EQ(escaped("abcdefghi", 8), "abcde...");
  EXPECT_EQ(escaped("abc\n\n\n", 8), "abc\\n...");
  EXPECT_EQ(escaped("ööööö", 8), "öö...");
  for (size_t most = 0; most < 12; ++most) EXPECT_LE(escaped("ö\n\xff ö\n\xff", most).size(), most);
  EXPECT_EQ(escaped(std::string(1 << 20, '\n')).size(), kMostEscaped - 1);
}

TEST(Escape, TheLogAppliesItToEachMessage) {
  const Scratch scratch;
  const auto before = spdlog::default_logger();
  ASSERT_TRUE(open_log(scratch / "log", "info").ok());
  spdlog::info("JobId={} clean up: remove {}", 7, "x\n2026-11-22T00:00:00.000 monarchd[1]: info: JobId=8");
  spdlog::set_default_logger(before);
  const std::string text = contents(scratch / "log");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1) << text;
  EXPECT_NE(text.find("remove x\\n2026-11-22T00:00:00.000"), std::string::npos) << text;
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

}  // namespace
}  // namespace monarch
