// SPDX-License-Identifier: Apache-2.0
// Calls of runtime/hierarchy/tier.cc that fail: what is told of it, what is left, and what is not even
// called.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <unistd.h>

#include <atomic>
#include <list>
#include <map>
#include <optional>
#include <utility>

#include "runtime/hierarchy/tier.h"
#include "tests/faulty_os.h"
#include "tests/manual_clock.h"
#include "tests/scratch.h"
#include "tests/tiers.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlock = 4096;
const std::string kJob = "job";
constexpr Ref kEntry = 0xabcd, kOther = 0xbeef;

class TierErrorsTest : public ::testing::Test {
 protected:
  TierConfig config() { return tier_config(scratch_, "a", kMiB); }
  // Whether a tier below this directory is unsafe; nothing if it cannot be opened.
  static std::optional<bool> is_unsafe(const std::string& above) {
    TierConfig config;
    config.path = above;
    config.quota.bytes = kMiB;
    config.min_free = Quota{};
    const Result<Tier> opened = Tier::open(config, kJob);
    if (!opened.ok()) return {};
    ::rmdir(opened->copies_path().c_str());
    return opened->unsafe();
  }
  Tier open() {
    Result<Tier> opened = Tier::open(config(), kJob, clock_);
    EXPECT_TRUE(opened.ok()) << opened.error().text;
    return opened.take();
  }
  // As on a file system that has no O_TMPFILE.
  Tier open_without_tmpfile() {
    Intercept opens(Call::kOpenat,
                    [](Arguments& a) { return (a.flags & O_TMPFILE) == O_TMPFILE ? EOPNOTSUPP : 0; });
    return open();
  }
  // Publishes a copy with this content.
  static void place(Tier& t, Ref entry, const std::string& content) {
    const Result<Fd> file = t.create(entry, content.size());
    ASSERT_TRUE(file.ok()) << file.error().text;
    write(*file, content);
    const Status published = t.publish(*file, entry);
    ASSERT_TRUE(published.ok()) << published.error().text;
  }
  static void write(const Fd& file, const std::string& content) {
    ASSERT_EQ(::pwrite(file.get(), content.data(), content.size(), 0), static_cast<ssize_t>(content.size()));
  }
  // Leaves a file under the name of a copy or of a partial one.
  static std::string leave(const std::string& path, const std::string& content) {
    fs::create_directories(fs::path(path).parent_path());
    std::ofstream(path) << content;
    return path;
  }
  static std::string path_of_part(const Tier& t, Ref entry) {
    char name[kPartNameBytes];
    part_name(entry, name);
    return t.copies_path() + "/" + name;
  }
  static std::string bucket_of(const Tier& t, Ref entry) {
    return fs::path(path_of_copy(t, entry)).parent_path();
  }
  // The first call fails, the others go on.
  static Intercept::Handler once(int error) {
    return [error, failed = false](Arguments&) mutable { return std::exchange(failed, true) ? 0 : error; };
  }
  static Intercept::Handler fails(int error) {
    return [error](Arguments&) { return error; };
  }
  static Intercept::Handler count(std::atomic<int>* calls) {
    return [calls](Arguments&) {
      ++*calls;
      return 0;
    };
  }
  static Intercept::Handler of_path(const std::string& path, int error) {
    return [=](Arguments& a) { return a.path == path ? error : 0; };
  }
  ManualClock clock_;
  Scratch scratch_;
};

template <typename Outcome>
void expect_error(const Outcome& outcome, int code, const std::string& text) {
  ASSERT_FALSE(outcome.ok());
  EXPECT_EQ(outcome.error().code, code) << outcome.error().text;
  EXPECT_EQ(outcome.error().text, text + ": " + strerror(code));
}

// ---- open

