// SPDX-License-Identifier: Apache-2.0
// The placement handler with real directories: copies, and what can go wrong.
#include "runtime/placement/placement.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "runtime/placement/copying.h"
#include "tests/placement_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

// ---- what fits

TEST_F(PlacementTest, PrefetchPlacesTheWholeDataset) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  std::vector<std::pair<std::string, struct stat>> files;
  uint64_t bytes = 0, space = 0;
  for (uint32_t i = 0; i < 200; ++i) {
    const std::string name = "d" + std::to_string(i % 7) + "/e/f" + std::to_string(i);
    const size_t size = i % 10 == 0 ? 0 : (i * 7919) % 30000;
    scratch_.file("pfs/" + name, noise(size, i));
    fs::permissions(pfs_ + "/" + name, static_cast<fs::perms>(i % 3 ? 0644 : 0400));
    files.emplace_back(name, source_stat(name));
    bytes += size;
    space += (size + 4095) / 4096 * 4096;
  }
  start();
  walk();
  for (const auto& [name, st] : files) ASSERT_TRUE(placed_at_last(name)) << name;
  for (const auto& [name, st] : files) expect_placed(name, st);
  placement_->stop();
  EXPECT_EQ(tier().used(), space);
  EXPECT_EQ(files_on(), 200);
  EXPECT_EQ(counter(AgentCounter::walk_files), 200u);
  EXPECT_EQ(counter(AgentCounter::walk_dirs), 30u) << "each twice: they changed not long ago";
  EXPECT_EQ(counter(AgentCounter::walk_errors), 0u);
  EXPECT_EQ(counter(AgentCounter::staged_files), 200u);
  EXPECT_EQ(counter(AgentCounter::prefetch_files), 200u);
  EXPECT_EQ(counter(AgentCounter::demand_files), 0u);
  EXPECT_EQ(counter(AgentCounter::staged_bytes), bytes);
  EXPECT_EQ(counter(AgentCounter::dataset_bytes), bytes);
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), 200u) << "each file once";
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), bytes) << "each byte once";
  EXPECT_EQ(tier_totals(*board_->get(), 0).placed_bytes, bytes);
}

TEST_F(PlacementTest, CopiesOnTheProcessorsThatItIsGiven) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "there is one";
  cpu_set_t own;
  ASSERT_EQ(::sched_getaffinity(0, sizeof own, &own), 0);
  int processor = 0;
  while (!CPU_ISSET(processor, &own)) ++processor;
  scratch_.file("pfs/one", "x");
  start();
  placement_->move_to(std::to_string(processor));
  EXPECT_EQ(state_of(demand("one")), State::kPlaced);
  EXPECT_TRUE(eventually([&] {
    for (const auto& task : fs::directory_iterator("/proc/self/task")) {
      cpu_set_t its;
      if (::sched_getaffinity(std::stoi(task.path().filename()), sizeof its, &its) == 0 &&
          CPU_COUNT(&its) == 1)
        return true;
    }
    return false;
  }));
}

// As on an XFS of inodes without large times, beyond 2038. What is not known by its mtime would be no copy to
// tasks.
TEST_F(PlacementTest, AFileWhoseTimeTheTierDoesNotKeepStaysOnThePfs) {
  config_.stage_wait_max = 1 << 20;
  scratch_.file("pfs/small", noise(1000, 1));
  scratch_.file("pfs/large", noise(2 << 20, 2));
  scratch_.file("pfs/other", noise(1000, 3));
  start();
  {
    const Intercept looks(Call::kFstatResult, [](Arguments& a) {
      if (S_ISREG(a.st->st_mode) && (a.st->st_mode & 0777) == 0400) a.st->st_mtim = {0x7fffffff, 0};
      return 0;
    });
    demand("small");
    demand("large");
    placement_->demand_chunk(rel("large"), 0);
    const uint64_t kLeft = state_word(State::kNoFit, Reason::kTierError);
    EXPECT_TRUE(eventually([&] { return word("small") == kLeft && word("large") == kLeft; }));
  }
  EXPECT_EQ(counter(AgentCounter::tier_errors), 2u);
  EXPECT_FALSE(tier().closed()) << "it takes others";
  EXPECT_TRUE(eventually([&] { return tier().used() == 0 && files_on() == 0; }));
  EXPECT_EQ(state_of(demand("other")), State::kPlaced);
}

