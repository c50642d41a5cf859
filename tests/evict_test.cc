// SPDX-License-Identifier: Apache-2.0
// Root lowers a tier's quota: copies are removed until no more is used, and staged again once there is room.
#include "runtime/placement/evict.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>

#include <atomic>

#include "tests/evict_fixture.h"

namespace monarch {
namespace {

// How often the thread looks for what is to be removed, or tries to remove it.
class Looks {
 public:
  int made() const { return made_; }

 private:
  std::atomic<int> made_{0};
  const Intercept opens_{Call::kOpenat, [this](Arguments&) {
                           ++made_;
                           return 0;
                         }};
  const Intercept removes_{Call::kUnlinkat, [this](Arguments&) {
                             ++made_;
                             return 0;
                           }};
};

TEST_F(EvictTest, TheLastPlacedGoFirstAndNothingIsReservedBeyondTheQuota) {
  constexpr int kFiles = 20, kStay = 5;
  make(kFiles + 1);
  start();
  place_all(kFiles);
  set_quota(kStay * kSpace + kBlock);
  ASSERT_TRUE(keeps_to(kStay * kSpace + kBlock));
  EXPECT_EQ(placed(kFiles), numbers(0, kStay));
  EXPECT_EQ(tier().used(), kStay * kSpace);
  EXPECT_EQ(files_on(), kStay);
  EXPECT_EQ((*board_)->placed_bytes[0], kStay * kBytes);
  EXPECT_EQ(counter(AgentCounter::evicted_files), static_cast<uint64_t>(kFiles - kStay));
  for (int i = 0; i < kStay; ++i) expect_placed(name(i), source_stat(name(i)));
  EXPECT_EQ(word(name(kFiles - 1)), kNoFit);
  EXPECT_EQ(demand(name(kFiles)), kNoFit) << "there is no room for more";
  EXPECT_FALSE(tier().closed());
  EXPECT_EQ(counter(AgentCounter::tier_errors), 0u);
}

TEST_F(EvictTest, WhatWasRemovedIsStagedAgainWhenTheQuotaGrows) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  constexpr int kFiles = 20;
  make(kFiles);
  start();
  walk();
  ASSERT_TRUE(eventually([&] { return placed(kFiles).size() == kFiles; }));
  std::vector<uint64_t> used;
  for (int turn = 0; turn < 6; ++turn) {
    set_quota(7 * kSpace);
    ASSERT_TRUE(keeps_to(7 * kSpace));
    EXPECT_EQ(placed(kFiles).size(), 7u);
    set_quota(kFiles * kSpace);
    ASSERT_TRUE(eventually([&] { return placed(kFiles).size() == kFiles; }));
    for (int i = 0; i < kFiles; ++i) expect_placed(name(i), source_stat(name(i)));
    used.push_back(catalog_->header().used_bytes[static_cast<size_t>(Space::kIdents)]);
  }
  EXPECT_EQ(used.back(), used[2]) << "the catalog does not grow with it";
}

// The first copy's inode may be another copy's, or the same one's again.
TEST_F(EvictTest, AnInodeThatIsUsedAgainLeadsToItsNewCopy) {
  make(2);
  start();
  for (int turn = 0; turn < 20; ++turn)
    for (const int i : {turn % 2, 1 - turn % 2}) {
      set_quota(kSpace);
      ASSERT_EQ(demand(name(i)), kPlaced);
      expect_placed(name(i), source_stat(name(i)));
      ASSERT_EQ(entry_of(open_copy(name(i))), catalog_->reader().find(rel(name(i))).entry);
      set_quota(0);
      ASSERT_TRUE(keeps_to(0));
    }
}

TEST_F(EvictTest, ACopyThatIsOpenIsPassedOver) {
  constexpr int kFiles = 5;
  make(kFiles);
  start();
  place_all(kFiles);
  Fd held = open_copy(name(4));
  void* map = ::mmap(nullptr, kBytes, PROT_READ, MAP_SHARED, open_copy(name(3)).get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  set_quota(3 * kSpace);
  ASSERT_TRUE(keeps_to(3 * kSpace));
  EXPECT_EQ(placed(kFiles), (std::vector<int>{0, 3, 4}));
  set_quota(kSpace);
  ASSERT_TRUE(eventually([&] { return tier().used() == 2 * kSpace; }));
  EXPECT_EQ(placed(kFiles), (std::vector<int>{3, 4}));
  held.reset();
  ASSERT_TRUE(keeps_to(kSpace)) << "looked at again";
  EXPECT_EQ(placed(kFiles), std::vector<int>{3});
  EXPECT_EQ(std::memcmp(map, contents(pfs_ + "/" + name(3)).data(), kBytes), 0);
  ::munmap(map, kBytes);
}

// It is the PFS's for all who come, and who has it reads on.
TEST_F(EvictTest, ACopyThatStaysOpenIsTakenAtLastAndCountsUntilItIsClosed) {
  make(2);
  start();
  place_all(2);
  Fd held = open_copy(name(0));
  const Entry* entry = entry_of(held);
  ASSERT_NE(entry, nullptr);
  set_quota(0);
  ASSERT_TRUE(eventually([&] { return tier().used() == kSpace; }));
  EXPECT_EQ(state(name(0)), State::kPlaced);
  ASSERT_TRUE(eventually([&] { return word(name(0)) == kHeld && files_on() == 0; }));
  EXPECT_EQ(tier().used(), kSpace);
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  set_quota(10 * kSpace);
  EXPECT_EQ(word(name(0)), kHeld) << "its descriptors lead to the entry by that inode";
  EXPECT_EQ(entry_of(held), entry);
  EXPECT_TRUE(contents("/proc/self/fd/" + std::to_string(held.get())) == contents(pfs_ + "/" + name(0)));
  set_quota(0);
  const uint64_t inode = inode_of(held);
  held.reset();
  ASSERT_TRUE(keeps_to(0));
  EXPECT_EQ(word(name(0)), kNoFit);
  EXPECT_EQ(catalog_->reader().find_copy(0, inode), nullptr) << "a task's own file may have that number";
  set_quota(10 * kSpace);
  EXPECT_EQ(demand(name(0)), kPlaced);
  expect_placed(name(0), source_stat(name(0)));
}

// Only so many that are open are taken, and each of them keeps a descriptor.
TEST_F(EvictTest, CopiesThatStayOpenDoNotKeepWhatNobodyHasOpen) {
  constexpr int kFiles = 260, kTaken = 256;
  make(kFiles);
  start();
  place_all(kFiles);
  std::vector<Fd> held;
  for (int i = 0; i < kFiles; ++i) held.push_back(open_copy(name(i)));
  set_quota(0);
  ASSERT_TRUE(eventually([&] { return placed(kFiles).size() == kFiles - kTaken; }));
  EXPECT_EQ(tier().used(), kFiles * kSpace);
  held[0].reset();
  ASSERT_TRUE(is_gone(name(0)));
  EXPECT_EQ(tier().used(), (kFiles - 1) * kSpace);
  EXPECT_EQ(placed(kFiles), numbers(1, kFiles - kTaken)) << "those that are open and not taken stay";
  held.clear();
  ASSERT_TRUE(keeps_to(0));
}

// Those that are to leave take their space until they are closed: what is closed meanwhile goes, too.
TEST_F(EvictTest, WhatIsClosedMeanwhileGoesAlthoughOthersAreToLeave) {
  constexpr int kFiles = 4;
  make(kFiles);
  start();
  place_all(kFiles);
  std::vector<Fd> held;
  for (int i = 0; i < kFiles; ++i) held.push_back(open_copy(name(i)));
  set_quota(2 * kSpace);
  ASSERT_TRUE(eventually([&] { return placed(kFiles) == numbers(0, 2); }));
  EXPECT_EQ(tier().used(), kFiles * kSpace);
  held[1].reset();
  ASSERT_TRUE(is_gone(name(1)));
  EXPECT_EQ(placed(kFiles), numbers(0, 1));
  held[2].reset();
  ASSERT_TRUE(keeps_to(2 * kSpace));
  EXPECT_EQ(placed(kFiles), numbers(0, 1));
}

TEST_F(EvictTest, EachTimeThoseWhoHaveCopiesOpenAreGivenTime) {
  make(2);
  start();
  place_all(2);
  set_quota(kSpace);
  ASSERT_TRUE(keeps_to(kSpace));
  const Fd held = open_copy(name(0));
  clock_.advance_ms(4000);
  const Looks looks;
  set_quota(0);
  ASSERT_TRUE(eventually([&] { return looks.made() >= 2; }));
  EXPECT_EQ(state(name(0)), State::kPlaced);
}

TEST_F(EvictTest, WhatIsWaitedForIsLookedAtNowAndThen) {
  make(1);
  start();
  place_all(1);
  const Fd held = open_copy(name(0));
  set_quota(0);
  ASSERT_TRUE(eventually([&] { return word(name(0)) == kHeld; }));
  const Looks looks;
  pass(20000);
  EXPECT_GE(looks.made(), 2);
  EXPECT_LE(looks.made(), 40) << "one a second";
}

// It is a candidate from the time before.
TEST_F(EvictTest, WhatWasWithdrawnMeanwhileIsNotRemovedOnceMore) {
  make(2);
  start();
  place_all(2);
  const Ref ref = catalog_->reader().find(rel(name(1))).ref;
  Fd held = open_copy(name(1));
  set_quota(0);
  ASSERT_TRUE(is_gone(name(0)));
  placement_->withdraw(ref, tier().open_copy(ref));
  clock_.advance_ms(4000);
  {
    const Looks looks;
    ASSERT_TRUE(eventually([&] { return looks.made() >= 3; }));
  }
  EXPECT_EQ(counter(AgentCounter::evicted_files), 1u);
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_EQ(tier().used(), kSpace);
  held.reset();
  ASSERT_TRUE(keeps_to(0));
}

TEST_F(EvictTest, NothingIsRemovedAfterTheEnd) {
  make(1);
  start();
  place_all(1);
  placement_->stop();
  std::atomic<int> threads{0};
  const Intercept starts(Call::kStartThread, [&](Arguments&) {
    ++threads;
    return 0;
  });
  set_quota(0);
  EXPECT_EQ(threads, 0);
  EXPECT_EQ(files_on(), 1);
}

TEST_F(EvictTest, WhatNobodyHasReadGoesBeforeWhatWasPlacedEarlier) {
  constexpr int kFiles = 6;
  make(kFiles);
  for (int i = 0; i < kFiles; ++i) {
    const timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
    ::utimensat(AT_FDCWD, (pfs_ + "/" + name(i)).c_str(), times, 0);
  }
  start();
  place_all(kFiles);
  for (const int read : {3, 5}) {
    (void)contents(copy_of(name(read)));
    struct stat st;
    ASSERT_EQ(::stat(copy_of(name(read)).c_str(), &st), 0);
    if (st.st_atim.tv_sec == 1000000000) GTEST_SKIP() << "the file system keeps no atime";
  }
  set_quota(4 * kSpace);
  ASSERT_TRUE(keeps_to(4 * kSpace));
  EXPECT_EQ(placed(kFiles), (std::vector<int>{0, 1, 3, 5}));
  set_quota(kSpace);
  ASSERT_TRUE(keeps_to(kSpace));
  EXPECT_EQ(placed(kFiles), std::vector<int>{3});
}

TEST_F(EvictTest, WhatTheJobHasChangedServesNobodyAndGoesFirst) {
  make(3);
  start();
  place_all(3);
  set_invalid(board_->get(), rel(name(0)).hash);
  set_quota(2 * kSpace);
  ASSERT_TRUE(keeps_to(2 * kSpace));
  EXPECT_EQ(placed(3), numbers(1, 3));
}

TEST_F(EvictTest, NamesThatShareACopyGoTogether) {
  make(1);
  make("a", 1);
  for (const char* name : {"b", "c"}) std::filesystem::create_hard_link(pfs_ + "/a", pfs_ + "/" + name);
  start();
  for (const char* name : {"b", "a", "c"}) ASSERT_EQ(demand(name), kPlaced);
  ASSERT_EQ(demand(name(0)), kPlaced);
  ASSERT_EQ(tier().used(), 2 * kSpace);
  ASSERT_TRUE(eventually([&] { return is_idle(); }));
  Fd held = open_copy("c");
  set_quota(kSpace);
  ASSERT_TRUE(keeps_to(kSpace)) << "the other file";
  EXPECT_EQ(state("a"), State::kPlaced);
  held.reset();
  set_quota(kBlock);
  ASSERT_TRUE(keeps_to(kBlock));
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(word(name), kNoFit) << name;
  EXPECT_EQ(files_on(), 0);
  EXPECT_EQ(tier().used(), 0u);
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_EQ(placed_files(node_counts(*board_->get(), {})), 0u);
  set_quota(kSpace);
  for (const char* name : {"c", "a", "b"}) {
    ASSERT_EQ(demand(name), kPlaced);
    EXPECT_TRUE(contents(copy_of(name)) == contents(pfs_ + "/a"));
  }
  EXPECT_EQ(tier().used(), kSpace) << "one copy again";
}

// As when another node says that the copy is not what was read on the PFS.
TEST_F(EvictTest, ACopyThatIsWithdrawnTakesItsSpaceAsLongAsItIsOpen) {
  scratch_.file("pfs/a", noise(kBytes, 1));
  for (const char* name : {"b", "c"}) std::filesystem::create_hard_link(pfs_ + "/a", pfs_ + "/" + name);
  start();
  for (const char* name : {"a", "b"}) ASSERT_EQ(demand(name), kPlaced);
  ASSERT_TRUE(eventually([&] { return is_idle(); }));
  Fd held = open_copy("b");
  const Ref ref = catalog_->reader().find(rel("a")).ref;
  placement_->withdraw(ref, tier().open_copy(ref));
  for (const char* name : {"a", "b"}) EXPECT_EQ(word(name), kHeld) << name;
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_TRUE(eventually([&] { return files_on() == 0; }));
  EXPECT_EQ(tier().used(), kSpace);
  ASSERT_EQ(demand("c"), kPlaced);
  EXPECT_TRUE(contents(copy_of("c")) == contents(pfs_ + "/a"));
  EXPECT_EQ(tier().used(), 2 * kSpace);
  held.reset();
  EXPECT_TRUE(eventually([&] { return tier().used() == kSpace; }));
  for (const char* name : {"a", "b"})
    EXPECT_TRUE(eventually([&] { return word(name) == state_word(State::kNoFit, Reason::kTierError); }))
        << name;
  EXPECT_EQ(state("c"), State::kPlaced);
  EXPECT_EQ(counter(AgentCounter::evicted_files), 0u);
}

// Other nodes may get it by then, and find it out.
TEST_F(EvictTest, WhatIsWithdrawnBeforeItIsPublishedNeverIs) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  make(2);
  start();
  std::atomic<int> waits{0};
  std::atomic<bool> goes_on{false};
  const Intercept written(Call::kFinishSync, [&](Arguments&) {
    ++waits;
    EXPECT_TRUE(eventually([&] { return goes_on.load(); }));
    return 0;
  });
  walk();
  ASSERT_TRUE(eventually([&] { return waits > 0 && files_on() == 2; }));
  const Ref ref = catalog_->reader().find(rel(name(0))).ref;
  EXPECT_EQ(state(name(0)), State::kStaging);
  placement_->withdraw(ref, tier().open_copy(ref));
  goes_on = true;
  ASSERT_TRUE(placed_at_last(name(1)));
  ASSERT_TRUE(settles(name(0)));
  EXPECT_EQ(word(name(0)), state_word(State::kNoFit, Reason::kTierError));
  EXPECT_TRUE(eventually([&] { return tier().used() == kSpace; }));
  EXPECT_EQ(files_on(), 1);
  EXPECT_EQ((*board_)->placed_bytes[0], kBytes);
  EXPECT_EQ(counter(AgentCounter::no_fit_files), 0u) << "there was room";
}

TEST_F(EvictTest, OnlyTheCopyThatIsSpoiltIsWithdrawn) {
  make(2);
  start();
  place_all(2);
  const auto ref_of = [&](int i) { return catalog_->reader().find(rel(name(i))).ref; };
  placement_->withdraw(ref_of(0), tier().open_copy(ref_of(1)));
  placement_->withdraw(ref_of(0), Fd());
  EXPECT_EQ(placed(2), numbers(0, 2));
  for (int again = 0; again < 2; ++again) placement_->withdraw(ref_of(0), tier().open_copy(ref_of(0)));
  EXPECT_EQ(placed(2), numbers(1, 2));
  EXPECT_TRUE(eventually([&] { return tier().used() == kSpace; }));
  EXPECT_EQ((*board_)->placed_bytes[0], kBytes);
}

TEST_F(EvictTest, ANameThatIsSettledOtherwiseStaysSo) {
  scratch_.file("pfs/a", noise(kBytes, 1));
  std::filesystem::create_hard_link(pfs_ + "/a", pfs_ + "/b");
  start();
  for (const char* name : {"a", "b"}) ASSERT_EQ(demand(name), kPlaced);
  ASSERT_TRUE(eventually([&] { return is_idle(); }));
  constexpr uint64_t kWritten = state_word(State::kDropped, Reason::kWritten);
  catalog_->entry(catalog_->reader().find(rel("b")).ref).state = kWritten;
  set_quota(0);
  ASSERT_TRUE(keeps_to(0));
  EXPECT_EQ(word("a"), kNoFit);
  EXPECT_EQ(word("b"), kWritten);
  EXPECT_EQ(files_on(), 0);
}

// Its space is given back once, by whoever took the copy away.
TEST_F(EvictTest, ACopyThatWasTakenAwayCanStillBeLost) {
  make(1);
  start();
  std::atomic<bool> waits{false}, goes_on{false};
  {
    const Intercept lost(Call::kFinishSync, [&](Arguments&) {
      waits = true;
      EXPECT_TRUE(eventually([&] { return goes_on.load(); }));
      return EIO;
    });
    ASSERT_EQ(demand(name(0)), kPlaced);
    ASSERT_TRUE(eventually([&] { return waits.load(); }));
    set_quota(0);
    EXPECT_TRUE(eventually([&] { return word(name(0)) == kHeld && (*board_)->placed_bytes[0] == 0; }));
    goes_on = true;
    EXPECT_TRUE(eventually([&] { return tier().closed(); }));
  }
  EXPECT_TRUE(keeps_to(0));
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_EQ(tier().used(), 0u);
  EXPECT_EQ(files_on(), 0);
}

// Likewise: it takes its space until that goes back.
TEST_F(EvictTest, ACopyThatWasReplacedCanStillBeLost) {
  make(1);
  start();
  const uint64_t newer = again_word(catalog_->add(rel("newer"), DT_UNKNOWN));
  {
    const Intercept lost(Call::kFinishSync, [&](Arguments&) {
      EXPECT_TRUE(placed_at_last(name(0)));
      catalog_->entry(catalog_->reader().find(rel(name(0))).ref).state = newer;
      return EIO;
    });
    placement_->demand(rel(name(0)));
    ASSERT_TRUE(eventually([&] { return tier().closed(); }));
  }
  placement_->stop();
  EXPECT_EQ(word(name(0)), newer) << "who opens it finds the newer copy";
  EXPECT_EQ(tier().used(), kSpace);
  EXPECT_EQ(files_on(), 1);
}

TEST_F(EvictTest, ACopyWithHolesGivesBackWhatItCounts) {
  const std::string path = scratch_.file("pfs/f0", "begin");
  std::filesystem::resize_file(path, 1 << 20);
  for (const char* name : {"a", "b"}) scratch_.file(std::string("pfs/") + name, noise(1 << 20, 1));
  start();
  for (const char* name : {"a", "b"}) ASSERT_EQ(demand(name), kPlaced);
  ASSERT_EQ(demand("f0"), kPlaced);
  EXPECT_LT(tier().used(), 5u << 19);
  ASSERT_TRUE(eventually([&] { return is_idle(); }));
  set_quota(2 << 20);
  ASSERT_TRUE(keeps_to(2 << 20));
  EXPECT_EQ(tier().used(), 2u << 20) << "what the two others take";
  EXPECT_EQ((*board_)->placed_bytes[0], 2u << 20);
}

TEST_F(EvictTest, ACopyThatSomebodyRemovedCountsNoMore) {
  make(1);
  start();
  place_all(1);
  std::filesystem::remove(copy_of(name(0)));
  set_quota(0);
  ASSERT_TRUE(keeps_to(0));
  EXPECT_TRUE(is_gone(name(0)));
}

TEST_F(EvictTest, ACopyThatCannotBeRemovedCountsUntilItIs) {
  make(1);
  start();
  place_all(1);
  {
    const Intercept removes(Call::kUnlinkat, EIO);
    set_quota(0);
    ASSERT_TRUE(eventually([&] { return word(name(0)) == kHeld; }));
    EXPECT_EQ(tier().used(), kSpace);
  }
  ASSERT_TRUE(keeps_to(0));
  EXPECT_EQ(files_on(), 0);
  EXPECT_EQ(word(name(0)), kNoFit);
}

TEST_F(EvictTest, ACopyOfWhichOneNameCannotBeRemovedCountsUntilItIs) {
  make("a", 1);
  std::filesystem::create_hard_link(pfs_ + "/a", pfs_ + "/b");
  for (const std::string kept : {"a", "b"}) {
    start();
    for (const char* name : {"a", "b"}) ASSERT_EQ(demand(name), kPlaced);
    ASSERT_TRUE(eventually([&] { return is_idle(); }));
    const std::string own = copy_of(kept);
    {
      const Intercept removes(Call::kUnlinkat, [&](Arguments& a) { return own.ends_with(a.path) ? EIO : 0; });
      set_quota(0);
      ASSERT_TRUE(eventually([&] { return files_on() == 1 && word("a") == kHeld; })) << kept;
      EXPECT_EQ(tier().used(), kSpace) << kept;
    }
    ASSERT_TRUE(keeps_to(0));
    EXPECT_EQ(files_on(), 0);
    end();
    EXPECT_TRUE(remove_job_dirs(tiers_, kPlacementJob).ok());
  }
}

TEST_F(EvictTest, AnAgentThatWasStoppedWhileItLookedLooksAgainSoon) {
  make(1);
  start();
  place_all(1);
  std::atomic<int64_t> stopped{0};
  const Intercept removes(Call::kUnlinkat, [&](Arguments&) {
    if (stopped != 0) return 0;
    clock_.advance_ms(600 * 1000);
    stopped = clock_.now_ns();
    return EIO;
  });
  set_quota(0);
  EXPECT_TRUE(keeps_to(0));
  EXPECT_LE(clock_.now_ns() - stopped, 2'000'000'000);
}

TEST_F(EvictTest, WhatFitsOnAnotherTierIsPlacedThere) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  add_tier("hdd", 0);
  make(4);
  start();
  walk();
  ASSERT_TRUE(eventually([&] { return placed(4).size() == 4; }));
  tier(1).set_quota(1 << 20);
  set_quota(kSpace);
  ASSERT_TRUE(eventually([&] { return files_on(1) == 3 && placed(4).size() == 4; }));
  EXPECT_EQ(files_on(0), 1);
}

// ---- at the same time

// As a task does it: what it opens has the right bytes, and is known by its inode (at once, unless it is a
// new copy that has just got its name); else it reads the PFS.
TEST_F(EvictTest, ReadersGetTheCopyOrThePfsWhileQuotasChange) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  constexpr int kFiles = 60;
  make(kFiles);
  start();
  walk();
  ASSERT_TRUE(eventually([&] { return placed(kFiles).size() == kFiles; }));
  std::vector<std::string> wanted;
  for (int i = 0; i < kFiles; ++i) wanted.push_back(contents(pfs_ + "/" + name(i)));
  std::atomic<bool> stop{false};
  std::atomic<int> hits{0}, missed{0}, wrong{0};
  {
    Threads time(1, [&](uint32_t) {
      EXPECT_TRUE(monarch::eventually([&] {
        clock_.advance_ms(10);
        return stop.load();
      }));
    });
    Threads readers(3, [&](uint32_t number) {
      std::string bytes(kBytes + 1, '\0');
      for (uint32_t i = number; !stop; i = i * 5 + 7) {
        const std::string path = name(static_cast<int>(i % kFiles));
        const Found found = catalog_->reader().find(rel(path));
        if (state_of(found.entry->state.load(std::memory_order_acquire)) != State::kPlaced) continue;
        const Fd copy(::open(path_of_copy(tier(), found.ref).c_str(), O_RDONLY | O_CLOEXEC));
        if (!copy) {
          ++missed;
          continue;
        }
        const ssize_t got = ::pread(copy.get(), bytes.data(), bytes.size(), 0);
        const bool right =
            got == static_cast<ssize_t>(kBytes) &&
            std::memcmp(bytes.data(), wanted[i % kFiles].data(), kBytes) == 0 &&
            (entry_of(copy) == found.entry || eventually([&] { return entry_of(copy) == found.entry; }));
        ++(right ? hits : wrong);
      }
    });
    for (int turn = 0; turn < 30; ++turn) {
      const uint64_t quota = static_cast<uint64_t>(turn % 3 == 0 ? 0 : turn % 7 * 8) * kSpace;
      set_quota(quota);
      EXPECT_TRUE(eventually([&] { return tier().used() <= quota; })) << turn;
      set_quota(kFiles * kSpace);
      const int before = hits;
      EXPECT_TRUE(eventually([&] { return hits > before; }));
    }
    stop = true;
  }
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(hits, 100);
  ASSERT_TRUE(eventually([&] { return placed(kFiles).size() == kFiles; }));
  placement_->stop();
  EXPECT_EQ(tier().used(), kFiles * kSpace);
  EXPECT_EQ((*board_)->placed_bytes[0], kFiles * kBytes);
  EXPECT_EQ(files_on(), kFiles);
}

