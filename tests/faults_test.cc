// SPDX-License-Identifier: Apache-2.0
// What can fail while a file is copied, as a whole or in chunks: the table of operation, error and outcome.

#include <utility>

#include "tests/placement_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kUnreadable = state_word(State::kPass, Reason::kUnreadable),
                   kSourceError = state_word(State::kPass, Reason::kSourceError),
                   kChanged = state_word(State::kDropped, Reason::kChanged),
                   kWritten = state_word(State::kDropped, Reason::kWritten),
                   kTierError = state_word(State::kNoFit, Reason::kTierError);

struct Scene {
  std::string source;
  Board* board;
};
using Fails = std::function<int(const Scene&, Arguments&)>;
enum class Way { kWhole, kWithoutTmpfile, kChunks };
enum class Becomes { kOpen, kClosed, kFailed };  // the tier; tasks still open copies on one that is closed

struct Fault {
  std::string name;
  Call call;
  Fails fails;
  uint64_t end;  // of the file
  Becomes tier;
  std::optional<AgentCounter> counted;  // once, and none of the others
  std::vector<Way> ways;
  Way way = Way::kWhole;
};
void PrintTo(const Fault& fault, std::ostream* out) { *out << fault.name; }

Fails always(int error) {
  return [error](const Scene&, Arguments&) { return error; };
}
// The source is opened; a look at what it is succeeds.
Fails unless_it_looks(int error) {
  return [error](const Scene&, Arguments& a) { return a.flags & O_PATH ? 0 : error; };
}
// Of the copy, once it is complete: nobody may write it then.
bool is_complete(const struct stat& st) { return S_ISREG(st.st_mode) && (st.st_mode & 0777) == 0400; }