// ---- what does not fit

TEST_F(PlacementTest, WhatDoesNotFitStaysOnThePfs) {
  tiers_[0].quota.bytes = 10 * 4096;
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (uint32_t i = 0; i < 30; ++i) scratch_.file("pfs/f" + std::to_string(i), noise(4096, i));
  start();
  walk();
  ASSERT_TRUE(eventually([&] { return counter(AgentCounter::staged_files) == 10; }));
  int placed = 0, no_fit = 0;
  for (uint32_t i = 0; i < 30; ++i) {
    const std::string name = "f" + std::to_string(i);
    demand(name);  // prefetch may have ended by then
    placed += state(name) == State::kPlaced;
    no_fit += word(name) == state_word(State::kNoFit);
  }
  EXPECT_EQ(placed, 10);
  EXPECT_EQ(no_fit, 20);
  EXPECT_EQ(files_on(), 10);
  EXPECT_EQ(tier().used(), 10u * 4096);
  placement_->stop();
  EXPECT_EQ(counter(AgentCounter::no_fit_files), 20u);
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), 10u * 4096) << "what does not fit is not read";
}

// ---- demand

TEST_F(PlacementTest, WithoutPrefetchOnlyWhatIsAskedForIsRead) {
  scratch_.file("pfs/f", noise(10000, 1));
  scratch_.file("pfs/g", noise(10000, 2));
  const struct stat st = source_stat("f");
  start();
  walk();
  demand("f");
  expect_placed("f", st);
  EXPECT_EQ(word("g"), state_word(State::kKnown));
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), 1u);
}

TEST_F(PlacementTest, ManyThreadsThatAskForOneFileMakeItReadOnce) {
  scratch_.file("pfs/f", noise(3 << 20, 1));
  const struct stat st = source_stat("f");
  start();
  Threads(64, [&](uint32_t) {
    for (int turn = 0; turn < 10; ++turn) placement_->demand(rel("f"));
  }).join();
  ASSERT_TRUE(settles("f"));
  placement_->stop();
  expect_placed("f", st);
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), 1u);
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), 3u << 20);
  EXPECT_EQ(files_on(), 1);
}

TEST_F(PlacementTest, WhoWaitsIsWoken) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  std::atomic<uint32_t>* parking = &(*board_)->parking[rel("f").hash % kParking];
  const uint32_t before = *parking;
  demand("f");
  EXPECT_TRUE(eventually([&] { return *parking != before; }));
  const uint32_t after = *parking;
  std::atomic<uint32_t>* of_missing = &(*board_)->parking[rel("missing").hash % kParking];
  const uint32_t missing_before = *of_missing;
  demand("missing");
  EXPECT_TRUE(eventually([&] { return *of_missing != missing_before; }));
  EXPECT_NE(after, before);
}

// By a write that has not reached the file yet, or whose time is the old one.
TEST_F(PlacementTest, AFileWrittenWhileItIsCopiedIsNotPublished) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  std::atomic<int> reads{0};
  Intercept copying(Call::kPread, [&](Arguments&) {
    ++reads;
    set_invalid(board_->get(), rel("f").hash);
    return 0;
  });
  demand("f");
  EXPECT_GT(reads, 0) << "it was being copied by then";
  expect_given_up("f", State::kDropped, Reason::kChanged);
}

// ---- what is no regular file of the dataset

// The catalog is the job owner's to write: the number of a root in it may be any.
TEST_F(PlacementTest, ARootThatIsNoneIsNotWatched) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  watches_ = true;
  scratch_.file("pfs/d/f", noise(1000, 1));
  prepare();
  const Ref ref = catalog_->add(rel("d/f"), DT_REG);
  catalog_->entry(ref).root = 77;
  place();
  placement_->catalog_grew();
  EXPECT_TRUE(eventually([&] { return counter(AgentCounter::agent_opens_pfs) == 1; }));
  placement_.reset();
  watch_.reset();
}