TEST_F(EvictTest, LackOfDescriptorsPutsItOff) {
  constexpr int kFiles = 8;
  make(kFiles);
  start();
  place_all(kFiles);
  {
    std::atomic<int> opens{0};
    const Intercept none(Call::kOpenat, [&](Arguments&) { return ++opens <= 2 ? EMFILE : 0; });
    set_quota(0);
    ASSERT_TRUE(keeps_to(0));
  }
  EXPECT_EQ(files_on(), 0);
  set_quota(kSpace);
  ASSERT_EQ(demand(name(0)), kPlaced);
  ASSERT_TRUE(eventually([&] { return is_idle(); }));
  const Fd held = open_copy(name(0));
  std::atomic<int> opens{0};
  const Intercept none(Call::kOpenat, [&](Arguments&) {
    ++opens;
    return EMFILE;
  });
  set_quota(0);
  ASSERT_TRUE(eventually([&] { return opens >= 3; }));
  EXPECT_EQ(state(name(0)), State::kPlaced) << "it may be open";
}

TEST_F(EvictTest, WithoutAThreadItIsDoneLater) {
  make(1);
  start();
  place_all(1);
  {
    const Intercept none(Call::kStartThread, EAGAIN);
    set_quota(0);
    EXPECT_EQ(state(name(0)), State::kPlaced);
  }
  placement_->keep_to_quotas();
  EXPECT_TRUE(keeps_to(0));
}

}  // namespace
}  // namespace monarch