TEST_F(TierErrorsTest, APathWithoutRoomForTheNamesOfCopiesIsRefused) {
  TierConfig longest = config();
  longest.path.resize(kPathBytes - kCopyNameBytes - kJob.size() - 1, '/');
  EXPECT_TRUE(Tier::open(longest, kJob).ok());
  const std::string one_more = kJob + "s";
  const Result<Tier> refused = Tier::open(longest, one_more);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ENAMETOOLONG);
  EXPECT_EQ(refused.error().text, "tier a: the path " + longest.path + "/" + one_more + " is too long");
  EXPECT_FALSE(fs::exists(scratch_ / ("a/" + one_more)));
}

// ---- who can replace the job's directory

TEST_F(TierErrorsTest, IsUnsafeWhereOthersCanReplaceTheDirectory) {
  const std::string above = scratch_.dir("a");
  struct Case {
    bool is_anothers;
    mode_t mode;
    bool is_unsafe;
  };
  for (const Case& c : {Case{false, 0700, false},
                        {false, 0755, false},
                        {false, 01777, false},
                        {false, 01720, false},
                        {false, 0720, true},
                        {false, 0702, true},
                        {false, 0777, true},
                        {true, 0755, true},
                        {true, 01777, true}}) {
    if (c.is_anothers && ::geteuid() != 0) continue;
    ASSERT_EQ(::chmod(above.c_str(), c.mode), 0);
    if (c.is_anothers) {
      ASSERT_EQ(::chown(above.c_str(), 65534, 65534), 0);
      ASSERT_EQ(::chmod(above.c_str(), c.mode), 0);
    }
    EXPECT_EQ(is_unsafe(above), c.is_unsafe) << std::oct << c.mode;
  }
  const std::string own = scratch_.dir("own");
  Intercept looks(Call::kFstatat, EACCES);
  EXPECT_EQ(is_unsafe(own), true) << "it could not be looked at";
}

TEST_F(TierErrorsTest, IsSafeBelowADirectoryOfRootOrOfTheUser) {
  enum { kSafe, kUnsafe, kNotOpened };
  const auto look = [](const std::string& above) -> int {
    const std::optional<bool> unsafe = is_unsafe(above);
    return !unsafe ? kNotOpened : *unsafe ? kUnsafe : kSafe;
  };
  const int below_its_own = as_nobody([&] {
    const Scratch own;
    return look(own.path());
  });
  EXPECT_EQ(below_its_own, kSafe);
  if (::geteuid() != 0) return;
  const std::string roots = scratch_.dir("a");
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 0755), 0);
  ASSERT_EQ(::chmod(roots.c_str(), 01777), 0);
  EXPECT_EQ(as_nobody([&] { return look(roots); }), kSafe);
  ASSERT_EQ(::chmod(roots.c_str(), 0777), 0);
  EXPECT_EQ(as_nobody([&] { return look(roots); }), kUnsafe) << "it is root's, but not sticky";
}

// ---- space

TEST_F(TierErrorsTest, WhatOthersFilledIsLeftAloneOnceForAllFilesThatDoNotFit) {
  Tier t = open();
  EXPECT_FALSE(t.reserve(kMiB + 1));
  EXPECT_FALSE(t.may_recover()) << "what is beyond the quota is no reason for a probe";
  Intercept sizes(Call::kFstatvfs, [](Arguments& a) {
    a.fs->f_bavail = 0;
    return 0;
  });
  EXPECT_FALSE(t.reserve(1));
  EXPECT_TRUE(t.may_recover());
  const int64_t due = t.next_probe_ns();
  EXPECT_FALSE(t.reserve(1));
  EXPECT_EQ(t.next_probe_ns(), due);
  EXPECT_EQ(t.used(), 0u);
}

// ---- copies

TEST_F(TierErrorsTest, ACopyIsTriedAgainOnlyWhereItsDirectoryIsGone) {
  Tier t = open();
  ASSERT_TRUE(t.create(kEntry, 0).ok());
  {
    Intercept opens(Call::kOpenat, once(EIO));
    expect_error(t.create(kEntry, 0), EIO, "tier a: create a copy");
  }
  fs::remove(bucket_of(t, kEntry));
  EXPECT_TRUE(t.create(kEntry, 0).ok());
}