TEST_F(PlacementTest, OtherThanRegularFilesPass) {
  scratch_.file("pfs/d/f", "x");
  fs::create_symlink("d/f", pfs_ + "/link");
  fs::create_directory_symlink("d", pfs_ + "/dirlink");
  fs::create_symlink("nowhere", pfs_ + "/dangling");
  ASSERT_EQ(::mkfifo((pfs_ + "/fifo").c_str(), 0600), 0);
  start();
  EXPECT_EQ(demand("d"), state_word(State::kPass, Reason::kNotRegular));
  EXPECT_EQ(demand("fifo"), state_word(State::kPass, Reason::kNotRegular));
  EXPECT_EQ(demand("link"), state_word(State::kPass, Reason::kSymlink));
  EXPECT_EQ(demand("dangling"), state_word(State::kPass, Reason::kSymlink));
  EXPECT_EQ(demand("dirlink/f"), state_word(State::kPass, Reason::kSymlink));
  EXPECT_EQ(demand("missing"), state_word(State::kPass, Reason::kMissing));
  EXPECT_EQ(demand("missing/f"), state_word(State::kPass, Reason::kMissing));
  EXPECT_EQ(demand("d/f/below"), state_word(State::kPass, Reason::kMissing));
  EXPECT_EQ(counter(AgentCounter::pass_files), 8u);
  EXPECT_EQ(counter(AgentCounter::source_errors), 0u);
  EXPECT_EQ(files_on(), 0);
  EXPECT_EQ(demand("d/f"), state_word(State::kPlaced)) << "the real one";
}

TEST_F(PlacementTest, AFileThatBecameAFifoDoesNotHang) {
  scratch_.file("pfs/f", "x");
  start();
  walk();
  fs::remove(pfs_ + "/f");
  ASSERT_EQ(::mkfifo((pfs_ + "/f").c_str(), 0600), 0);
  EXPECT_EQ(demand("f"), state_word(State::kPass, Reason::kNotRegular));
}

TEST_F(PlacementTest, UnreadableFilesPass) {
  scratch_.file("pfs/f", "x");
  start();
  Intercept opens(Call::kOpenBeneath, [](Arguments& a) { return (a.flags & O_PATH) ? 0 : EACCES; });
  demand("f");
  expect_given_up("f", State::kPass, Reason::kUnreadable);
  EXPECT_EQ(counter(AgentCounter::pass_files), 1u);
}

TEST_F(PlacementTest, OtherFileSystemsPass) {
  scratch_.dir("pfs/mounted");
  uint64_t of_file = 0;
  bool is_walked = false;
  Ref found = 0;
  if (!with_tmpfs(pfs_ + "/mounted", 1 << 20, [&] {
        scratch_.file("pfs/mounted/f", "x");
        start();
        walk();
        is_walked = walked();
        found = catalog_->reader().find(rel("mounted/f")).ref;
        of_file = demand("mounted/f");
        walker_.reset();
        placement_->stop();
      }))
    GTEST_SKIP() << "mounting needs root";
  EXPECT_TRUE(is_walked);
  EXPECT_EQ(found, 0u) << "the walk stays on the root's file system";
  EXPECT_EQ(of_file, state_word(State::kPass, Reason::kOtherDevice));
}

TEST_F(PlacementTest, DirectoriesOfWhatIsAskedForAreWatched) {
  watches_ = true;
  scratch_.file("pfs/d/f", noise(1000, 1));
  start();
  EXPECT_EQ(demand("d/f"), state_word(State::kPlaced));
  std::ofstream(pfs_ + "/d/f") << "by a program without the library";
  EXPECT_TRUE(eventually([&] { return is_invalid(*board_->get(), rel("d/f").hash); }));
  placement_.reset();
  watch_.reset();
}

// A copy of what the walk by now knows as a directory is entered nowhere.
TEST_F(PlacementTest, ACopyThatCannotBeEnteredIsGivenBack) {
  const Scratch memory("/dev/shm");
  for (const bool prefetched : {false, true, false}) {  // the last one in memory
    SCOPED_TRACE(prefetched);
    if (config_.prefetch == AgentConfig::Prefetch::kOn) tiers_ = {tier_config(memory, "ram", 1 << 30)};
    config_.prefetch = prefetched ? AgentConfig::Prefetch::kOn : AgentConfig::Prefetch::kOff;
    scratch_.file("pfs/f", noise(1000, 1));
    start();
    {
      const Intercept names(Call::kLinkat, [&](Arguments&) {
        catalog_->add(rel("f"), DT_DIR);
        return 0;
      });
      if (prefetched) {
        catalog_->add(rel("f"), DT_UNKNOWN);
        placement_->catalog_grew();
      } else {
        placement_->demand(rel("f"));
      }
      ASSERT_TRUE(eventually([&] { return state("f") == State::kNoFit; }));
      EXPECT_TRUE(eventually([&] { return tier().used() == 0; }));
    }
    expect_given_up("f", State::kNoFit, Reason::kNone);
    EXPECT_EQ(counter(AgentCounter::no_fit_files), 1u);
    EXPECT_EQ((*board_)->placed_bytes[0], 0u);
    EXPECT_FALSE(tier().closed());
    end();
  }
}