std::vector<Fault> faults() {
  using C = AgentCounter;
  const std::vector<Way> whole{Way::kWhole}, chunks{Way::kChunks}, both{Way::kWhole, Way::kChunks},
      without{Way::kWithoutTmpfile}, all{Way::kWhole, Way::kWithoutTmpfile, Way::kChunks};
  std::vector<Fault> rows = {
      {"SourceIsUnreadable", Call::kOpenBeneath, unless_it_looks(EACCES), kUnreadable, Becomes::kOpen,
       C::pass_files, whole},
      {"SourceIsUnreadable", Call::kOpenBeneath, always(EACCES), kUnreadable, Becomes::kOpen,
       C::source_errors, chunks},
      {"SourceIsStale", Call::kOpenBeneath, unless_it_looks(ESTALE), kSourceError, Becomes::kOpen,
       C::source_errors, both},
      {"SourceCannotBeOpened", Call::kOpenBeneath, unless_it_looks(EIO), kSourceError, Becomes::kOpen,
       C::source_errors, both},
      {"SourceCannotBeLookedAt", Call::kFstat, always(EIO), kSourceError, Becomes::kOpen, C::source_errors,
       chunks},
      {"NoSpaceToAllocate", Call::kFallocate, always(ENOSPC), kTierError, Becomes::kClosed, C::tier_errors,
       all},
      {"AllocationFails", Call::kFallocate, always(EIO), kTierError, Becomes::kFailed, C::tier_errors, both},
      {"LargerThanFilesMayBe", Call::kFallocate, always(EFBIG), kTierError, Becomes::kOpen, C::tier_errors,
       both},
      {"NoDirectory", Call::kMkdirat, always(EROFS), kTierError, Becomes::kClosed, C::tier_errors, both},
      {"NoSpaceToWrite", Call::kPwrite, always(ENOSPC), kTierError, Becomes::kClosed, C::tier_errors, both},
      {"WriteFails", Call::kPwrite, always(EIO), kTierError, Becomes::kFailed, C::tier_errors, all},
      {"CopyGetsNoTimes", Call::kFutimens, always(EIO), kTierError, Becomes::kFailed, C::tier_errors, both},
      {"CopyCannotBeLookedAt", Call::kFstat,
       [](const Scene&, Arguments& a) {
         struct stat st;
         return ::fstat(a.fd, &st) == 0 && is_complete(st) ? EIO : 0;
       },
       kTierError, Becomes::kFailed, C::tier_errors, both},
      // As on an XFS of inodes without large times, beyond 2038: tasks would not know the copy by its mtime.
      {"TierDoesNotKeepTheTime", Call::kFstatResult,
       [](const Scene&, Arguments& a) {
         if (is_complete(*a.st)) a.st->st_mtim = {0x7fffffff, 0};
         return 0;
       },
       kTierError, Becomes::kOpen, C::tier_errors, both},
      {"CopyGetsNoName", Call::kLinkat, always(EIO), kTierError, Becomes::kFailed, C::tier_errors, whole},
      {"CopyGetsNoName", Call::kRenameat, always(EIO), kTierError, Becomes::kFailed, C::tier_errors, without},
      {"CopyGetsNoName", Call::kRenameat, always(EIO), kTierError, Becomes::kFailed, C::tier_errors, chunks},
      {"CopyIsGone", Call::kRenameat, always(ENOENT), kTierError, Becomes::kOpen, {}, chunks},
      {"NoMemoryForAName", Call::kRenameat, always(ENOMEM), kTierError, Becomes::kOpen, C::put_off_files,
       chunks},
      // The silent loss of shared storage: all calls succeed, write-back does not.
      {"WriteBackFails", Call::kFinishSync, always(EIO), kTierError, Becomes::kFailed, C::tier_errors, both},
  };
  // Short of descriptors or memory, for the source or for the copy: that tells nothing about either.
  for (const int error : {EMFILE, ENFILE, ENOMEM})
    for (const Call call : {Call::kOpenBeneath, Call::kOpenat})
      rows.push_back({std::string(call == Call::kOpenat ? "CopyIsShortOf" : "SourceIsShortOf") +
                          (error == EMFILE   ? "Descriptors"
                           : error == ENFILE ? "Files"
                                             : "Memory"),
                      call, always(error), kTierError, Becomes::kOpen, C::put_off_files, both});
  // Of the second piece of the source.
  const auto at_read = [&](const char* name, const Fails& fails, uint64_t end, C counted,
                           const std::vector<Way>& ways) {
    rows.push_back({name, Call::kPread,
                    [fails, done = false](const Scene& scene, Arguments& a) mutable {
                      return a.offset == 0 || a.bytes == 1 || std::exchange(done, true) ? 0 : fails(scene, a);
                    },
                    end, Becomes::kOpen, counted, ways});
  };
  at_read("ReadFails", always(EIO), kSourceError, C::source_errors, both);
  at_read("SourceBecomesStale", always(ESTALE), kChanged, C::dropped_files, both);
  const auto changes = [&](const char* name,
                           const std::function<void(const std::string&, Arguments&)>& change) {
    at_read(
        name,
        [change](const Scene& scene, Arguments& a) {
          change(scene.source, a);
          return 0;
        },
        kChanged, C::dropped_files, both);
  };
  changes("SourceEndsEarly", [](const std::string&, Arguments& a) { a.bytes = 0; });
  changes("SourceShrinks", [](const std::string& source, Arguments& a) {
    fs::resize_file(source, static_cast<uintmax_t>(a.offset) + 10);
  });
  changes("SourceGrows",
          [](const std::string& source, Arguments&) { std::ofstream(source, std::ios::app) << "more"; });
  changes("SourceIsWritten", [](const std::string& source, Arguments&) {
    std::fstream(source, std::ios::in | std::ios::out) << "other";
  });
  changes("SourceIsReplaced", [](const std::string& source, Arguments&) {
    fs::copy_file(source, source + ".new");
    fs::last_write_time(source + ".new", fs::last_write_time(source));
    fs::rename(source + ".new", source);
  });
  changes("SourceIsRemoved", [](const std::string& source, Arguments&) { fs::remove(source); });
  // Before the first chunk.
  for (const uint64_t bytes : {2, 3})
    rows.push_back({"SourceWasReplacedBy" + std::to_string(bytes) + "M", Call::kOpenBeneath,
                    [bytes, done = false](const Scene& scene, Arguments&) mutable {
                      if (!std::exchange(done, true))
                        std::ofstream(scene.source) << noise(bytes * kMiB + 1000, 2);
                      return 0;
                    },
                    kChanged, Becomes::kOpen, C::dropped_files, chunks});
  // By a write that has not reached the file yet, or whose time is the old one.
  const Fails the_job_writes = [](const Scene& scene, Arguments&) {
    set_invalid(scene.board, rel("f").hash);
    return 0;
  };
  rows.push_back(
      {"JobWritesIt", Call::kPread, the_job_writes, kChanged, Becomes::kOpen, C::dropped_files, whole});
  rows.push_back(
      {"JobWritesIt", Call::kPread, the_job_writes, kWritten, Becomes::kOpen, C::dropped_files, chunks});

  std::vector<Fault> of_each_way;
  for (const Fault& row : rows)
    for (const Way way : row.ways) {
      of_each_way.push_back(row);
      of_each_way.back().way = way;
      of_each_way.back().name += way == Way::kChunks           ? "InChunks"
                                 : way == Way::kWithoutTmpfile ? "NoTmpfile"
                                                               : "";
    }
  return of_each_way;
}