TEST_F(TierErrorsTest, ACopyIsPublishedWhereItsDirectoryIsGone) {
  for (const bool in_part : {false, true}) {
    Tier t = open();
    const Result<Fd> file = in_part ? t.create_part(kEntry, 3) : t.create(kEntry, 0);
    ASSERT_TRUE(file.ok()) << file.error().text;
    write(*file, "new");
    fs::remove(bucket_of(t, kEntry));
    const Status published = in_part ? t.publish_part(kEntry) : t.publish(*file, kEntry);
    ASSERT_TRUE(published.ok()) << published.error().text;
    EXPECT_EQ(contents(path_of_copy(t, kEntry)), "new");
    EXPECT_EQ(files_on(t), 1);
    EXPECT_TRUE(t.remove(kEntry));
  }
}

// Each time with a new file: one that had a name, and has none, gets none again.
TEST_F(TierErrorsTest, ALeftOverStaysWhereItCannotBeReplaced) {
  Tier t = open();
  const std::string path = leave(path_of_copy(t, kEntry), "left over");
  const auto publish = [&] {
    const Result<Fd> file = t.create(kEntry, 0);
    EXPECT_TRUE(file.ok()) << file.error().text;
    write(*file, "new");
    return t.publish(*file, kEntry);
  };
  {
    Intercept links(Call::kLinkat, [&](Arguments& a) { return path.ends_with(a.path) ? 0 : EDQUOT; });
    expect_error(publish(), EDQUOT, "tier a: publish " + path);
  }
  {
    Intercept renames(Call::kRenameat, EIO);
    expect_error(publish(), EIO, "tier a: publish " + path);
    EXPECT_EQ(files_on(t), 1) << "a name of the way there is left";
  }
  {
    Intercept renames(Call::kRenameat, EIO), removals(Call::kUnlinkat, EPERM);
    expect_error(publish(), EIO, "tier a: publish " + path);
  }
  EXPECT_EQ(contents(path), "left over");
  const Status published = publish();
  ASSERT_TRUE(published.ok()) << published.error().text;
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(files_on(t), 1) << "what could not be removed before";
}

TEST_F(TierErrorsTest, ARemovalTellsWhetherTheCopyIsGone) {
  Tier t = open();
  place(t, kEntry, "copy");
  ASSERT_TRUE(t.create_part(kOther, 0).ok());
  {
    Intercept removals(Call::kUnlinkat, EPERM);
    EXPECT_FALSE(t.remove(kEntry));
    EXPECT_FALSE(t.remove_part(kOther));
  }
  EXPECT_EQ(files_on(t), 2);
  errno = 0;  // of a call that succeeds it is not looked at
  EXPECT_TRUE(t.remove(kEntry));
  errno = 0;
  EXPECT_TRUE(t.remove_part(kOther));
  EXPECT_EQ(files_on(t), 0);
  EXPECT_TRUE(t.remove(kEntry)) << "it is gone already";
  EXPECT_TRUE(t.remove_part(kOther)) << "it is gone already";
}

// ---- a copy under another name

// ---- partial copies

