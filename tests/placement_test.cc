// SPDX-License-Identifier: Apache-2.0
// The placement handler with real directories: copies, and what can go wrong.
#include "runtime/placement/placement.h"

#include "runtime/placement/copying.h"
#include "runtime/placement/credit.h"
#include "tests/gate.h"
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
    space += std::max<size_t>((size + 4095) / 4096 * 4096, is_by_store() ? 4096 : 0);
  }
  start();
  walk();
  for (const auto& [name, st] : files) ASSERT_TRUE(placed_at_last(name)) << name;
  for (const auto& [name, st] : files) expect_placed(name, st);
  placement_->stop();
  EXPECT_EQ(tier().used(), space);
  EXPECT_EQ(files_on(), 200);
  for (const AgentCounter c : {AgentCounter::walk_files, AgentCounter::staged_files,
                               AgentCounter::sized_files, AgentCounter::prefetch_files})
    EXPECT_EQ(counter(c), 200u);
  EXPECT_EQ(counter(AgentCounter::walk_errors) + counter(AgentCounter::demand_files), 0u);
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
  for (const auto& [name, reason] : {std::pair("d", Reason::kNotRegular),
                                     {"fifo", Reason::kNotRegular},
                                     {"link", Reason::kSymlink},
                                     {"dangling", Reason::kSymlink},
                                     {"dirlink/f", Reason::kSymlink},
                                     {"missing", Reason::kMissing},
                                     {"missing/f", Reason::kMissing},
                                     {"d/f/below", Reason::kMissing}})
    EXPECT_EQ(demand(name), state_word(State::kPass, reason)) << name;
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

TEST_F(PlacementTest, OtherFileSystemsPass) {
  scratch_.dir("pfs/mounted");
  uint64_t of_file = 0, of_directory = 0;
  Ref found = 1;
  if (!with_tmpfs(pfs_ + "/mounted", 1 << 20, [&] {
        scratch_.file("pfs/mounted/f", "x");
        start();
        walk();
        found = catalog_->reader().find(rel("mounted/f")).ref;
        of_directory = word("mounted");
        of_file = demand("mounted/f");
        walker_.reset();
        placement_->stop();
      }))
    GTEST_SKIP() << "mounting needs root";
  EXPECT_EQ(found, 0u) << "the walk stays on the root's file system";
  EXPECT_EQ(of_directory, state_word(State::kPass, Reason::kOtherDevice));
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
  for (const auto& [prefetched, in_memory] : {std::pair(false, false), {true, false}, {false, true}}) {
    SCOPED_TRACE(prefetched);
    if (in_memory) tiers_ = {tier_config(memory, "ram", 1 << 30)};
    config_.prefetch = prefetched ? AgentConfig::Prefetch::kOn : AgentConfig::Prefetch::kOff;
    scratch_.file("pfs/f", noise(1000, 1));
    start();
    {
      const Intercept names(Call::kLinkat, [&](Arguments&) { catalog_->add(rel("f"), DT_DIR); });
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
  const Intercept lost(Call::kFinishSync, [](Arguments&) {
    ADD_FAILURE();
    return EIO;
  });
  EXPECT_EQ(demand("f"), state_word(State::kPlaced));
  placement_->stop();
  EXPECT_EQ(state("f"), State::kPlaced);
  end();
}

TEST_F(PlacementTest, WhatOthersLeftNoRoomForIsTriedAgainWhenThereIsRoom) {
  for (const char* name : {"a", "b"}) scratch_.file(std::string("pfs/") + name, noise(100000, 1));
  tiers_[0].min_free.bytes = kMiB;
  start();
  std::atomic<uint64_t> free{2};
  Intercept statvfs(Call::kFstatvfs, [&](Arguments& a) { a.fs->f_bavail = free * kMiB / a.fs->f_frsize; });
  EXPECT_EQ(demand("a"), state_word(State::kPlaced));
  free = 1;  // a rival has written
  EXPECT_EQ(demand("b"), state_word(State::kNoFit, Reason::kTierError));
  EXPECT_FALSE(tier().closed()) << "there may be room for a smaller one";
  const int64_t first = tier().next_probe_ns();
  ASSERT_TRUE(eventually([&] { return tier().next_probe_ns() != first; })) << "there still is no room";
  free = 2;
  ASSERT_TRUE(eventually([&] { return state("b") == State::kKnown; }));
  EXPECT_EQ(demand("b"), state_word(State::kPlaced));
}

TEST_F(PlacementTest, PrefetchKeepsToTheRatesAndDemandDoesNot) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  config_.pfs_opens = 1;
  for (int i = 0; i < 20; ++i) scratch_.file("pfs/" + std::to_string(i), noise(1000, 1));
  start();
  walk();
  pass(500);
  EXPECT_LE(counter(AgentCounter::agent_opens_pfs), 3u) << "20 files were opened at 1 per second";
  for (int i = 0; i < 20; ++i) demand(std::to_string(i));
  EXPECT_EQ(counter(AgentCounter::staged_files), 20u);
}

// Names that are not there take room in the catalog for good: before there are many, tasks are told to look.
TEST_F(PlacementTest, TasksAreToldToLookWhereMuchIsNotThere) {
  scratch_.file("pfs/f", "x");
  start();
  for (int i = 0; i < 60; ++i) demand("none" + std::to_string(i));
  EXPECT_EQ((*board_)->header.stat_before_asking, 0u);
  for (int i = 60; i < 70; ++i) demand("none" + std::to_string(i));
  EXPECT_EQ((*board_)->header.stat_before_asking, 1u);
  for (int i = 0; i < 30; ++i) {
    scratch_.file("pfs/f" + std::to_string(i), "x");
    demand("f" + std::to_string(i));
  }
  EXPECT_EQ((*board_)->header.stat_before_asking, 0u) << "there are more that are there";
}

// ---- stopping

TEST_F(PlacementTest, StopEndsACopyInTheMiddle) {
  scratch_.file("pfs/f", noise((4 << 20) - 1, 1));
  start();
  std::atomic<int> reads{0};
  std::atomic<bool> held{true};
  const Intercept slow(
      Call::kPread, [&](Arguments&) { return ++reads != 3 || eventually([&] { return !held; }) ? 0 : EIO; });
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
  EXPECT_EQ(counter(AgentCounter::tier_errors) + counter(AgentCounter::put_off_files), 0u);
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
    remove_copies();
  }
}