TEST_F(PlacementTest, ASparseCopyTakesWhatItOccupies) {
  fs::resize_file(scratch_.file("pfs/f", "start"), 5 << 20);
  const struct stat st = source_stat("f");
  if (!is_sparse(st)) GTEST_SKIP() << "files have no holes here";
  start();
  {
    const Intercept cuts(Call::kFtruncate, EIO);
    demand("f");
    expect_given_up("f", State::kNoFit, Reason::kTierError);
    EXPECT_TRUE(tier().closed());
  }
  end();
  start();
  demand("f");
  expect_placed("f", st);
  EXPECT_LE(tier().used(), 64u << 10);
}

TEST_F(PlacementTest, InMemoryNoDeviceIsWaitedFor) {
  const Scratch memory("/dev/shm");
  tiers_ = {tier_config(memory, "ram", 1 << 30)};
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  {
    const Intercept lost(Call::kFinishSync, [](Arguments&) {
      ADD_FAILURE();
      return EIO;
    });
    EXPECT_EQ(demand("f"), state_word(State::kPlaced));
    placement_->stop();
  }
  EXPECT_EQ(state("f"), State::kPlaced);
  end();
}

// ---- a source that fails or changes while it is copied

struct SourceFault {
  const char* name;
  std::function<int(const std::string& file, Arguments& a)> at_read;
  State state;
  Reason reason;
  AgentCounter counter;
};
void PrintTo(const SourceFault& fault, std::ostream* out) { *out << fault.name; }

class SourceFaults : public PlacementTest, public ::testing::WithParamInterface<SourceFault> {};

TEST_P(SourceFaults, NothingIsPublished) {
  constexpr size_t kBytes = (2 << 20) + 1000;  // three reads
  const std::string file = scratch_.file("pfs/f", noise(kBytes, 1));
  scratch_.file("pfs/other", noise(1000, 1));
  // Its time is in the past: a change is not taken for the write that made it.
  fs::last_write_time(file, fs::file_time_type::clock::now() - std::chrono::hours(1));
  start();
  std::atomic<bool> done{false};
  {
    Intercept reads(Call::kPread, [&](Arguments& a) {
      return a.offset == 0 || done.exchange(true) ? 0 : GetParam().at_read(file, a);
    });
    demand("f");
  }
  EXPECT_TRUE(done);
  expect_given_up("f", GetParam().state, GetParam().reason);
  EXPECT_EQ(counter(GetParam().counter), 1u);
  EXPECT_FALSE(tier().closed()) << "it is not the tier's fault";
  EXPECT_EQ(state_of(demand("other")), State::kPlaced) << "others are staged";
}