TEST_F(TierErrorsTest, ErrorsOfAPartialCopyNameTheStep) {
  Tier t = open();
  struct Step {
    Call call;
    Intercept::Handler handler;
    std::function<Status()> what;
    int error;
    std::string text;
  };
  const auto status = [](const Result<Fd>& file) { return file.ok() ? Status() : Status(file.error()); };
  const auto create = [&](Ref ref, uint64_t bytes) {
    return [&t, &status, ref, bytes] { return status(t.create_part(ref, bytes)); };
  };
  const auto open_it = [&] { return status(t.open_part(kEntry)); };
  const auto of_bucket = [](Arguments& a) { return std::string(a.path) != "part" ? EROFS : 0; };
  for (const Step& step :
       {Step{Call::kMkdirat, of_path("part", EROFS), create(kEntry, 0), EROFS,
             "make " + t.copies_path() + "/part"},
        {Call::kMkdirat, of_bucket, create(kOther, 0), EROFS, "make " + bucket_of(t, kOther)},
        {Call::kOpenat, fails(EMFILE), create(kEntry, 0), EMFILE, "create a partial copy"},
        {Call::kOpenat, fails(EMFILE), create(kEntry, 1), EMFILE, "create a partial copy"},
        {Call::kOpenat, fails(EMFILE), open_it, EMFILE, "open a partial copy"},
        {Call::kFallocate, fails(ENOSPC), create(kEntry, 10000), ENOSPC, "allocate 10000 bytes"}}) {
    const Intercept fault(step.call, step.handler);
    expect_error(step.what(), step.error, "tier a: " + step.text);
    EXPECT_EQ(files_on(t), 0);
  }
  {
    Intercept allocations(Call::kFallocate, ENOSPC);
    EXPECT_TRUE(t.create_part(kEntry, 0).ok()) << "what is allocated chunk by chunk needs none";
  }
  ASSERT_TRUE(t.open_part(kEntry).ok());
  {
    Intercept renames(Call::kRenameat, once(EIO));
    expect_error(t.publish_part(kEntry), EIO, "tier a: publish " + path_of_copy(t, kEntry));
  }
  EXPECT_TRUE(t.open_part(kEntry).ok()) << "it has its old name";
  EXPECT_TRUE(t.remove_part(kEntry));
  expect_error(t.open_part(kEntry), ENOENT, "tier a: open a partial copy");
}

