// SPDX-License-Identifier: Apache-2.0
// Calls of runtime/hierarchy/tier.cc that fail: what is told of it, what is left, and what is not even
// called.

#include <utility>

#include "tests/faulty_os.h"
#include "tests/manual_clock.h"
#include "tests/stores.h"
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
  enum { kSafe, kUnsafe, kNotOpened };
  // Whether a tier below this directory is unsafe.
  static int safety(const std::string& above) {
    TierConfig config;
    config.path = above;
    config.quota.bytes = kMiB;
    config.min_free = Quota{};
    const Result<Tier> opened = Tier::open(config, kJob);
    if (!opened.ok()) return kNotOpened;
    ::rmdir(opened->copies_path().c_str());
    return opened->unsafe() ? kUnsafe : kSafe;
  }
  Tier open() {
    const std::vector<StoreEnds> root = stores_.start({config()}, kJob);
    Result<Tier> opened = Tier::open(config(), kJob, clock_, root.empty() ? nullptr : &root[0]);
    EXPECT_TRUE(opened.ok()) << opened.error().text;
    return opened.take();
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
  ManualClock clock_;
  Scratch scratch_;
  Stores stores_;
};

template <typename Outcome>
int code_of(const Outcome& outcome) {
  return outcome.ok() ? 0 : outcome.error().code;
}

TEST_F(TierErrorsTest, APathWithoutRoomForTheNamesOfCopiesIsRefused) {
  TierConfig longest = config();
  longest.path.resize(kPathBytes - kCopyNameBytes - kJob.size() - 1, '/');
  EXPECT_TRUE(Tier::open(longest, kJob).ok());
  const std::string one_more = kJob + "s";
  EXPECT_EQ(code_of(Tier::open(longest, one_more)), ENAMETOOLONG);
  EXPECT_FALSE(fs::exists(scratch_ / ("a/" + one_more)));
}

TEST_F(TierErrorsTest, IsUnsafeWhereOthersCanReplaceTheDirectory) {
  const std::string above = scratch_.dir("a");
  struct Case {
    uid_t owner;
    mode_t mode;
    int is;
  };
  constexpr uid_t kOther = 65534;
  const uid_t own = ::geteuid();
  for (const Case& c : {Case{own, 0700, kSafe},
                        {own, 0755, kSafe},
                        {own, 01777, kSafe},
                        {own, 01720, kSafe},
                        {own, 0720, kUnsafe},
                        {own, 0702, kUnsafe},
                        {own, 0777, kUnsafe},
                        {kOther, 0755, kUnsafe},
                        {kOther, 01777, kUnsafe}}) {
    if (c.owner != own && own != 0) continue;
    ASSERT_EQ(::chown(above.c_str(), c.owner, static_cast<gid_t>(-1)), 0);
    ASSERT_EQ(::chmod(above.c_str(), c.mode), 0);
    EXPECT_EQ(safety(above), c.is) << std::oct << c.mode;
  }
  const std::string unseen = scratch_.dir("unseen");
  const Intercept looks(Call::kFstatat, EACCES);
  EXPECT_EQ(safety(unseen), kUnsafe) << "it could not be looked at";
}

TEST_F(TierErrorsTest, IsSafeBelowADirectoryOfRootOrOfTheUser) {
  EXPECT_EQ(as_nobody([&] { return safety(Scratch().path()); }), kSafe);
  if (::geteuid() != 0) return;
  const std::string roots = scratch_.dir("a");
  ASSERT_EQ(::chmod(scratch_.path().c_str(), 0755), 0);
  for (const auto& [mode, is] : {std::pair(01777, kSafe), {0777, kUnsafe}}) {
    ASSERT_EQ(::chmod(roots.c_str(), static_cast<mode_t>(mode)), 0);
    EXPECT_EQ(as_nobody([&] { return safety(roots); }), is) << std::oct << mode;
  }
}