class Faults : public PlacementTest, public ::testing::WithParamInterface<Fault> {
 protected:
  const bool in_chunks_ = GetParam().way == Way::kChunks;
  // Asks for the file. In chunks, what fails does so once it is known to be large.
  void ask(const std::function<void()>& fails = [] {}) {
    if (!in_chunks_) fails();
    placement_->demand(rel("f"));
    if (!in_chunks_) return;
    ASSERT_TRUE(eventually([&] { return state("f") == State::kLarge; }));
    fails();
    placement_->demand_chunk(rel("f"), 0);
  }
  void start_on_its_file_system() {
    const Intercept opens(Call::kOpenat, [](Arguments& a) {
      const bool is_nameless = (a.flags & O_TMPFILE) == O_TMPFILE;
      return GetParam().way == Way::kWithoutTmpfile && is_nameless ? EOPNOTSUPP : 0;
    });
    start();
  }
  bool writes_past_the_page_cache() {
    const Fd file(::open(tier().copies_path().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    return !file || tier().driver().prepare(file.get(), 4 * kMiB, !in_chunks_) != Writing::kBuffered;
  }
};

TEST_P(Faults, LeaveNothingAndSayWhy) {
  const Fault& fault = GetParam();
  if (in_chunks_) config_.stage_wait_max = 2000;
  config_.threads = 1;
  const std::string source = scratch_.file("pfs/f", noise(2 * kMiB + 1000, 1));
  scratch_.file("pfs/other", noise(1000, 2));
  // Its time is in the past: a change is not taken for the write that made it.
  fs::last_write_time(source, fs::file_time_type::clock::now() - std::chrono::hours(1));
  add_tier("disk", kMiB);
  start_on_its_file_system();
  if (fault.call == Call::kFinishSync && writes_past_the_page_cache())
    GTEST_SKIP() << "written past the page cache here";
  {
    const Scene scene{source, board_->get()};
    std::optional<Intercept> fails;
    ask([&] { fails.emplace(fault.call, [&](Arguments& a) { return fault.fails(scene, a); }); });
    ASSERT_TRUE(eventually([&] {
      return word("f") == fault.end && (!fault.counted || counter(*fault.counted) == 1);
    })) << word("f");
    EXPECT_TRUE(
        eventually([&] { return tier().used() == 0 && files_on() == 0 && (*board_)->placed_bytes[0] == 0; }));
  }
  EXPECT_EQ(tier().promised(), 0u);
  for (const AgentCounter c : {AgentCounter::source_errors, AgentCounter::tier_errors,
                               AgentCounter::put_off_files, AgentCounter::dropped_files})
    EXPECT_EQ(counter(c), c == fault.counted ? 1u : 0u);
  const bool stays = fault.tier == Becomes::kOpen;
  EXPECT_EQ(tier().closed(), !stays);
  EXPECT_EQ(catalog_->header().tiers[0].failed, fault.tier == Becomes::kFailed ? 1u : 0u);
  EXPECT_EQ(demand("other"), state_word(State::kPlaced, Reason::kNone, stays ? 0 : 1)) << "others are staged";
  if (stays && fault.counted != AgentCounter::put_off_files) return;
  ASSERT_TRUE(eventually([&] { return !tier().closed() && state("f") == State::kKnown; }))
      << "it is tried again";
  const struct stat st = source_stat("f");
  ask();
  ASSERT_TRUE(placed_at_last("f"));
  expect_placed("f", st);
}

INSTANTIATE_TEST_SUITE_P(Of, Faults, ::testing::ValuesIn(faults()),
                         [](const ::testing::TestParamInfo<Fault>& fault) { return fault.param.name; });

// ---- copies that do not reach their device

class LostCopies : public PlacementTest {
 protected:
  LostCopies() { scratch_.file("pfs/f", noise(100000, 1)); }
  bool is_lost() {
    return eventually([&] { return word("f") == kTierError && counter(AgentCounter::tier_errors) == 1; });
  }
};

// Nobody waits for it, so nobody has it open when its write-back fails: it never was published.
TEST_F(LostCopies, APrefetchedCopyIsPublishedOnceItIsOnItsDevice) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  start();
  Held device(Call::kFinishSync, EIO);
  start_walk();
  ASSERT_TRUE(eventually([&] { return device.is_reached(); }));
  EXPECT_EQ(state("f"), State::kStaging) << "it may still be lost";
  device.go_on();
  ASSERT_TRUE(is_lost());
  ASSERT_TRUE(eventually([&] { return files_on() == 0 && tier().used() == 0; }));
  EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
}

TEST_F(LostCopies, WhoWaitsForAPrefetchedCopyDoesNotWaitForItsDevice) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  const struct stat st = source_stat("f");
  start();
  Held device(Call::kFinishSync);
  start_walk();
  ASSERT_TRUE(eventually([&] { return device.is_reached(); }));
  demand("f");
  expect_placed("f", st);
  device.go_on();
  placement_->stop();
  EXPECT_EQ(counter(AgentCounter::staged_files), 1u);
  EXPECT_EQ(tier().used(), tier().space_of(100000));
}

TEST_F(LostCopies, OneThatIsOpenOrCannotBeRemovedKeepsItsSpace) {
  for (const bool is_open : {true, false}) {
    SCOPED_TRACE(is_open);
    start();
    Held device(Call::kFinishSync, EIO);
    ASSERT_EQ(state_of(demand("f")), State::kPlaced);
    std::optional<Intercept> kept;
    Fd reader;
    if (is_open)
      reader = Fd(::open(copy_of("f").c_str(), O_RDONLY | O_CLOEXEC));
    else
      kept.emplace(Call::kUnlinkat, EPERM);
    device.go_on();
    ASSERT_TRUE(is_lost());
    placement_->stop();
    EXPECT_EQ(files_on(), is_open ? 0 : 1);
    EXPECT_EQ(tier().used(), tier().space_of(100000)) << "its space is not free";
    reader.reset();
    end();
  }
}

}  // namespace
}  // namespace monarch
