// SPDX-License-Identifier: Apache-2.0
// Large files: staged in chunks, or in part.
#include "tests/placement_fixture.h"

#include <utility>

#include "runtime/placement/copying.h"
#include "tests/gate.h"

namespace monarch {
namespace {

class LargeFiles : public PlacementTest {
 protected:
  LargeFiles() { config_.stage_wait_max = 1000; }
  void ask(const std::string& name, uint32_t chunk = 0) { placement_->demand_chunk(rel(name), chunk); }
  uint64_t bytes_read() const { return counter(AgentCounter::agent_bytes_pfs); }
};

class LargeFile : public LargeFiles, public ::testing::WithParamInterface<bool> {};

TEST_P(LargeFile, IsKnownAsLargeUntilItIsPlaced) {
  config_.prefetch = GetParam() ? AgentConfig::Prefetch::kOn : AgentConfig::Prefetch::kOff;
  scratch_.file("pfs/large", noise(3 * kMiB, 1));
  scratch_.file("pfs/small", noise(1000, 2));
  const struct stat large = source_stat("large"), small = source_stat("small");
  start();
  std::atomic<bool> held{true};
  const Intercept reads(Call::kPread, [&](Arguments& a) {
    return a.bytes <= 1001 || eventually([&] { return !held; }) ? 0 : EIO;
  });
  if (GetParam())
    walk();
  else
    placement_->demand(rel("large"));
  ASSERT_TRUE(eventually([&] { return state("large") == State::kLarge; }));
  if (!GetParam()) ask("large", 1);
  EXPECT_EQ(catalog_->reader().find(rel("large")).entry->size, 3 * kMiB);
  demand("small");
  expect_placed("small", small);
  EXPECT_EQ(state("large"), State::kLarge) << "its copy waits";
  held = false;
  ASSERT_TRUE(placed_at_last("large"));
  placement_->stop();
  expect_placed("large", large);
  EXPECT_EQ(bytes_read(), (3 * kMiB) + 1000);
  EXPECT_EQ(counter(AgentCounter::dataset_bytes), (3 * kMiB) + 1000);
}

INSTANTIATE_TEST_SUITE_P(Found, LargeFile, ::testing::Bool(), [](const ::testing::TestParamInfo<bool>& by) {
  return by.param ? "ByPrefetch" : "ByDemand";
});

// A file with holes has no more bytes than a small one, and its chunks would take memory.
TEST_F(LargeFiles, AFileOfTooManyChunksIsNotBegun) {
  const Scratch memory("/dev/shm");  // files may be as long there
  tiers_ = {tier_config(memory, "ram", 1 << 30)};
  scratch_.file("pfs/large", noise(2 * kMiB, 1));
  const ino_t inode = source_stat("large").st_ino;
  start();
  {
    const Intercept looks(Call::kFstatResult, [&](Arguments& a) {
      if (a.st->st_ino == inode) a.st->st_size += off_t{16} << 40;
    });
    demand("large");
    for (uint32_t n = 0; n < 2; ++n) ask("large", n);
    EXPECT_TRUE(eventually([&] { return state("large") != State::kLarge; }));
  }
  EXPECT_EQ(word("large"), state_word(State::kNoFit));
  EXPECT_EQ(counter(AgentCounter::no_fit_files), 1u);
  EXPECT_EQ(files_on(), 0);
  end();
}

TEST_F(LargeFiles, PrefetchAndChunksThatAreAskedForMeet) {
  constexpr uint32_t kFiles = 60;
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (uint32_t i = 0; i < kFiles; ++i) scratch_.file("pfs/f" + std::to_string(i), noise(2 * kMiB + 7, i));
  start();
  start_walk();
  Threads(2, [&](uint32_t t) {
    for (uint32_t i = 0; i < kFiles; ++i)
      EXPECT_TRUE(eventually([&] {
        ask("f" + std::to_string(i), 2 - t);
        return state("f" + std::to_string(i)) == State::kPlaced;
      }));
  }).join();
  placement_->stop();
  EXPECT_EQ(bytes_read(), kFiles * (2 * kMiB + 7)) << "each byte once";
  EXPECT_EQ(counter(AgentCounter::staged_files), kFiles);
  EXPECT_EQ(tier().used(), kFiles * (2 * kMiB + 4096));
  EXPECT_EQ(files_on(), static_cast<int>(kFiles));
}

TEST_F(LargeFiles, AHintedOneIsReadAheadByItsHomeAlone) {
  struct OfOthers : PfsSource {
    using PfsSource::PfsSource;
    bool is_ours(Ref) override { return false; }
  };
  config_.prefetch = AgentConfig::Prefetch::kOn;
  scratch_.file("pfs/large", noise(2 * kMiB, 1));
  scratch_.file("pfs/small", noise(1000, 2));
  prepare();
  (void)make_placement<OfOthers>();
  EXPECT_TRUE(placement_->hint(
      {0, 0, 0, {catalog_->add(rel("large"), DT_REG), catalog_->add(rel("small"), DT_REG)}}));
  ASSERT_TRUE(placement_->start().ok());
  ASSERT_TRUE(placed_at_last("small"));
  ASSERT_TRUE(eventually([&] { return state("large") == State::kLarge; }));
  EXPECT_TRUE(quiet());
  EXPECT_EQ(bytes_read(), 1000u);
  ask("large");
  EXPECT_TRUE(placed_at_last("large"));
}

TEST_F(LargeFiles, AFileLargerThanTheTierIsKeptInPart) {
  tiers_[0].quota.bytes = 3 * kMiB + 4096;
  scratch_.file("pfs/large", noise(8 * kMiB, 1));
  start();
  demand("large");
  ask("large", 6);
  const auto chunks = [&] { return catalog_->reader().chunks(chunks_of(word("large"))); };
  ASSERT_TRUE(eventually([&] { return chunks() && chunks()->closed == 1; }));
  uint32_t there = 0;
  for (uint32_t n = 0; n < 8; ++n) there += catalog_->reader().has_chunk(chunks_of(word("large")), n);
  EXPECT_EQ(there, 3u);
  EXPECT_TRUE(catalog_->reader().has_chunk(chunks_of(word("large")), 6));
  EXPECT_EQ(state("large"), State::kLarge);
  EXPECT_EQ(bytes_read(), 3u * kMiB);
  EXPECT_EQ(tier().used(), 3u * kMiB);
  EXPECT_TRUE(eventually([&] { return tier().promised() == 0; }));
}

// What the task has read is in the page cache, from where staging reads it if the pages are not dropped.
TEST_F(LargeFiles, ALargeFileThatIsReadNativelyIsStagedFromThePageCache) {
  std::atomic<int> dropped{0};
  scratch_.file("pfs/large", noise(4 * kMiB, 1));
  scratch_.file("pfs/other", noise(4 * kMiB, 2));
  start();
  Intercept drops(Call::kDropPages, [&](Arguments&) { ++dropped; });
  demand("large");
  ask("large", kReadNatively);
  ASSERT_TRUE(placed_at_last("large"));
  EXPECT_EQ(bytes_read(), uint64_t{4 * kMiB});
  EXPECT_EQ(dropped, 0);
  demand("other");
  ask("other", 3);
  ASSERT_TRUE(placed_at_last("other"));
  EXPECT_GT(dropped, 0);
}

TEST_F(LargeFiles, ChunksOutsideTheFileAreIgnored) {
  scratch_.file("pfs/large", noise(2 * kMiB, 1));
  start();
  demand("large");
  ask("large", 77);
  ask("nowhere", 0);
  ASSERT_TRUE(placed_at_last("large")) << "the rest is staged all the same " << word("large");
  EXPECT_EQ(bytes_read(), 2u * kMiB);
}

// ---- where a tier has no room, the agent is short of something, or a file was parked

namespace fs = std::filesystem;
constexpr uint64_t kNoFit = state_word(State::kNoFit), kFault = state_word(State::kNoFit, Reason::kTierError);

class ChunkErrors : public LargeFiles {
 protected:
  void make(const std::string& name, uint64_t bytes) { scratch_.file("pfs/" + name, noise(bytes, 1)); }
  bool has_chunk(const std::string& name, uint32_t n) {
    return catalog_->reader().has_chunk(chunks_of(word(name)), n);
  }
  bool ends_as(const std::string& name, uint64_t end) {
    return eventually([&] { return word(name) == end; });
  }
  // With hardly a rate for what nobody waits for.
  void start_slowly(int threads) {
    config_.threads = threads;
    config_.pfs_bandwidth = 1;
    start();
    EXPECT_TRUE(rates_->pfs_bytes.wait(1 << 20, [] { return false; }));
  }
  // Fills what is large and nobody waits for, with all places that there are for it.
  void fill(const std::string& name) {
    catalog_->add(rel(name), DT_REG);
    placement_->catalog_grew();
    ASSERT_TRUE(eventually([&] { return state(name) == State::kLarge && chunks_of(word(name)) != 0; }));
    EXPECT_TRUE(quiet());
  }
  // Asks for a chunk until it is there.
  void stage(const std::string& name, uint32_t chunk = 0) {
    demand(name);
    ask(name, chunk);
    ASSERT_TRUE(eventually([&] { return has_chunk(name, chunk); })) << name;
  }
  void expect_nothing_left() {
    placement_->stop();
    EXPECT_EQ(files_on(), 0);
    EXPECT_EQ(tier().used(), 0u);
    EXPECT_EQ(tier().promised(), 0u);
    EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  }
  std::string part_of(const std::string& name) {
    char part[kPartNameBytes];
    part_name(catalog_->reader().find(rel(name)).ref, part);
    return tier().copies_path() + "/" + part;
  }
};

TEST_F(ChunkErrors, NoRoomForOneChunk) {
  for (const bool prefetch : {true, false}) {
    SCOPED_TRACE(prefetch);
    config_.prefetch = prefetch ? AgentConfig::Prefetch::kOn : AgentConfig::Prefetch::kOff;
    tiers_[0].quota.bytes = kMiB / 2;
    make("f", 2 * kMiB);
    start();
    if (prefetch) {
      walk();
    } else {
      EXPECT_EQ(demand("f"), large_word(0));
      ask("f");
    }
    EXPECT_TRUE(ends_as("f", kNoFit));
    EXPECT_EQ(counter(AgentCounter::no_fit_files), 1u);
    expect_nothing_left();
    end();
  }
}

TEST_F(ChunkErrors, WhatIsWaitedForGetsAheadOfWhatIsFilled) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  for (const char* name : {"a", "b", "begun"}) make(name, 20 * kMiB);
  start_slowly(4);
  fill("a");  // it takes all places for what nobody waits for, and waits for the rate
  EXPECT_EQ(demand("b"), large_word(0));
  stage("begun", 7);
  for (const char* name : {"b", "begun"}) {
    placement_->demand(rel(name));
    EXPECT_TRUE(placed_at_last(name)) << name;
  }
  EXPECT_EQ(state("a"), State::kLarge);
}

// It is copied slowly by a thread that has taken it with others.
TEST_F(ChunkErrors, AChunkThatIsBeingFilledComesWhenItIsAskedFor) {
  make("f", 8 * kMiB);
  start_without_filling();
  stage("f", 7);
  EXPECT_TRUE(quiet());
  EXPECT_FALSE(has_chunk("f", 2));
  ask("f", 2);
  EXPECT_TRUE(eventually([&] { return has_chunk("f", 2); }));
}

TEST_F(ChunkErrors, AnOpenThatHangsHoldsUpNoOtherFile) {
  for (const char* name : {"hangs", "open"}) make(name, 20 * kMiB);
  start_slowly(4);
  demand("hangs");
  stage("open", 19);
  Held opens(Call::kOpenBeneath);
  ask("hangs", 0);
  ASSERT_TRUE(eventually([&] { return opens.is_reached(); }));
  ask("open", 18);
  EXPECT_TRUE(eventually([&] { return has_chunk("open", 18); }));
  opens.go_on();
  EXPECT_TRUE(eventually([&] { return has_chunk("hangs", 0); }));
}

// One thread reads while another gives the file up; then it is done, or fails, too.
TEST_F(ChunkErrors, WhatIsCopiedOfAFileThatWasGivenUpDoesNotCount) {
  make("f", 2 * kMiB);
  for (const int later : {0, EIO}) {
    SCOPED_TRACE(later);
    start();
    demand("f");
    std::atomic<bool> reading{false};
    const Intercept reads(Call::kPread, [&](Arguments& a) {
      if (a.bytes == 1) return 0;  // the look at its end
      if (a.offset == 0) return eventually([&] { return reading.load(); }) ? EIO : 0;
      reading = true;
      (void)eventually([&] { return state("f") == State::kPass; });
      return later;
    });
    for (const uint32_t n : {0, 1}) ask("f", n);
    ASSERT_TRUE(ends_as("f", state_word(State::kPass, Reason::kSourceError)));
    expect_nothing_left();
    EXPECT_EQ(counter(AgentCounter::staged_chunks) + counter(AgentCounter::staged_bytes), 0u);
    EXPECT_EQ(counter(AgentCounter::source_errors), 1u);
    end();
  }
}

// While one thread still copies a chunk, another gives the file up for lack of memory.
TEST_F(ChunkErrors, AFileThatWasPutOffIsBegunAgainBesideTheOldOne) {
  make("f", 4 * kMiB);
  start();
  demand("f");
  std::atomic<bool> held{true}, inside{false}, shortage{true};
  const Intercept reads(Call::kPread, [&](Arguments& a) {
    if (a.offset == 0 && !inside.exchange(true)) (void)eventually([&] { return !held; });
    return a.offset == kMiB && shortage ? ENOMEM : 0;
  });
  ask("f");
  ASSERT_TRUE(eventually([&] { return inside.load(); }));
  ask("f", 1);
  ASSERT_TRUE(eventually([&] { return counter(AgentCounter::put_off_files) > 0; }));
  shortage = false;
  ASSERT_TRUE(eventually([&] { return state("f") == State::kKnown; }));
  demand("f");
  ask("f", 1);
  ASSERT_TRUE(eventually([&] { return state("f") == State::kPlaced || has_chunk("f", 1); }));
  EXPECT_FALSE(tier().closed());
  held = false;
  ask("f");
  ASSERT_TRUE(placed_at_last("f"));
  EXPECT_TRUE(contents(copy_of("f")) == contents(pfs_ + "/f"));
  EXPECT_TRUE(eventually([&] { return tier().used() == 4 * kMiB; })) << "the first attempt's space is back";
  EXPECT_EQ(files_on(), 1);
}

// Who waits for a chunk is woken with it, who waits for the whole file by its end.
TEST_F(ChunkErrors, WhoWaitsIsWoken) {
  for (const bool in_part : {false, true}) {
    SCOPED_TRACE(in_part);
    if (in_part) tiers_[0].quota.bytes = kMiB;
    make("f", 2 * kMiB);
    start_without_filling();
    const auto woken = [&](uint32_t chunk) -> uint32_t {
      return (*board_)->parking[parking_of(rel("f").hash, chunk)];
    };
    demand("f");
    EXPECT_TRUE(quiet());  // who waited for its opening is woken
    const uint32_t whole = woken(kWholeFile), first = woken(0);
    if (!in_part) {
      ask("f", 1);
      EXPECT_TRUE(eventually([&] { return has_chunk("f", 1); }));
      EXPECT_TRUE(quiet());
      EXPECT_EQ(woken(kWholeFile), whole);
    }
    ask("f", 0);
    EXPECT_TRUE(eventually([&] { return woken(kWholeFile) != whole && woken(0) != first; }));
    end();
  }
}

// In memory nothing is allocated before it is written.
TEST_F(ChunkErrors, WhatIsBeingCopiedIsPromised) {
  const Scratch memory("/dev/shm");
  tiers_ = {tier_config(memory, "ram", 1 << 30)};
  make("f", 2 * kMiB);
  for (const bool whole : {true, false}) {
    SCOPED_TRACE(whole);
    config_.stage_wait_max = whole ? 2 * kMiB : kMiB;
    start();
    const auto is_promised = [&](uint64_t bytes) {
      return eventually([&] { return tier().promised() == bytes; });
    };
    Held reads(Call::kPread, 0, [](const Arguments& a) { return a.offset != 0 && a.bytes > 1; });
    placement_->demand(rel("f"));
    if (!whole) stage("f");
    ASSERT_TRUE(eventually([&] { return reads.is_reached(); }));
    EXPECT_TRUE(is_promised(whole ? 2 * kMiB : kMiB));
    reads.go_on();
    EXPECT_TRUE(placed_at_last("f"));
    EXPECT_TRUE(is_promised(0));
    end();
    remove_copies();
  }
}

// 128 large files are open at a time; the oldest are parked.
class ParkedFiles : public ChunkErrors {
 protected:
  static constexpr int kFiles = 135, kParked = 7;
  static std::string name(int i) { return "f" + std::to_string(i); }
  void SetUp() override {
    const std::string content = noise(kMiB + 1, 1);
    for (int i = 0; i <= kFiles; ++i) scratch_.file("pfs/" + name(i), content);
    start_slowly(3);
    // Number 0 is the one that is being filled, and is not parked.
    for (int i = 0; i <= kFiles && !HasFatalFailure(); ++i) stage(name(i));
    EXPECT_LE(open_descriptors(), descriptors_ + 2 * 128 + 30);
  }
};

TEST_F(ParkedFiles, TheRestOfOneIsStagedWhenItIsAskedFor) {
  for (int i = 1; i <= kParked; ++i) {
    ask(name(i), 1);
    ASSERT_TRUE(placed_at_last(name(i))) << i;
    EXPECT_TRUE(contents(copy_of(name(i))) == contents(pfs_ + "/" + name(i))) << i;
  }
  ask(name(kFiles), 1);  // was not parked
  EXPECT_TRUE(placed_at_last(name(kFiles)));
}

TEST_F(ParkedFiles, WhatCannotBeOpenedAgainIsGivenUp) {
  constexpr uint64_t kDropped = state_word(State::kDropped, Reason::kChanged);
  using Fails = std::function<int(Arguments&)>;
  const auto of_part = [](int error) {
    return [error](Arguments& a) { return !strncmp(a.path, "part/", 5) && !(a.flags & O_CREAT) ? error : 0; };
  };
  struct Case {
    const char* what;
    std::function<void(const std::string& source)> before;
    uint64_t end;  // 0: it may be tried again by then
    std::optional<AgentCounter> counted;
    std::optional<Call> call = {};
    Fails fails = {};
  };
  const auto nothing = [](const std::string&) {};
  const auto written = [](const std::string& source) { std::ofstream(source) << "new"; };
  const auto removed = [](const std::string& source) { fs::remove(source); };
  const auto replaced = [](const std::string& source) {
    fs::copy_file(source, source + ".new");
    fs::last_write_time(source + ".new", fs::last_write_time(source));
    fs::rename(source + ".new", source);
  };
  const uint64_t used = tier().used();
  int i = 0;
  const auto copy_removed = [&](const std::string&) { fs::remove(part_of(name(i))); };
  using C = AgentCounter;
  const Fails no_descriptor = [](Arguments&) { return EMFILE; };
  const std::vector<Case> cases = {
      {"no descriptor for the source", nothing, 0, C::put_off_files, Call::kOpenBeneath, no_descriptor},
      {"nor for the copy", nothing, 0, C::put_off_files, Call::kOpenat, of_part(ENFILE)},
      {"written", written, kDropped, C::dropped_files},
      {"removed", removed, kDropped, C::dropped_files},
      {"replaced by one that looks the same", replaced, kDropped, C::dropped_files},
      {"somebody removed the copy", copy_removed, kFault, {}},
      {"the copy cannot be opened", nothing, kFault, C::tier_errors, Call::kOpenat, of_part(EIO)}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.what);
    EXPECT_FALSE(tier().closed()) << "before that it says nothing about the tier";
    const std::string file = name(++i);
    const uint64_t before = c.counted ? counter(*c.counted) : 0;
    c.before(pfs_ + "/" + file);
    std::optional<Intercept> fails;
    if (c.call) fails.emplace(*c.call, c.fails);
    ask(file, 1);
    if (c.counted) {
      EXPECT_TRUE(eventually([&] { return counter(*c.counted) == before + 1; }));
    }
    if (c.end != 0) {
      EXPECT_TRUE(ends_as(file, c.end));
    }
    EXPECT_TRUE(eventually([&] { return !fs::exists(part_of(file)); }));
  }
  EXPECT_EQ(i, kParked);
  EXPECT_TRUE(tier().closed());
  EXPECT_EQ(counter(AgentCounter::tier_errors), 1u);
  EXPECT_TRUE(eventually([&] { return tier().used() == used - kParked * tier().space_of(kMiB + 1); }));
}