TEST_F(TierErrorsTest, ACopyIsPublishedWhereItsDirectoryIsGone) {
  for (const bool in_part : {false, true}) {
    Tier t = open();
    ASSERT_TRUE(t.create(kEntry, 0).ok());
    fs::remove(bucket_of(t, kEntry));
    const Result<Fd> file = in_part ? t.create_part(kEntry, 1, 3) : t.create(kEntry, 0);
    ASSERT_TRUE(file.ok()) << file.error().text;
    write(*file, "new");
    fs::remove(bucket_of(t, kEntry));
    const Status published = in_part ? publish_part(&t, *file, kEntry) : publish(&t, *file, kEntry);
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
  const auto replace = [&] {
    const Result<Fd> file = t.create(kEntry, 0);
    EXPECT_TRUE(file.ok()) << file.error().text;
    write(*file, "new");
    return publish(&t, *file, kEntry);
  };
  {
    const Intercept links(Call::kLinkat, [&](Arguments& a) { return path.ends_with(a.path) ? 0 : EDQUOT; });
    EXPECT_EQ(code_of(replace()), EDQUOT);
  }
  {
    const Intercept renames(Call::kRenameat, EIO);
    EXPECT_EQ(code_of(replace()), EIO);
    EXPECT_EQ(files_on(t), 1) << "a name of the way there is left";
    const Intercept removals(Call::kUnlinkat, EPERM);
    EXPECT_EQ(code_of(replace()), EIO);
  }
  EXPECT_EQ(contents(path), "left over");
  EXPECT_EQ(code_of(replace()), 0);
  EXPECT_EQ(contents(path), "new");
  EXPECT_EQ(files_on(t), 1) << "what could not be removed before";
}

TEST_F(TierErrorsTest, ALeftOverOfAPartialCopyIsReplaced) {
  Tier t = open();
  const std::string path = leave(path_of_part(t, kEntry), "left over");
  const Fd writer(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(writer);
  {
    Intercept opens(Call::kOpenat, once(EIO));
    EXPECT_EQ(code_of(t.create_part(kEntry, 1, 0)), EIO);
    EXPECT_EQ(contents(path), "left over") << "it was in nobody's way";
  }
  {
    Intercept removals(Call::kUnlinkat, EPERM);
    EXPECT_EQ(code_of(t.create_part(kEntry, 1, 0)), EPERM);
  }
  const Result<Fd> part = t.create_part(kEntry, 1, 0);
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
  const auto is_short = [](Arguments& a) {
    a.bytes = 100;
    return 0;
  };
  const auto is_altered = [](Arguments& a) { return ::pwrite(a.fd, "M", 1, 0) == 1 ? 0 : EIO; };
  for (const auto& [call, handler] :
       std::vector<std::pair<Call, Intercept::Handler>>{{Call::kOpenat, fails(EIO)},
                                                        {Call::kFallocate, fails(ENOSPC)},
                                                        {Call::kPwrite, fails(EIO)},
                                                        {Call::kPwrite, is_short},
                                                        {Call::kFinishSync, fails(EIO)},
                                                        {Call::kFinishSync, fails(EROFS)},
                                                        {Call::kPread, fails(EIO)},
                                                        {Call::kPread, is_short},
                                                        {Call::kPread, is_altered}}) {
    SCOPED_TRACE(static_cast<int>(call));
    Tier t = open();
    t.close("a test");
    clock_.advance_ms(10000);
    {
      const Intercept fault(call, handler);
      errno = 0;
      EXPECT_FALSE(t.probe());
    }
    EXPECT_TRUE(t.closed());
    EXPECT_EQ(t.room(), 0u);
    EXPECT_EQ(seconds_left(t), 20);
    clock_.advance_ms(20000);
    EXPECT_TRUE(t.probe());
    EXPECT_FALSE(t.closed());
    EXPECT_GT(t.room(), 0u);
    EXPECT_EQ(seconds_left(t), -1);
    EXPECT_EQ(files_on(t), 0);
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

}  // namespace
}  // namespace monarch