// ---- in which order prefetch copies files of several pieces

constexpr size_t kBytes = Copier::kSeveralPieces;
constexpr uint32_t kFiles = 20;
constexpr uint64_t kPrefetchTurns = 2;
constexpr int kThreads = 8, kForDemand = 2;

class Prefetch : public PlacementTest {
 protected:
  Prefetch() {
    config_.threads = kThreads;
    config_.prefetch = AgentConfig::Prefetch::kOn;
    for (uint32_t i = 0; i < kFiles; ++i) scratch_.file("pfs/" + name(i), noise(kBytes, i));
  }
  static std::string name(uint32_t number) { return "f" + std::to_string(number); }
  static constexpr uint64_t kTrickle = 1024;  // bytes per second: no file becomes whole

  // Until as many files are opened as prefetch will: those that have their turn, and those in line.
  void start_and_fill_the_line() {
    config_.pfs_bandwidth = kTrickle;
    start();
    walk();
    ASSERT_TRUE(eventually([&] { return counter(AgentCounter::agent_opens_pfs) > kPrefetchTurns; }));
  }
};

TEST_F(Prefetch, CopiesFewFilesOfSeveralPiecesAtATime) {
  const Scratch memory("/dev/shm");  // where a file that was copied counts at once: there is no write-back
  tiers_.clear();
  tiers_.push_back(tier_config(memory, "ram", 1 << 30));
  config_.pfs_bandwidth = 128 << 20;
  start();
  start_walk();
  uint64_t most = 0;
  ASSERT_TRUE(eventually([&] {
    const uint64_t read = counter(AgentCounter::agent_bytes_pfs);  // before the other: the difference never
    const uint64_t whole = counter(AgentCounter::staged_bytes);    // shows more than there is
    most = std::max(most, read > whole ? read - whole : 0);
    return whole == kFiles * kBytes;
  }));
  EXPECT_LE(most, kPrefetchTurns * kBytes) << "in files that were not whole yet";
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), kFiles) << "each file once";
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), kFiles * kBytes) << "each byte once";
  EXPECT_EQ(counter(AgentCounter::prefetch_files), kFiles);
}

TEST_F(Prefetch, WhatTheJobWritesWhileItStandsInLineIsNotCopied) {
  start_and_fill_the_line();
  for (uint32_t i = 0; i < kFiles; ++i) set_invalid(board_->get(), rel(name(i)).hash);
  const uint64_t read = counter(AgentCounter::agent_bytes_pfs);
  for (uint32_t i = 0; i < kFiles; ++i) demand(name(i));
  constexpr int kInHand = kThreads - kForDemand;
  EXPECT_LE(files_on(), kInHand) << "no more than a thread had in hand";
  EXPECT_LE(counter(AgentCounter::agent_bytes_pfs) - read, kInHand * kBytes);
}

// A thread that looks for more holds the queue's lock. Who asks for the file waits for it first, then who
// puts the file back.
TEST_F(Prefetch, WhatIsAskedForWhileItIsPutBackIsCopied) {
  struct Gates : PfsSource {
    using PfsSource::PfsSource;
    std::unique_ptr<SourceFile> open(Ref ref, const std::string& path, Need need,
                                     const Copier& copier) override {
      if (path == name(0)) opens.pass();
      return PfsSource::open(ref, path, need, copier);
    }
    bool is_ours(Ref ref) override {
      if (ref == other) looks.pass();
      return true;
    }
    std::atomic<Ref> other = 0;
    Gate opens, looks;
  };
  config_.prefetch = AgentConfig::Prefetch::kAuto;
  config_.prefetch_burst = 3 * PrefetchCredit::kOpenBytes;
  prepare();
  Gates* const gates = make_placement<Gates>();
  gates->opens.shut();
  gates->looks.shut();
  ASSERT_TRUE(placement_->start().ok());
  catalog_->add(rel(name(0)), DT_REG);
  placement_->catalog_grew();
  EXPECT_TRUE(gates->opens.await_waiting(1));
  gates->other = catalog_->add(rel(name(1)), DT_REG);
  std::thread grows([&] { placement_->catalog_grew(); });
  EXPECT_TRUE(gates->looks.await_waiting(1));
  std::thread asks([&] { placement_->demand(rel(name(0))); });
  EXPECT_TRUE(quiet());
  gates->opens.open();
  EXPECT_TRUE(quiet());
  gates->looks.open();
  asks.join();
  grows.join();
  EXPECT_TRUE(placed_at_last(name(0)));
}

TEST_F(Prefetch, StopDoesNotWaitForTheLine) {
  start_and_fill_the_line();
  halt();
  EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
  EXPECT_EQ(files_on(), 0);
}

}  // namespace
}  // namespace monarch