TEST_F(ChunkErrors, WhereThePfsLetsACloseWaitOthersAreHeard) {
  struct File : SourceFile {
    File(std::unique_ptr<SourceFile> file, Gate* gate) : file_(std::move(file)), gate_(gate) {}
    ~File() override { gate_->pass(); }
    int fd() const override { return file_->fd(); }
    Status copy(CopyRange range, Copier* copier) override { return file_->copy(range, copier); }
    const std::unique_ptr<SourceFile> file_;
    Gate* const gate_;
  };
  struct Files : PfsSource {
    using PfsSource::PfsSource;
    std::unique_ptr<SourceFile> open(Ref ref, const std::string& path, Need need,
                                     const Copier& copier) override {
      std::unique_ptr<SourceFile> file = PfsSource::open(ref, path, need, copier);
      if (file && path == "5" && ++opens == 2)  // the first one was to look at it
        return std::make_unique<File>(std::move(file), &gate);
      return file;
    }
    Gate gate;
    int opens = 0;
  };
  config_.threads = 4;
  config_.pfs_bandwidth = 1;
  constexpr int kFiles = 140;
  for (int i = 0; i < kFiles; ++i) make(std::to_string(i), kMiB + 1);
  prepare();
  Gate& gate = make_placement<Files>()->gate;
  gate.shut();
  EXPECT_TRUE(rates_->pfs_bytes.wait(1 << 20, [] { return false; }));
  ASSERT_TRUE(placement_->start().ok());
  for (int i = 0; i < kFiles && gate.waiting() == 0; ++i) {
    demand(std::to_string(i));
    ask(std::to_string(i));
    ASSERT_TRUE(eventually([&] { return has_chunk(std::to_string(i), 0) || gate.waiting() > 0; })) << i;
  }
  ASSERT_TRUE(gate.await_waiting(1));
  std::atomic<bool> heard{false};
  std::thread asks([&] {
    ask("2", kReadNatively);
    heard = true;
  });
  EXPECT_TRUE(eventually([&] { return heard.load(); }));
  gate.open();
  asks.join();
}

// A copying that goes on while the file is parked has what it needs.
TEST_F(ChunkErrors, WhatIsParkedWhileItIsCopiedIsFinished) {
  constexpr int kOthers = 140;
  const std::string content = noise(kMiB + 1, 1);
  for (int i = 0; i <= kOthers; ++i) scratch_.file("pfs/" + std::to_string(i), content);
  start_slowly(4);
  std::atomic<bool> first{true};
  Held reads(Call::kPread, 0, [&](const Arguments& a) { return a.offset == kMiB && first.exchange(false); });
  stage("0");
  ask("0", 1);
  ASSERT_TRUE(eventually([&] { return reads.is_reached(); }));
  for (int i = 1; i <= kOthers && !HasFatalFailure(); ++i) stage(std::to_string(i));
  reads.go_on();
  EXPECT_TRUE(placed_at_last("0"));
  EXPECT_TRUE(contents(copy_of("0")) == content);
}

}  // namespace
}  // namespace monarch
