// SPDX-License-Identifier: Apache-2.0
// The staging of large files where a tier has no room, the agent is short of something, or a file was parked.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <filesystem>

#include "runtime/placement/copying.h"
#include "tests/placement_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;
constexpr uint64_t kNoFit = state_word(State::kNoFit), kFault = state_word(State::kNoFit, Reason::kTierError);

class ChunkErrors : public PlacementTest {
 protected:
  ChunkErrors() { config_.stage_wait_max = 1000; }
  void make(const std::string& name, uint64_t bytes) { scratch_.file("pfs/" + name, noise(bytes, 1)); }
  void ask(const std::string& name, uint32_t chunk = 0) { placement_->demand_chunk(rel(name), chunk); }
  bool has_chunk(const std::string& name, uint32_t n) {
    return catalog_->reader().has_chunk(chunks_of(word(name)), n);
  }
  bool ends_as(const std::string& name, uint64_t end) {
    return eventually([&] { return word(name) == end; });
  }
  // So many were. The state may have changed again by then.
  bool are_put_off(uint64_t files) {
    return eventually([&] { return counter(AgentCounter::put_off_files) >= files; });
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

TEST_F(ChunkErrors, AFileThatIsFilledAndReadNativelyIsFilledOn) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  make("f", 4 * kMiB);
  make("marker", 2 * kMiB);
  start_without_filling();
  fill("f");
  ask("f", kReadNatively);
  stage("marker", 1);  // later than what was asked before
  for (uint32_t n = 0; n < 4; ++n) EXPECT_FALSE(has_chunk("f", n)) << n << " is nobody's to wait for";
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
  std::atomic<bool> held{true}, inside{false};
  const Intercept opens(Call::kOpenBeneath, [&](Arguments&) {
    inside = true;
    (void)eventually([&] { return !held; });
    return 0;
  });
  ask("hangs", 0);
  ASSERT_TRUE(eventually([&] { return inside.load(); }));
  ask("open", 18);
  EXPECT_TRUE(eventually([&] { return has_chunk("open", 18); }));
  held = false;
  EXPECT_TRUE(eventually([&] { return has_chunk("hangs", 0); }));
}

// One thread reads while another gives the file up.
TEST_F(ChunkErrors, WhatIsCopiedOfAFileThatWasGivenUpDoesNotCount) {
  make("f", 2 * kMiB);
  start();
  demand("f");
  std::atomic<bool> reading{false};
  const Intercept reads(Call::kPread, [&](Arguments& a) {
    if (a.offset == 0) return eventually([&] { return reading.load(); }) ? EIO : 0;
    reading = true;
    (void)eventually([&] { return state("f") == State::kPass; });
    return 0;
  });
  for (const uint32_t n : {0, 1}) ask("f", n);
  ASSERT_TRUE(ends_as("f", state_word(State::kPass, Reason::kSourceError)));
  expect_nothing_left();
  EXPECT_EQ(counter(AgentCounter::staged_chunks), 0u);
  EXPECT_EQ(counter(AgentCounter::staged_bytes), 0u);
}

TEST_F(ChunkErrors, ACopyThatCannotBeFinishedIsNone) {
  make("f", 2 * kMiB);
  for (const bool timed : {false, true}) {
    SCOPED_TRACE(timed);
    start();
    demand("f");
    {
      std::atomic<bool> last{false};
      const Intercept times(Call::kFutimens, [&](Arguments&) {
        last = true;
        return timed ? 0 : EIO;
      });
      const Intercept looks(Call::kFstat, [&](Arguments&) { return last ? EIO : 0; });
      ask("f");
      EXPECT_TRUE(ends_as("f", kFault));
      placement_->stop();
    }
    EXPECT_TRUE(tier().closed());
    EXPECT_EQ(counter(AgentCounter::tier_errors), 1u);
    EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
    expect_nothing_left();
    end();
  }
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

// A tier in memory, which has room for one and a half files.
class ScarceSpace : public ChunkErrors {
 protected:
  static constexpr uint64_t kFile = 2 * kMiB, kFloor = 8 * kMiB;
  ScarceSpace() {
    config_.stage_wait_max = kMiB;
    tiers_ = {tier_config(memory_, "ram", 1 << 30)};
    tiers_[0].min_free.bytes = kFloor;
    for (const char* name : {"a", "b", "c"}) make(name, kFile);
  }
  uint64_t occupied() const {
    constexpr uint64_t kBytesPerBlock = 512;
    uint64_t bytes = 0;
    std::error_code gone;
    for (fs::recursive_directory_iterator at(memory_.path(), gone), end; !gone && at != end;
         at.increment(gone)) {
      struct stat st;
      if (::lstat(at->path().c_str(), &st) == 0 && S_ISREG(st.st_mode))
        bytes += static_cast<uint64_t>(st.st_blocks) * kBytesPerBlock;
    }
    return bytes;
  }
  bool is_closed(const std::string& name) {
    const Chunks* chunks = catalog_->reader().chunks(chunks_of(word(name)));
    return chunks && chunks->closed == 1;
  }
  bool is_promised(uint64_t bytes) {
    return eventually([&] { return tier().promised() == bytes; });
  }
  // Of it, one chunk is there, and the other one is being read: until `held_` ends, with this error.
  void begin(const std::string& name) {
    demand(name);
    ask(name);
    ASSERT_TRUE(eventually([&] { return has_chunk(name, 0) && reading_ > 0; }));
    EXPECT_TRUE(is_promised(kFile - kMiB));
  }

  Scratch memory_{"/dev/shm"};
  std::atomic<uint64_t> space_{kFile + kFile / 2};
  std::atomic<bool> held_{true};
  std::atomic<int> reading_{0}, error_{0};
  const Intercept sizes_{Call::kFstatvfs, [this](Arguments& a) {
                           a.fs->f_bavail = (kFloor + space_ - occupied()) / a.fs->f_frsize;
                           return 0;
                         }};
  const Intercept reads_{Call::kPread, [this](Arguments& a) {
                           if (a.offset == 0) return 0;
                           ++reading_;
                           return eventually([&] { return !held_; }) ? error_.load() : EIO;
                         }};
};

TEST_F(ScarceSpace, WhatIsPromisedToOneFileIsNotPromisedToAnother) {
  start();
  begin("a");
  demand("b");
  ask("b");
  EXPECT_TRUE(eventually([&] { return is_closed("b"); })) << "it is kept in part";
  EXPECT_EQ(tier().used(), kFile + kMiB);
  demand("c");
  ask("c");
  EXPECT_TRUE(ends_as("c", kFault)) << "there may be room later";
  held_ = false;
  EXPECT_TRUE(placed_at_last("a"));
  EXPECT_TRUE(is_promised(0));
  EXPECT_EQ(state("b"), State::kLarge);
  EXPECT_LE(occupied(), space_);
  EXPECT_FALSE(tier().closed());
}

TEST_F(ScarceSpace, WhatAFileThatWasGivenUpWasPromisedIsFree) {
  start();
  begin("a");
  error_ = EIO;
  held_ = false;
  EXPECT_TRUE(ends_as("a", state_word(State::kPass, Reason::kSourceError)));
  EXPECT_TRUE(is_promised(0));
  error_ = 0;
  demand("b");
  ask("b");
  EXPECT_TRUE(placed_at_last("b"));
  EXPECT_TRUE(is_promised(0));
}

TEST_F(ScarceSpace, OfWhatIsThereNothingIsPromised) {
  space_ = 64 * kMiB;
  held_ = false;
  make("odd", 2 * kMiB + 5);
  make("small", 500);
  for (const auto& [name, bytes] : {std::pair("holes", 5 * kMiB + 5), std::pair("small-holes", kMiB)}) {
    scratch_.file("pfs/" + std::string(name), "start");
    fs::resize_file(pfs_ + "/" + name, bytes);
  }
  start();
  for (const char* name : {"a", "odd", "holes", "small", "small-holes"}) {
    SCOPED_TRACE(name);
    if (demand(name) == large_word(0)) ask(name);
    EXPECT_TRUE(placed_at_last(name));
    EXPECT_TRUE(is_promised(0));
  }
}

TEST_F(ScarceSpace, WhatIsBeingCopiedAsAWholeIsPromised) {
  config_.stage_wait_max = kFile;
  start();
  placement_->demand(rel("a"));
  ASSERT_TRUE(eventually([&] { return reading_ > 0; }));
  EXPECT_EQ(tier().promised(), kFile);
  EXPECT_EQ(demand("b"), kFault);
  held_ = false;
  EXPECT_TRUE(placed_at_last("a"));
  EXPECT_TRUE(is_promised(0));
}

// 128 large files are open at a time; the oldest are parked.
class ParkedFiles : public ChunkErrors {
 protected:
  static constexpr int kFiles = 134, kParked = 6;
  static std::string name(int i) { return "f" + std::to_string(i); }
  void SetUp() override {
    const std::string content = noise(kMiB + 1, 1);
    for (int i = 0; i <= kFiles; ++i) scratch_.file("pfs/" + name(i), content);
    start_slowly(3);
    // Number 0 is the one that is being filled, and is not parked.
    for (int i = 0; i <= kFiles && !HasFatalFailure(); ++i) stage(name(i));
    EXPECT_LE(open_descriptors(), descriptors_ + 2 * 128 + 30);
  }
  uint64_t space() { return kFiles * tier().space_of(kMiB + 1); }
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

TEST_F(ParkedFiles, AShortageLeavesTheTierAlone) {
  const uint64_t used = tier().used();
  {
    Intercept opens(Call::kOpenBeneath, EMFILE);
    ask(name(1), 1);
    EXPECT_TRUE(are_put_off(1));
  }
  {
    Intercept opens(Call::kOpenat, [](Arguments& a) {
      return strncmp(a.path, "part/", 5) == 0 && (a.flags & O_CREAT) == 0 ? ENFILE : 0;
    });
    ask(name(2), 1);
    EXPECT_TRUE(are_put_off(2));
  }
  EXPECT_EQ(counter(AgentCounter::put_off_files), 2u);
  EXPECT_EQ(counter(AgentCounter::tier_errors), 0u);
  EXPECT_FALSE(tier().closed());
  EXPECT_TRUE(eventually([&] { return tier().used() == used - 2 * tier().space_of(kMiB + 1); }));
}

TEST_F(ParkedFiles, OneThatTwoThreadsWantIsOpenedOnce) {
  const uint64_t opens = counter(AgentCounter::agent_opens_pfs);
  std::atomic<bool> held{true}, inside{false};
  {
    const Intercept slow(Call::kOpenBeneath, [&](Arguments&) {
      inside = true;
      (void)eventually([&] { return !held; });
      return 0;
    });
    const Intercept copying(Call::kPread, [&](Arguments&) {
      EXPECT_TRUE(quiet());
      return 0;
    });
    for (int i = 0; i < 2; ++i) ask(name(1), 1);
    ASSERT_TRUE(eventually([&] { return inside.load(); }));
    EXPECT_TRUE(quiet());  // the other one waits for it
    held = false;
    EXPECT_TRUE(placed_at_last(name(1)));
  }
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), opens + 1);
}

TEST_F(ParkedFiles, AFileThatChangedSinceIsDropped) {
  const uint64_t dropped = state_word(State::kDropped, Reason::kChanged);
  scratch_.file("pfs/" + name(1), noise(kMiB + 1, 2));
  fs::remove(pfs_ + "/" + name(2));
  const std::string third = pfs_ + "/" + name(3);
  fs::copy_file(third, scratch_ / "same");
  fs::last_write_time(scratch_ / "same", fs::last_write_time(third));
  fs::rename(scratch_ / "same", third);  // another one, though it looks the same
  for (int i = 1; i <= 3; ++i) {
    ask(name(i), 1);
    EXPECT_TRUE(ends_as(name(i), dropped)) << i;
    EXPECT_FALSE(fs::exists(part_of(name(i))));
  }
  EXPECT_TRUE(eventually([&] { return counter(AgentCounter::dropped_files) == 3; }));
}

TEST_F(ParkedFiles, ACopyThatIsGone) {
  ASSERT_TRUE(fs::remove(part_of(name(1))));
  ask(name(1), 1);
  EXPECT_TRUE(ends_as(name(1), kFault));
  EXPECT_FALSE(tier().closed()) << "somebody removed it: that says nothing about the tier";
  EXPECT_EQ(counter(AgentCounter::tier_errors), 0u);
  Intercept opens(Call::kOpenat, [](Arguments& a) {
    return strncmp(a.path, "part/", 5) == 0 && (a.flags & O_CREAT) == 0 ? EIO : 0;
  });
  ask(name(2), 1);
  EXPECT_TRUE(ends_as(name(2), kFault));
  EXPECT_TRUE(eventually([&] { return tier().closed(); }));
  EXPECT_EQ(counter(AgentCounter::tier_errors), 1u);
}

TEST_F(ChunkErrors, WhereThePfsLetsACloseWaitOthersAreHeard) {
  struct Gate {
    std::atomic<bool> closing{false}, open{false};
  };
  struct File : SourceFile {
    File(std::unique_ptr<SourceFile> file, Gate* gate) : file_(std::move(file)), gate_(gate) {}
    ~File() override {
      if (!gate_) return;
      gate_->closing = true;
      EXPECT_TRUE(monarch::eventually([&] { return gate_->open.load(); }));
    }
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
      const bool is_kept = path == "5" && ++opens == 2;  // the first one was to look at it
      return file ? std::make_unique<File>(std::move(file), is_kept ? &gate : nullptr) : nullptr;
    }
    Gate gate;
    int opens = 0;
  };
  config_.threads = 4;
  config_.pfs_bandwidth = 1;
  constexpr int kFiles = 140;
  for (int i = 0; i < kFiles; ++i) make(std::to_string(i), kMiB + 1);
  prepare();
  auto* const source = make_placement<Files>();
  EXPECT_TRUE(rates_->pfs_bytes.wait(1 << 20, [] { return false; }));
  ASSERT_TRUE(placement_->start().ok());
  for (int i = 0; i < kFiles && !source->gate.closing; ++i) {
    const std::string name = std::to_string(i);
    demand(name);
    ask(name);
    ASSERT_TRUE(eventually([&] { return has_chunk(name, 0) || source->gate.closing; })) << i;
  }
  EXPECT_TRUE(eventually([&] { return source->gate.closing.load(); }));
  std::atomic<bool> heard{false};
  std::thread asks([&] {
    ask("2", kReadNatively);
    heard = true;
  });
  EXPECT_TRUE(eventually([&] { return heard.load(); }));
  source->gate.open = true;
  asks.join();
}

// A copying that goes on while the file is parked has what it needs.
TEST_F(ChunkErrors, WhatIsParkedWhileItIsCopiedIsFinished) {
  constexpr int kOthers = 140;
  const std::string content = noise(kMiB + 1, 1);
  for (int i = 0; i <= kOthers; ++i) scratch_.file("pfs/" + std::to_string(i), content);
  start_slowly(4);
  std::atomic<bool> held{true}, inside{false};
  const Intercept reads(Call::kPread, [&](Arguments& a) {
    if (a.offset == kMiB && !inside.exchange(true)) (void)eventually([&] { return !held; });
    return 0;
  });
  stage("0");
  ask("0", 1);
  ASSERT_TRUE(eventually([&] { return inside.load(); }));
  for (int i = 1; i <= kOthers && !HasFatalFailure(); ++i) stage(std::to_string(i));
  held = false;
  EXPECT_TRUE(placed_at_last("0"));
  EXPECT_TRUE(contents(copy_of("0")) == content);
}

}  // namespace
}  // namespace monarch