INSTANTIATE_TEST_SUITE_P(
    AtTheSecondRead, SourceFaults,
    ::testing::Values(SourceFault{"IoError", [](const std::string&, Arguments&) { return EIO; }, State::kPass,
                                  Reason::kSourceError, AgentCounter::source_errors},
                      SourceFault{"StaleHandle", [](const std::string&, Arguments&) { return ESTALE; },
                                  State::kDropped, Reason::kChanged, AgentCounter::dropped_files},
                      SourceFault{"EndsEarly",
                                  [](const std::string&, Arguments& a) {
                                    a.bytes = 0;
                                    return 0;
                                  },
                                  State::kDropped, Reason::kChanged, AgentCounter::dropped_files},
                      SourceFault{"Shrinks",
                                  [](const std::string& file, Arguments& a) {
                                    fs::resize_file(file, static_cast<uintmax_t>(a.offset) + 10);
                                    return 0;
                                  },
                                  State::kDropped, Reason::kChanged, AgentCounter::dropped_files},
                      SourceFault{"Grows",
                                  [](const std::string& file, Arguments&) {
                                    std::ofstream(file, std::ios::app) << "more";
                                    return 0;
                                  },
                                  State::kDropped, Reason::kChanged, AgentCounter::dropped_files},
                      SourceFault{"IsWritten",
                                  [](const std::string& file, Arguments&) {
                                    std::fstream(file, std::ios::in | std::ios::out) << "other";
                                    return 0;
                                  },
                                  State::kDropped, Reason::kChanged, AgentCounter::dropped_files},
                      SourceFault{"IsReplaced",
                                  [](const std::string& file, Arguments&) {
                                    fs::copy_file(file, file + ".new");
                                    fs::last_write_time(file + ".new", fs::last_write_time(file));
                                    fs::rename(file + ".new", file);
                                    return 0;
                                  },
                                  State::kDropped, Reason::kChanged, AgentCounter::dropped_files},
                      SourceFault{"IsRemoved",
                                  [](const std::string& file, Arguments&) {
                                    fs::remove(file);
                                    return 0;
                                  },
                                  State::kDropped, Reason::kChanged, AgentCounter::dropped_files}),
    [](const ::testing::TestParamInfo<SourceFault>& fault) { return fault.param.name; });

TEST_F(PlacementTest, ShortReadsAndWritesLoseNothing) {
  scratch_.file("pfs/f", noise((1 << 20) + 12345, 1));
  const struct stat st = source_stat("f");
  start();
  Intercept reads(Call::kPread, [](Arguments& a) {
    a.bytes = std::min<size_t>(a.bytes, 77777);
    return 0;
  });
  Intercept writes(Call::kPwrite, [](Arguments& a) {
    a.bytes = std::min<size_t>(a.bytes, 5003);
    return 0;
  });
  demand("f");
  expect_placed("f", st);
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), static_cast<uint64_t>(st.st_size));
}

TEST_F(PlacementTest, AnOpenThatFailsGivesTheFileUp) {
  for (const char* name : {"stale", "io"}) scratch_.file("pfs/" + std::string(name), "x");
  start();
  Intercept opens(Call::kOpenBeneath, [](Arguments& a) {
    if (a.flags & O_PATH) return 0;
    return std::string(a.path) == "stale" ? ESTALE : EIO;
  });
  EXPECT_EQ(demand("stale"), state_word(State::kPass, Reason::kSourceError));
  EXPECT_EQ(demand("io"), state_word(State::kPass, Reason::kSourceError));
  EXPECT_EQ(counter(AgentCounter::source_errors), 2u);
  EXPECT_EQ(files_on(), 0);
}

// ---- a tier that fails

struct TierFault {
  const char* name;
  Call call;
  int error;
  bool tmpfile;
};
void PrintTo(const TierFault& fault, std::ostream* out) { *out << fault.name; }

class TierFaults : public PlacementTest, public ::testing::WithParamInterface<TierFault> {};

TEST_P(TierFaults, TheTierIsClosedAndLaterTriedAgain) {
  scratch_.file("pfs/f", noise((1 << 20) + 1000, 1));
  scratch_.file("pfs/next", noise(1000, 2));
  scratch_.file("pfs/later", noise(1000, 3));
  const struct stat next = source_stat("next"), later = source_stat("later");
  add_tier("disk", 1 << 20);
  Intercept opens(Call::kOpenat, [&](Arguments& a) {
    return !GetParam().tmpfile && (a.flags & O_TMPFILE) == O_TMPFILE ? EOPNOTSUPP : 0;
  });
  start();
  {
    Intercept fault(GetParam().call, GetParam().error);
    demand("f");
    expect_given_up("f", State::kNoFit, Reason::kTierError);
    EXPECT_EQ(counter(AgentCounter::tier_errors), 1u);
    EXPECT_TRUE(tier().closed());
    EXPECT_EQ(catalog_->header().tiers[0].failed, GetParam().error == EIO ? 1u : 0u);
  }
  demand("next");
  expect_placed("next", next, 1);
  demand("later");
  expect_placed("later", later, 1);
  ASSERT_TRUE(eventually([&] { return !tier().closed() && state("f") == State::kKnown; }));
  const struct stat first = source_stat("f");
  demand("f");
  expect_placed("f", first, 0);
}