TEST_F(TierErrorsTest, ALeftOverOfAPartialCopyIsReplaced) {
  Tier t = open();
  const std::string path = leave(path_of_part(t, kEntry), "left over");
  const Fd writer(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(writer);
  {
    Intercept opens(Call::kOpenat, once(EIO));
    expect_error(t.create_part(kEntry, 0), EIO, "tier a: create a partial copy");
    EXPECT_EQ(contents(path), "left over") << "it was in nobody's way";
  }
  {
    Intercept removals(Call::kUnlinkat, EPERM);
    expect_error(t.create_part(kEntry, 0), EPERM, "tier a: create a partial copy");
  }
  const Result<Fd> part = t.create_part(kEntry, 0);
  ASSERT_TRUE(part.ok()) << part.error().text;
  write(writer, "late");
  EXPECT_EQ(contents(path), "") << "who has the old one open still writes to it";
}

// ---- a closed tier's probes

class ProbeErrorsTest : public TierErrorsTest {
 protected:
  // Seconds until the next probe; -1: none is due.
  int64_t seconds_left(const Tier& t) {
    return t.next_probe_ns() == 0 ? -1 : (t.next_probe_ns() - clock_.now_ns()) / 1'000'000'000;
  }
};

TEST_F(ProbeErrorsTest, TheTimeToTheNextProbeDoublesUpToFiveMinutes) {
  Tier t = open();
  clock_.advance_ms(1000 * 1000);
  EXPECT_FALSE(t.probe()) << "it is open";
  EXPECT_EQ(seconds_left(t), -1);
  EXPECT_GT(t.room(), 0u);
  t.close("a test");
  EXPECT_EQ(t.room(), 0u);
  EXPECT_FALSE(t.reserve(1));
  EXPECT_EQ(seconds_left(t), 10);
  const int64_t due = t.next_probe_ns();
  t.close("another test");
  EXPECT_EQ(t.next_probe_ns(), due) << "it is closed already";
  Intercept writes(Call::kPwrite, EIO);
  int before = 10;
  for (const int seconds : {20, 40, 80, 160, 300, 300}) {
    clock_.advance_ms(before * 1000);
    EXPECT_FALSE(t.probe());
    EXPECT_EQ(seconds_left(t), seconds);
    EXPECT_FALSE(t.probe()) << "too early";
    EXPECT_EQ(seconds_left(t), seconds);
    before = seconds;
  }
  EXPECT_TRUE(t.closed());
}

TEST_F(ProbeErrorsTest, EachStepOfAProbeCanFail) {
  struct Step {
    Call call;
    Intercept::Handler handler;
    const char* what;
  };

  const auto is_short = [](Arguments& a) {
    a.bytes = 100;
    return 0;
  };
  const auto is_altered = [](Arguments& a) { return ::pwrite(a.fd, "M", 1, 0) == 1 ? 0 : EIO; };
  for (const Step& step : {Step{Call::kOpenat, fails(EIO), "create"},
                           {Call::kFallocate, fails(ENOSPC), "allocate"},
                           {Call::kPwrite, fails(EIO), "write"},
                           {Call::kPwrite, is_short, "a short write"},
                           {Call::kFinishSync, fails(EIO), "write-back"},
                           {Call::kFinishSync, fails(EROFS), "write-back"},
                           {Call::kPread, fails(EIO), "read"},
                           {Call::kPread, is_short, "a short read"},
                           {Call::kPread, is_altered, "other bytes"}}) {
    Tier t = open();
    t.close("a test");
    clock_.advance_ms(10000);
    {
      Intercept fault(step.call, step.handler);
      errno = 0;
      EXPECT_FALSE(t.probe()) << step.what;
    }
    EXPECT_TRUE(t.closed()) << step.what;
    EXPECT_EQ(t.room(), 0u) << step.what;
    EXPECT_EQ(seconds_left(t), 20) << step.what;
    EXPECT_FALSE(t.probe()) << step.what << ": not at once";
    clock_.advance_ms(20000);
    EXPECT_TRUE(t.probe()) << step.what;
    EXPECT_FALSE(t.closed()) << step.what;
    EXPECT_GT(t.room(), 0u) << step.what;
    EXPECT_EQ(seconds_left(t), -1) << step.what;
  }
}

// The process is short of something: that tells nothing about the tier.
TEST_F(ProbeErrorsTest, AShortageIsNoReasonToWaitLonger) {
  Tier t = open();
  t.close("a test");
  for (const int error : {EMFILE, ENOMEM}) {
    clock_.advance_ms(10000);
    Intercept opens(Call::kOpenat, error);
    EXPECT_FALSE(t.probe());
    EXPECT_TRUE(t.closed());
    EXPECT_EQ(seconds_left(t), 10);
  }
}

TEST_F(ProbeErrorsTest, AFullFileSystemIsNotWrittenTo) {
  Tier t = open();
  std::atomic<uint64_t> blocks{1};
  Intercept sizes(Call::kFstatvfs, [&](Arguments& a) {
    a.fs->f_frsize = kBlock;
    a.fs->f_bavail = blocks;
    return 0;
  });
  std::atomic<int> calls{0};
  Intercept writes(Call::kPwrite, count(&calls));
  EXPECT_FALSE(t.reserve(2 * kBlock));
  clock_.advance_ms(10000);
  EXPECT_FALSE(t.probe());
  EXPECT_EQ(calls, 0);
  blocks = 2;
  clock_.advance_ms(20000);
  EXPECT_TRUE(t.probe());
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(t.reserve(2 * kBlock));
}

TEST_F(ProbeErrorsTest, AProbeLeavesNoFile) {
  for (const bool has_tmpfile : {true, false}) {
    Tier t = has_tmpfile ? open() : open_without_tmpfile();
    t.close("a test");
    clock_.advance_ms(10000);
    std::atomic<int> removals{0};
    Intercept removed(Call::kUnlinkat, count(&removals));
    EXPECT_TRUE(t.probe());
    EXPECT_EQ(removals, has_tmpfile ? 0 : 1) << "a file without a name needs no removal";
    EXPECT_EQ(files_on(t), 0);
  }
}

}  // namespace
}  // namespace monarch
