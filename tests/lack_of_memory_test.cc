// SPDX-License-Identifier: Apache-2.0
// What is left where memory lacks, at each allocation in turn.
#include "tests/lack_of_memory.h"

#include <fcntl.h>

#include <list>
#include <set>
#include <vector>

#include "runtime/agent/series_file.h"
#include "runtime/peer/changes.h"
#include "runtime/placement/write_back.h"
#include "tests/placement_fixture.h"

namespace monarch {
namespace {

constexpr Ref kEntry = 0xabcd;

// Calls `attempt` with the number of the allocation that is to fail, until all of them have.
void at_each_allocation(const std::function<void(int)>& attempt) {
  int before = -1, n = 0;
  while (before != times_memory_lacked() && !::testing::Test::HasFailure()) {
    before = times_memory_lacked();
    SCOPED_TRACE("allocation " + std::to_string(++n));
    attempt(n);
    lack_memory_at(0);
  }
  EXPECT_GT(n, 1) << "nothing was allocated";
}

// ---- a tier

class TierWithoutMemory : public ::testing::Test {
 protected:
  Tier open() {
    Result<Tier> opened = Tier::open(tier_config(scratch_, "a", 1 << 20), "job");
    EXPECT_TRUE(opened.ok());
    return opened.take();
  }
  static void expect_error(const Error& error, int other) {
    EXPECT_TRUE(error.code == ENOMEM || error.code == other) << error.code;
    if (error.code == ENOMEM) {
      EXPECT_EQ(error.text, "");
    }
  }
  const Scratch scratch_;
};

// Only the text of an error takes memory.
TEST_F(TierWithoutMemory, ACopyThatFailsLeavesNothing) {
  for (const bool named : {false, true})
    for (const Call call : {Call::kMkdirat, Call::kOpenat, Call::kFallocate}) {
      SCOPED_TRACE(static_cast<int>(call));
      at_each_allocation([&](int n) {
        const auto no_tmpfile = [&](Arguments& a) {
          return named && (a.flags & O_TMPFILE) == O_TMPFILE ? EOPNOTSUPP : 0;
        };
        std::optional<Intercept> opens(std::in_place, Call::kOpenat, no_tmpfile);
        Tier t = open();
        if (call == Call::kOpenat) opens.reset();
        const Intercept fails(call, EIO);
        lack_memory_at(n);
        const Result<Fd> file = t.create(kEntry, 4096);
        lack_memory_at(0);
        ASSERT_FALSE(file.ok());
        expect_error(file.error(), EIO);
        EXPECT_EQ(files_on(t), 0);
      });
    }
}

TEST_F(TierWithoutMemory, APartThatFailsLeavesNothing) {
  for (const Call call : {Call::kMkdirat, Call::kOpenat, Call::kFallocate}) {
    SCOPED_TRACE(static_cast<int>(call));
    at_each_allocation([&](int n) {
      Tier t = open();
      const Intercept fails(call, EIO);
      lack_memory_at(n);
      const Result<Fd> file = t.create_part(kEntry, 4096);
      lack_memory_at(0);
      ASSERT_FALSE(file.ok());
      expect_error(file.error(), EIO);
      EXPECT_EQ(files_on(t), 0);
    });
  }
}

TEST_F(TierWithoutMemory, WhatIsNotPublishedSaysSo) {
  Tier t = open();
  const Result<Fd> file = t.create(kEntry, 0);
  ASSERT_TRUE(file.ok());
  at_each_allocation([&](int n) {
    const Intercept links(Call::kLinkat, EIO);
    lack_memory_at(n);
    const Status published = t.publish(*file, kEntry);
    lack_memory_at(0);
    ASSERT_FALSE(published.ok());
    expect_error(published.error(), EIO);
  });
  at_each_allocation([&](int n) {
    lack_memory_at(n);
    const Result<Fd> part = t.open_part(kEntry);
    lack_memory_at(0);
    ASSERT_FALSE(part.ok());
    expect_error(part.error(), ENOENT);
  });
  at_each_allocation([&](int n) {
    lack_memory_at(n);
    const Status published = t.publish_part(kEntry);
    lack_memory_at(0);
    ASSERT_FALSE(published.ok());
    expect_error(published.error(), ENOENT);
  });
  EXPECT_EQ(files_on(t), 0);
}

// ---- the catalog

class CatalogWithoutMemory : public ::testing::Test {
 protected:
  void begin() {
    catalog_.reset();
    scratch_.emplace();
    catalog_ = make_catalog(scratch_->path());
  }
  // A new one, with an entry of this path.
  Ref begin(const std::string& path) {
    begin();
    return catalog_->add(rel(path), DT_REG);
  }
  std::optional<Scratch> scratch_;
  std::unique_ptr<Catalog> catalog_;
};

TEST_F(CatalogWithoutMemory, WhatIsNotEnteredIsEnteredLater) {
  at_each_allocation([&](int n) {
    begin();
    lack_memory_at(n);
    const Ref ref = catalog_->add(rel("dir/f"), DT_REG);
    lack_memory_at(0);
    const Found found = catalog_->reader().find(rel("dir/f"));
    EXPECT_EQ(found.ref, ref) << "0: none";
    const Ref now = catalog_->add(rel("dir/f"), DT_REG);
    ASSERT_NE(now, 0u);
    EXPECT_EQ(catalog_->path_of(now), "dir/f");
  });
}

// Where the index is to grow, too: an entry that no path leads to would be staged for nobody.
TEST_F(CatalogWithoutMemory, WhatIsNotEnteredIsNoEntry) {
  at_each_allocation([&](int n) {
    begin();
    constexpr uint64_t kFull = kFirstIndexSlots * 3 / 4;
    for (uint64_t i = 0; i < kFull; ++i) ASSERT_NE(catalog_->add(rel(std::to_string(i)), DT_REG), 0u);
    lack_memory_at(n);
    (void)catalog_->add(rel("dir/f"), DT_REG);
    lack_memory_at(0);
    ASSERT_NE(catalog_->add(rel("g"), DT_REG), 0u);
    uint64_t entries = 0;
    catalog_->walk(0, [&](Ref ref) {
      EXPECT_EQ(catalog_->reader().find(rel(catalog_->path_of(ref))).ref, ref);
      return ++entries > 0;
    });
    EXPECT_EQ(entries, catalog_->header().entry_count);
    EXPECT_EQ(catalog_->header().index_generation, 1u);
  });
}

TEST_F(CatalogWithoutMemory, WhatIsNotStagedAgainIsNoEntry) {
  at_each_allocation([&](int n) {
    const Ref ref = begin("f");
    Ref again = 0;
    try {
      lack_memory_at(n);
      again = catalog_->add_again(ref);
    } catch (const std::bad_alloc&) {
    }
    lack_memory_at(0);
    ASSERT_NE(catalog_->add(rel("g"), DT_REG), 0u);
    int entries = 0;
    catalog_->walk(0, [&](Ref) { return ++entries > 0; });
    EXPECT_EQ(entries, again ? 3 : 2);
    if (again) catalog_->entry(again).state = again_word(ref);
    const Ref later = catalog_->add_again(ref);
    EXPECT_TRUE(later != 0 && (again == 0 || later == again));
  });
}

TEST_F(CatalogWithoutMemory, WhatIsNotPlacedIsPlacedLater) {
  at_each_allocation([&](int n) {
    const Ref ref = begin("f");
    catalog_->entry(ref).state = state_word(State::kStaging);
    lack_memory_at(n);
    const bool placed = catalog_->place(ref, 1, 77, source_stat(5));
    lack_memory_at(0);
    const Identity* copy = catalog_->reader().find_copy(1, 77);
    EXPECT_EQ(copy != nullptr, placed);
    EXPECT_EQ(state_of(catalog_->entry(ref).state), placed ? State::kPlaced : State::kStaging);
    ASSERT_TRUE(catalog_->place(ref, 1, 77, source_stat(5)));
    ASSERT_NE(copy = catalog_->reader().find_copy(1, 77), nullptr);
    EXPECT_EQ(copy->entry, ref);
  });
}

TEST_F(CatalogWithoutMemory, ALinkThatIsNotPlacedIsPlacedLater) {
  at_each_allocation([&](int n) {
    const Ref ref = begin("f");
    catalog_->entry(ref).state = state_word(State::kStaging);
    lack_memory_at(n);
    const bool placed = catalog_->place_link(ref, 1, 77, source_stat(5));
    lack_memory_at(0);
    EXPECT_EQ(state_of(catalog_->entry(ref).state), placed ? State::kPlaced : State::kStaging);
    EXPECT_TRUE(catalog_->place_link(ref, 1, 77, source_stat(5)));
  });
}

TEST_F(CatalogWithoutMemory, WhatATaskSawIsEnteredLater) {
  at_each_allocation([&](int n) {
    const Ref ref = begin("f");
    Seen seen{ref, rel("f").hash, {}};
    seen.values.mode = S_IFREG | 0644;
    seen.values.dev = catalog_->header().roots[0].dev;
    lack_memory_at(n);
    const bool entered = catalog_->add_seen(seen);
    lack_memory_at(0);
    EXPECT_NE(catalog_->add_seen(seen), entered) << "once";
    EXPECT_NE(catalog_->entry(ref).identity, 0u);
  });
}

TEST_F(CatalogWithoutMemory, ALargeFileThatIsNotBegunIsBegunLater) {
  at_each_allocation([&](int n) {
    const Ref ref = begin("f");
    catalog_->entry(ref).state = large_word(0);
    struct stat st = source_stat(5);
    st.st_size = 5 * kChunkBytes;
    Ref chunks = 0;
    lack_memory_at(n);
    try {
      chunks = catalog_->start_chunks(ref, 1, st);
    } catch (const std::bad_alloc&) {
    }
    lack_memory_at(0);
    EXPECT_EQ(catalog_->entry(ref).state, large_word(chunks)) << "0: none";
    EXPECT_NE(catalog_->start_chunks(ref, 1, st), 0u);
  });
}

// ---- the walk

class WalkWithoutMemory : public PlacementTest {};

TEST_F(WalkWithoutMemory, ADirectoryThatIsNotListedIsSaidToBeIncomplete) {
  for (const char* name : {"d/e/f1", "d/e/f2", "d/f3"}) scratch_.file(std::string("pfs/") + name, "x");
  config_.metadata = AgentConfig::Metadata::kServe;
  for (const char* directory : {".", "d", "d/e"})
    at_each_allocation([&](int n) {
      start();
      const Intercept opens(Call::kOpenBeneath, [&](Arguments& a) {
        if (std::string(a.path) == directory) lack_memory_at(n);
        return 0;
      });
      start_walk();
      EXPECT_TRUE(eventually([&] { return walked() || counter(AgentCounter::walk_errors) >= 1; }));
      walker_->stop();
      EXPECT_NE(walked(), counter(AgentCounter::walk_errors) >= 1) << "a walk that failed is not whole";
      if (walked()) {
        EXPECT_TRUE(catalog_->reader().find(rel("d/e/f1")) && catalog_->reader().find(rel("d/f3")));
      }
      end();
    });
}

// ---- what other nodes are told

TEST(ChangesWithoutMemory, AreToldLater) {
  const Scratch scratch;
  at_each_allocation([&](int n) {
    Result<BoardFile> board = BoardFile::create(scratch.dir("run" + std::to_string(n)));
    ASSERT_TRUE(board.ok());
    Changes changes(board->get());
    set_invalid(board->get(), 77);
    std::optional<Mark> mark;
    try {
      lack_memory_at(n);
      mark = changes.next();
    } catch (const std::bad_alloc&) {
    }
    lack_memory_at(0);
    if (mark) changes.untell(*mark);
    mark = changes.next();
    ASSERT_TRUE(mark.has_value());
    EXPECT_EQ(mark->marks, std::vector<uint32_t>{77});
    EXPECT_FALSE(changes.next().has_value());
  });
}

// ---- what is kept for reports

TEST(SeriesWithoutMemory, IsWrittenTheNextTime) {
  const Scratch scratch;
  const Result<BoardFile> board = BoardFile::create(scratch.dir("run"));
  ASSERT_TRUE(board.ok());
  const int before = times_memory_lacked();
  SeriesFile file(-1, board->get(), 0);  // an error has words
  lack_memory_at(1);
  EXPECT_NO_THROW(file.look({})) << "else the agent would end";
  lack_memory_at(0);
  EXPECT_EQ(times_memory_lacked(), before + 1);
}

// ---- write-back

TEST(WriteBackWithoutMemory, EachCopyIsEndedOnce) {
  const Scratch scratch;
  at_each_allocation([&](int n) {
    std::atomic<int> ended{0};
    WriteBack write_back({[](NamedCopy&) {},
                          [&](NamedCopy copy, const Status& written) {
                            EXPECT_TRUE(written.ok() && copy.fd);
                            ended += static_cast<int>(copy.entry);
                          }});
    NamedCopy copy;
    copy.entry = 1;
    copy.fd = Fd(::open((scratch / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    lack_memory_at(n);
    write_back.add(std::move(copy));
    lack_memory_at(0);
    copy = NamedCopy();
    copy.entry = 10;
    copy.fd = Fd(::open((scratch / "f").c_str(), O_RDWR | O_CLOEXEC));
    write_back.add(std::move(copy));
    EXPECT_TRUE(eventually([&] { return ended == 11; }));
  });
}

TEST(WriteBackWithoutMemory, WhatWasLostIsToldWithoutWords) {
  const Scratch scratch;
  const Intercept threads(Call::kStartThread, EAGAIN), device(Call::kFinishSync, ENOSPC);
  at_each_allocation([&](int n) {
    std::vector<int> codes;
    codes.reserve(1);
    WriteBack write_back({[](NamedCopy&) {},
                          [&](const NamedCopy&, const Status& written) {
                            codes.push_back(written.ok() ? 0 : written.error().code);
                          }});
    NamedCopy copy;
    copy.fd = Fd(::open((scratch / "f").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    lack_memory_at(n);
    write_back.add(std::move(copy));
    lack_memory_at(0);
    ASSERT_EQ(codes.size(), 1u);
    EXPECT_TRUE(codes[0] == ENOSPC || codes[0] == EIO) << codes[0];
  });
}

// ---- a copy thread

class PlacementWithoutMemory : public PlacementTest {
 protected:
  PlacementWithoutMemory() { config_.threads = 1; }
  // Memory lacks in the thread that stages the file, from the open of the source on.
  void stage(const std::string& name, int n) {
    const Intercept opens(Call::kOpenBeneath, [&](Arguments& a) {
      lack_memory_at(a.path == name ? n : 0);
      return 0;
    });
    demand(name);
    demand("none");  // the only thread has ended what it was about
  }
};

TEST_F(PlacementWithoutMemory, AFileThatIsNotPlacedTakesNoSpace) {
  scratch_.file("pfs/f", noise(1000, 1));
  at_each_allocation([&](int n) {
    start();
    stage("f", n);
    const bool placed = state("f") == State::kPlaced;
    EXPECT_TRUE(placed || word("f") == state_word(State::kNoFit, Reason::kTierError) ||
                word("f") == state_word(State::kNoFit));
    EXPECT_EQ(files_on(), placed ? 1 : 0);
    EXPECT_EQ(tier().used(), placed ? tier().space_of(1000) : 0);
    EXPECT_FALSE(tier().closed());
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  });
}

// Among others where the thread is to move to other processors before it begins the file.
TEST_F(PlacementWithoutMemory, TheNextFileIsStagedAllTheSame) {
  scratch_.file("pfs/f", noise(1000, 1));
  const std::string processors = "0,0,0,0,0,0,0,0,0,0,0,0";
  at_each_allocation([&](int n) {
    start();
    std::atomic<bool> queued{false};
    {
      const Intercept opens(Call::kOpenBeneath, [&](Arguments& a) {
        lack_memory_at(0);
        if (a.path != std::string("none")) return 0;
        EXPECT_TRUE(eventually([&] { return queued.load(); }));
        placement_->move_to(processors);
        lack_memory_at(n);
        return 0;
      });
      placement_->demand(rel("none"));
      placement_->demand(rel("f"));
      queued = true;
      EXPECT_TRUE(placed_at_last("f"));
    }
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  });
}

TEST_F(PlacementWithoutMemory, AFileWhoseCopyCannotBeMadeTakesNoSpace) {
  scratch_.file("pfs/f", noise(1000, 1));
  at_each_allocation([&](int n) {
    start();
    const Intercept allocates(Call::kFallocate, EIO);
    stage("f", n);
    EXPECT_EQ(word("f"), state_word(State::kNoFit, Reason::kTierError));
    EXPECT_EQ(files_on(), 0);
    EXPECT_EQ(tier().used(), 0u);
    end();
  });
}

TEST_F(PlacementWithoutMemory, ALargeFileThatIsNotPlacedTakesNoSpace) {
  config_.stage_wait_max = 4096;
  scratch_.file("pfs/f", noise(2 * kChunkBytes, 1));
  at_each_allocation([&](int n) {
    start();
    demand("f");
    {
      const Intercept opens(Call::kOpenBeneath, [&](Arguments& a) {
        lack_memory_at(a.path == std::string("f") ? n : 0);
        return 0;
      });
      placement_->demand_chunk(rel("f"), 0);
      demand("none");
    }
    EXPECT_TRUE(eventually([&] {
      return state("f") == State::kPlaced || (files_on() == 0 && tier().used() == 0);
    })) << files_on()
        << " files, " << tier().used() << " bytes, " << static_cast<int>(state("f"));
    EXPECT_NE(word("f"), state_word(State::kNoFit)) << "it is tried again later";
    EXPECT_FALSE(tier().closed());
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  });
}

TEST_F(PlacementWithoutMemory, ALinkThatIsNotPlacedTakesNoSpace) {
  scratch_.file("pfs/f", noise(1000, 1));
  std::filesystem::create_hard_link(pfs_ + "/f", pfs_ + "/g");
  at_each_allocation([&](int n) {
    start();
    demand("f");
    stage("g", n);
    const bool placed = state("g") == State::kPlaced;
    EXPECT_EQ(state("f"), State::kPlaced);
    EXPECT_EQ(files_on(), placed ? 2 : 1);
    EXPECT_EQ(tier().used(), tier().space_of(1000));
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  });
}

TEST_F(PlacementWithoutMemory, AFileOfSeveralLinksThatIsNotPlacedTakesNoSpace) {
  scratch_.file("pfs/f", noise(1000, 1));
  std::filesystem::create_hard_link(pfs_ + "/f", pfs_ + "/g");
  at_each_allocation([&](int n) {
    start();
    stage("f", n);
    const bool placed = state("f") == State::kPlaced;
    EXPECT_EQ(files_on(), placed ? 1 : 0);
    EXPECT_EQ(tier().used(), placed ? tier().space_of(1000) : 0);
    demand("g");
    EXPECT_EQ(state("g"), State::kPlaced);
    EXPECT_EQ(tier().used(), tier().space_of(1000));
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  });
}

TEST_F(PlacementWithoutMemory, ATurnEndsWithItsFile) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  const std::vector<std::string> files = {"a", "b", "c"};  // one more than turns
  for (const std::string& name : files) {
    scratch_.file("pfs/" + name, noise(Copier::kSeveralPieces, 1));
    std::filesystem::create_hard_link(pfs_ + "/" + name, pfs_ + "/other-" + name);
  }
  at_each_allocation([&](int n) {
    start();
    std::set<std::string> opened;
    const Intercept opens(Call::kOpenBeneath, [&](Arguments& a) {
      lack_memory_at(opened.insert(a.path).second && a.path != files.back() ? n : 0);
      return 0;
    });
    for (const std::string& name : files) catalog_->add(rel(name), DT_REG);
    placement_->catalog_grew();
    EXPECT_TRUE(eventually([&] {
      placement_->catalog_grew();
      return state(files.back()) == State::kPlaced;
    }));
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  });
}

// ---- large files

class LargeWithoutMemory : public PlacementWithoutMemory {
 protected:
  LargeWithoutMemory() { config_.stage_wait_max = 4096; }
  // Memory lacks in the thread that stages "f", of two chunks, from the first such call on, which fails.
  void expect_given_back(Call call) {
    at_each_allocation([&](int n) {
      start();
      demand("f");
      std::atomic<bool> first{true};
      {
        const Intercept fails(call, [&](Arguments&) {
          if (!first.exchange(false)) return 0;
          lack_memory_at(n);
          return EIO;
        });
        const Intercept opens(Call::kOpenBeneath, [](Arguments&) {
          lack_memory_at(0);
          return 0;
        });
        placement_->demand_chunk(rel("f"), 0);
        EXPECT_TRUE(eventually([&] { return !first && (state("f") == State::kPlaced || files_on() == 0); }));
        demand("none");  // the only thread has ended what it was about
      }
      const bool placed = state("f") == State::kPlaced;
      EXPECT_EQ(tier().used(), placed ? tier().space_of(2 * kChunkBytes) : 0);
      EXPECT_EQ((*board_)->placed_bytes[0], placed ? 2 * kChunkBytes : 0);
      EXPECT_TRUE(placed || state("f") != State::kLarge) << "tasks would ask for chunks that do not come";
      end();
      EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
    });
  }
};

TEST_F(LargeWithoutMemory, AChunkThatCannotBeReadIsNotWaitedForInVain) {
  scratch_.file("pfs/f", noise(2 * kChunkBytes, 1));
  expect_given_back(Call::kPread);
}

TEST_F(LargeWithoutMemory, AFileThatCannotBeFinishedTakesNoSpace) {
  scratch_.file("pfs/f", noise(2 * kChunkBytes, 1));
  expect_given_back(Call::kFutimens);
}

TEST_F(LargeWithoutMemory, AHoleThatCannotBeMadeTakesNoSpace) {
  const std::string file = scratch_.file("pfs/f", "x");
  ASSERT_EQ(::truncate(file.c_str(), 2 * kChunkBytes), 0);
  expect_given_back(Call::kFtruncate);
}

// ---- what tasks ask for, in the thread that hears them

class RequestsWithoutMemory : public PlacementWithoutMemory {
 protected:
  // Has memory lack at the `n`th allocation of `ask`, with another file each time, until it did kTimes: the
  // queues take memory for several places at a time. Who asks again is to be heard.
  void expect_heard(int n, const std::function<void(const RelPath&)>& prepare,
                    const std::function<void(const RelPath&)>& ask) {
    constexpr int kTimes = 3;
    SCOPED_TRACE("allocation " + std::to_string(n));
    start();
    const int before = times_memory_lacked();
    for (int i = 0; i < 500 && times_memory_lacked() < before + kTimes; ++i) {
      const std::string name = "f" + std::to_string(i);
      scratch_.file("pfs/" + name, noise(8192, 1));
      catalog_->add(rel(name), DT_REG);
      prepare(rel(name));
      const int lacked = times_memory_lacked();
      const uint64_t put_off = counter(AgentCounter::put_off_files);
      lack_memory_at(n);
      ask(rel(name));
      lack_memory_at(0);
      if (times_memory_lacked() != lacked) {
        EXPECT_FALSE(unsettled(state(name))) << "who opens it would wait in vain";
        EXPECT_EQ(counter(AgentCounter::put_off_files), put_off + 1);
        EXPECT_TRUE(eventually([&] {
          placement_->catalog_grew();
          return word(name) != state_word(State::kNoFit, Reason::kTierError);
        })) << "it is not tried again";
        ask(rel(name));
      }
      ASSERT_TRUE(placed_at_last(name)) << name;
    }
    EXPECT_EQ(times_memory_lacked(), before + kTimes);
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  }
  const std::function<void(const RelPath&)> opens_ = [this](const RelPath& path) {
    placement_->demand(path);
  };
};

TEST_F(RequestsWithoutMemory, AFileThatCannotBeQueuedIsThePfssAndStagedLater) {
  expect_heard(
      1, [](const RelPath&) {}, opens_);
}

TEST_F(RequestsWithoutMemory, WhoWaitsForALargeFileIsHeardLater) {
  config_.stage_wait_max = 4096;
  const auto opened = [this](const RelPath& path) { demand(path.path); };
  for (const int n : {1, 2}) expect_heard(n, opened, opens_);
}

TEST_F(RequestsWithoutMemory, WhoReadsALargeFileIsHeardLater) {
  config_.stage_wait_max = 4096;
  const auto opened = [this](const RelPath& path) { demand(path.path); };
  expect_heard(1, opened, [this](const RelPath& path) { placement_->demand_chunk(path, 0); });
  for (const int n : {1, 2})
    expect_heard(n, opened, [this](const RelPath& path) { placement_->demand_chunk(path, kReadNatively); });
}

// ---- the device

TEST_F(PlacementWithoutMemory, ACopyThatIsLostTakesNoSpace) {
  scratch_.file("pfs/f", noise(1000, 1));
  at_each_allocation([&](int n) {
    start();
    const Intercept lost(Call::kFinishSync, [&](Arguments&) {
      lack_memory_at(n);
      return EIO;
    });
    placement_->demand(rel("f"));
    EXPECT_TRUE(eventually([&] { return word("f") == state_word(State::kNoFit, Reason::kTierError); }));
    EXPECT_TRUE(eventually([&] { return files_on() == 0 && tier().used() == 0; }));
    EXPECT_TRUE(tier().closed());
    end();
  });
}

}  // namespace
}  // namespace monarch