INSTANTIATE_TEST_SUITE_P(Of, TierFaults,
                         ::testing::Values(TierFault{"NoSpaceToAllocate", Call::kFallocate, ENOSPC, true},
                                           TierFault{"NoSpaceToWrite", Call::kPwrite, ENOSPC, true},
                                           TierFault{"WriteError", Call::kPwrite, EIO, true},
                                           TierFault{"NoDirectory", Call::kMkdirat, EROFS, true},
                                           TierFault{"NoTimes", Call::kFutimens, EIO, true},
                                           TierFault{"NoName", Call::kLinkat, EIO, true},
                                           TierFault{"NoSpaceToAllocateNoTmpfile", Call::kFallocate, ENOSPC,
                                                     false},
                                           TierFault{"WriteErrorNoTmpfile", Call::kPwrite, EIO, false},
                                           TierFault{"NoNameNoTmpfile", Call::kRenameat, EIO, false}),
                         [](const ::testing::TestParamInfo<TierFault>& fault) { return fault.param.name; });

// ---- stopping

TEST_F(PlacementTest, StopEndsACopyInTheMiddle) {
  for (const bool tmpfile : {true, false}) {
    Intercept opens(Call::kOpenat, [&](Arguments& a) {
      return !tmpfile && (a.flags & O_TMPFILE) == O_TMPFILE ? EOPNOTSUPP : 0;
    });
    scratch_.file("pfs/f", noise((4 << 20) - 1, 1));
    start();
    std::atomic<int> reads{0};
    std::atomic<bool> held{true};
    Intercept slow(Call::kPread,
                   [&](Arguments&) { return ++reads != 3 || eventually([&] { return !held; }) ? 0 : EIO; });
    placement_->demand(rel("f"));
    ASSERT_TRUE(eventually([&] { return reads == 3; }));
    std::thread stopper([&] { placement_->stop(); });
    EXPECT_TRUE(quiet());
    held = false;
    stopper.join();
    EXPECT_EQ(reads, 3) << "it finishes the piece that it is copying, no more";
    EXPECT_NE(state("f"), State::kPlaced);
    EXPECT_EQ(files_on(), 0);
    EXPECT_EQ(tier().used(), 0u);
    EXPECT_FALSE(tier().closed());
    EXPECT_EQ(counter(AgentCounter::tier_errors), 0u);
    EXPECT_EQ(counter(AgentCounter::put_off_files), 0u) << "nothing was short";
    end();
  }
}

TEST_F(PlacementTest, StopWithWorkWaitingAndStopTwice) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (uint32_t i = 0; i < 300; ++i) scratch_.file("pfs/f" + std::to_string(i), noise(1000, i));
  start();
  start_walk();
  for (uint32_t i = 0; i < 300; ++i) placement_->demand(rel("f" + std::to_string(i)));
  walker_->stop();
  placement_->stop();
  const uint64_t opens = counter(AgentCounter::agent_opens_pfs);
  placement_->demand(rel("f1"));
  placement_->stop();
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), opens);
  uint64_t placed = 0;
  for (uint32_t i = 0; i < 300; ++i) placed += state("f" + std::to_string(i)) == State::kPlaced;
  // A prefetched copy that is not on its device yet has its name, and nobody opens it.
  EXPECT_LE(placed, static_cast<uint64_t>(files_on()));
  EXPECT_EQ(tier().used(), static_cast<uint64_t>(files_on()) * 4096);
}

TEST_F(PlacementTest, ItStartsWithTheThreadsThatThereAre) {
  scratch_.file("pfs/f", "content");
  config_.threads = 4;
  for (const int there : {0, 1, 4}) {
    prepare();
    make_placement();
    int asked = 0;
    {
      const Intercept threads(Call::kStartThread, [&](Arguments&) { return ++asked > there ? EAGAIN : 0; });
      EXPECT_EQ(placement_->start().ok(), there > 0);
    }
    EXPECT_EQ(asked, there < 4 ? there + 1 : 4) << "after a refusal no more are asked for";
    if (there > 0) {
      EXPECT_EQ(state_of(demand("f")), State::kPlaced) << there;
    }
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  }
}

}  // namespace
}  // namespace monarch
