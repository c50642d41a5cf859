// SPDX-License-Identifier: Apache-2.0
// Root lowers a tier's quota: copies are removed until no more is used, and staged again once there is room.
#include "runtime/placement/evict.h"

#include "runtime/placement/copying.h"
#include "tests/evict_fixture.h"

namespace monarch {
namespace {

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

TEST_F(EvictTest, ACopyThatIsOpenIsPassedOver) {
  constexpr int kFiles = 5;
  start_with(kFiles);
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
  start_with(2);
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
  start_with(kFiles);
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
    if (stat_of(copy_of(name(read))).st_atim.tv_sec == 1000000000)
      GTEST_SKIP() << "the file system keeps no atime";
  }
  set_quota(4 * kSpace);
  ASSERT_TRUE(keeps_to(4 * kSpace));
  EXPECT_EQ(placed(kFiles), (std::vector<int>{0, 1, 3, 5}));
  set_quota(kSpace);
  ASSERT_TRUE(keeps_to(kSpace));
  EXPECT_EQ(placed(kFiles), std::vector<int>{3});
}

TEST_F(EvictTest, WhatTheJobHasChangedServesNobodyAndGoesFirst) {
  start_with(3);
  set_invalid(board_->get(), rel(name(0)).hash);
  set_quota(2 * kSpace);
  ASSERT_TRUE(keeps_to(2 * kSpace));
  EXPECT_EQ(placed(3), numbers(1, 3));
}

TEST_F(EvictTest, NamesThatShareACopyGoTogether) {
  make(1);
  make_linked({"a", "b", "c"});
  start();
  place({"b", "a", "c", name(0)});
  const uint64_t names = 2 * tier().name_space();
  ASSERT_EQ(tier().used(), 2 * kSpace + names);
  Fd held = open_copy("c");
  set_quota(kSpace + names);
  ASSERT_TRUE(keeps_to(kSpace + names)) << "the other file";
  EXPECT_EQ(state("a"), State::kPlaced);
  held.reset();
  set_quota(kBlock);
  ASSERT_TRUE(keeps_to(kBlock));
  for (const char* name : {"a", "b", "c"}) EXPECT_EQ(word(name), kNoFit) << name;
  EXPECT_EQ(files_on(), 0);
  EXPECT_EQ(tier().used(), 0u);
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_EQ(placed_files(node_counts(*board_->get(), {})), 0u);
  set_quota(kSpace + names);
  for (const char* name : {"c", "a", "b"}) {
    ASSERT_EQ(demand(name), kPlaced);
    EXPECT_TRUE(contents(copy_of(name)) == contents(pfs_ + "/a"));
  }
  EXPECT_EQ(tier().used(), kSpace + names) << "one copy again";
}

// As when another node says that the copy is not what was read on the PFS.
TEST_F(EvictTest, ACopyThatIsWithdrawnTakesItsSpaceAsLongAsItIsOpen) {
  make_linked({"a", "b", "c"});
  start();
  place({"a", "b"});
  Fd held = open_copy("b");
  const Ref ref = ref_of("a");
  placement_->withdraw(ref, tier().open_copy(ref));
  for (const char* name : {"a", "b"}) EXPECT_EQ(word(name), kHeld) << name;
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_TRUE(eventually([&] { return files_on() == 0; }));
  EXPECT_EQ(tier().used(), kSpace + tier().name_space());
  ASSERT_EQ(demand("c"), kPlaced);
  EXPECT_TRUE(contents(copy_of("c")) == contents(pfs_ + "/a"));
  EXPECT_EQ(tier().used(), 2 * kSpace + tier().name_space());
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
  Held written(Call::kFinishSync);
  walk();
  ASSERT_TRUE(eventually([&] { return written.is_reached() && files_on() == 2; }));
  const Ref ref = ref_of(name(0));
  EXPECT_EQ(state(name(0)), State::kStaging);
  placement_->withdraw(ref, tier().open_copy(ref));
  written.go_on();
  ASSERT_TRUE(placed_at_last(name(1)));
  EXPECT_TRUE(eventually([&] { return word(name(0)) == state_word(State::kNoFit, Reason::kTierError); }));
  EXPECT_TRUE(eventually([&] { return tier().used() == kSpace; }));
  EXPECT_EQ(files_on(), 1);
  EXPECT_TRUE(eventually([&] { return (*board_)->placed_bytes[0] == kBytes; }));
  EXPECT_EQ(counter(AgentCounter::no_fit_files), 0u) << "there was room";
}

TEST_F(EvictTest, OnlyTheCopyThatIsSpoiltIsWithdrawn) {
  start_with(2);
  const Ref spoilt = ref_of(name(0));
  placement_->withdraw(spoilt, tier().open_copy(ref_of(name(1))));
  placement_->withdraw(spoilt, Fd());
  EXPECT_EQ(placed(2), numbers(0, 2));
  for (int again = 0; again < 2; ++again) placement_->withdraw(spoilt, tier().open_copy(spoilt));
  EXPECT_EQ(placed(2), numbers(1, 2));
  EXPECT_TRUE(eventually([&] { return tier().used() == kSpace; }));
  EXPECT_EQ((*board_)->placed_bytes[0], kBytes);
}

// Its space is given back once, by whoever took the copy away.
TEST_F(EvictTest, ACopyThatWasTakenAwayCanStillBeLost) {
  make(1);
  start();
  {
    Held lost(Call::kFinishSync, EIO);
    ASSERT_EQ(demand(name(0)), kPlaced);
    ASSERT_TRUE(eventually([&] { return lost.is_reached(); }));
    set_quota(0);
    EXPECT_TRUE(eventually([&] { return word(name(0)) == kHeld && (*board_)->placed_bytes[0] == 0; }));
    lost.go_on();
    EXPECT_TRUE(eventually([&] { return tier().closed(); }));
  }
  EXPECT_TRUE(keeps_to(0));
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_EQ(tier().used(), 0u);
  EXPECT_EQ(files_on(), 0);
}

TEST_F(EvictTest, ACopyWithHolesGivesBackWhatItCounts) {
  std::filesystem::resize_file(scratch_.file("pfs/f0", "begin"), 1 << 20);
  for (const char* name : {"a", "b"}) scratch_.file(std::string("pfs/") + name, noise(1 << 20, 1));
  start();
  place({"a", "b", "f0"});
  EXPECT_LT(tier().used(), 5u << 19);
  set_quota(2 << 20);
  ASSERT_TRUE(keeps_to(2 << 20));
  EXPECT_EQ(tier().used(), 2u << 20) << "what the two others take";
  EXPECT_EQ((*board_)->placed_bytes[0], 2u << 20);
}

TEST_F(EvictTest, ACopyThatSomebodyRemovedCountsNoMore) {
  start_with(1);
  std::filesystem::remove(copy_of(name(0)));
  set_quota(0);
  ASSERT_TRUE(keeps_to(0));
  EXPECT_TRUE(is_gone(name(0)));
}

TEST_F(EvictTest, ACopyOfWhichANameCannotBeRemovedCountsUntilItIs) {
  make("alone", 0);
  make_linked({"a", "b"});
  for (const auto& [names, kept] :
       {std::pair(std::vector<std::string>{"alone"}, "alone"), {{"a", "b"}, "a"}, {{"a", "b"}, "b"}}) {
    SCOPED_TRACE(kept);
    start();
    place(names);
    const std::string own = copy_of(kept);
    {
      const Intercept removes(Call::kUnlinkat, [&](Arguments& a) { return own.ends_with(a.path) ? EIO : 0; });
      set_quota(0);
      ASSERT_TRUE(eventually([&] { return files_on() == 1 && word(names[0]) == kHeld; }));
      EXPECT_EQ(tier().used(), kSpace + (names.size() - 1) * tier().name_space());
    }
    ASSERT_TRUE(keeps_to(0));
    EXPECT_EQ(files_on(), 0);
    EXPECT_EQ(word(names[0]), kNoFit);
    end();
    remove_copies();
  }
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
  start_with(1);
  {
    std::atomic<int> opens{0};
    const Intercept none(Call::kOpenat, [&](Arguments&) {
      ++opens;
      return EMFILE;
    });
    set_quota(0);
    ASSERT_TRUE(eventually([&] { return opens >= 3; }));
    EXPECT_EQ(state(name(0)), State::kPlaced) << "it may be open";
  }
  ASSERT_TRUE(keeps_to(0));
  EXPECT_EQ(files_on(), 0);
}

TEST_F(EvictTest, WithoutAThreadItIsDoneLater) {
  start_with(1);
  {
    const Intercept none(Call::kStartThread, EAGAIN);
    set_quota(0);
    EXPECT_EQ(state(name(0)), State::kPlaced);
  }
  placement_->keep_to_quotas();
  EXPECT_TRUE(keeps_to(0));
}

// ---- what the job has told of its order

class UsesOfFiles : public EvictTest {
 protected:
  UsesOfFiles() {
    config_.prefetch = AgentConfig::Prefetch::kOn;
    config_.threads = 3;  // one for what nobody waits for
  }
  // The first file is placed, so that their size is known; nothing is prefetched yet.
  void start_resting(int files) {
    make(files);
    start();
    placement_->rest(true);
    place({name(0)});
  }
  void hint(uint32_t epoch, int first, int end) {
    std::vector<Ref> refs;
    for (int i = first; i < end; ++i) refs.push_back(catalog_->add(rel(name(i)), DT_REG));
    EXPECT_TRUE(placement_->hint({epoch, 0, 0, refs}));
  }
  std::vector<int> placed_on(size_t number, int files) {
    std::vector<int> found = placed(files);
    std::erase_if(found, [&](int i) { return tier_of(word(name(i))) != number; });
    return found;
  }
};

TEST_F(UsesOfFiles, WhatIsUsedInMoreEpochsHasRoomFirst) {
  tiers_[0].quota.bytes = 7 * kSpace;
  start_resting(11);
  hint(0, 1, 10);
  hint(1, 6, 10);
  for (const int i : {5, 4, 9}) EXPECT_EQ(demand(name(i)), kPlaced) << "beside four others there is room";
  EXPECT_EQ(demand(name(3)), kNoFit) << "though it is used first";
  EXPECT_EQ(demand(name(10)), kNoFit) << "nobody has told of it";
  placement_->rest(false);
  ASSERT_TRUE(settles(name(1)) && settles(name(2)));
  ASSERT_TRUE(eventually([&] { return placed(10).size() == 7; }));
  EXPECT_EQ(placed(10), (std::vector<int>{0, 4, 5, 6, 7, 8, 9}));
}

TEST_F(UsesOfFiles, TheFirstTierTakesWhatIsUsedInMoreEpochs) {
  tiers_[0].quota.bytes = 3 * kSpace;
  add_tier("disk", 1 << 30);
  start_resting(10);
  hint(0, 1, 10);
  hint(1, 8, 10);
  placement_->rest(false);
  ASSERT_TRUE(eventually([&] { return placed(10).size() == 10; }));
  EXPECT_EQ(placed_on(0, 10), (std::vector<int>{0, 8, 9}));
}

TEST_F(UsesOfFiles, RoomThatIsNotTakenAfterAllIsOthers) {
  tiers_[0].quota.bytes = 4 * kSpace;
  start_resting(5);
  hint(0, 1, 5);
  hint(1, 2, 5);
  EXPECT_EQ(demand(name(1)), kNoFit);
  std::filesystem::remove(pfs_ + "/" + name(2));
  placement_->rest(false);
  EXPECT_TRUE(placed_at_last(name(1)));
  EXPECT_EQ(placed(5), (std::vector<int>{0, 1, 3, 4}));
}

TEST_F(UsesOfFiles, WhatIsUsedInFewerEpochsIsRemovedFirst) {
  start_resting(6);
  hint(0, 1, 6);
  hint(1, 4, 6);
  placement_->rest(false);
  ASSERT_TRUE(eventually([&] { return placed(6).size() == 6; }));
  set_quota(2 * kSpace);
  ASSERT_TRUE(keeps_to(2 * kSpace));
  EXPECT_EQ(placed(6), (std::vector<int>{4, 5}));
}

class EvictLargeTest : public EvictTest {
 protected:
  static constexpr uint64_t kLarge = 3 << 20;
  EvictLargeTest() { config_.stage_wait_max = 1 << 20; }
  int parts() {
    const std::string dir = tier().copies_path() + "/part";
    return std::filesystem::exists(dir)
               ? static_cast<int>(std::distance(std::filesystem::directory_iterator(dir), {}))
               : 0;
  }
  // The tier has room for a part of "large".
  void make_too_large() {
    tiers_[0].quota.bytes = 2 << 20;
    make_large("large");
  }
  void stage_what_fits() {
    stage("large", 0);
    ASSERT_TRUE(are_staged(2));
  }
  void make_large(const std::string& name) { scratch_.file("pfs/" + name, noise(kLarge, 1)); }
  void stage(const std::string& name, uint32_t chunk) {
    demand(name);
    placement_->demand_chunk(rel(name), chunk);
  }
  bool are_staged(uint64_t chunks) {
    return eventually([&] { return counter(AgentCounter::staged_chunks) >= chunks; });
  }
  void expect_nothing_left(const std::string& path) {
    EXPECT_TRUE(is_gone(path));
    EXPECT_EQ(parts() + files_on(), 0);
    EXPECT_EQ(tier().used(), 0u);
    EXPECT_EQ(tier().promised(), 0u);
    EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  }
};

TEST_F(EvictLargeTest, AWholeOneIsRemovedAndStagedAgain) {
  make_large("large");
  start();
  demand("large");
  for (int turn = 0; turn < 3; ++turn) {
    placement_->demand_chunk(rel("large"), 1);
    ASSERT_TRUE(placed_at_last("large"));
    set_quota(kLarge - 1);
    ASSERT_TRUE(keeps_to(kLarge - 1));
    expect_nothing_left("large");
    set_quota(kLarge);
    EXPECT_EQ(state_of(demand("large")), State::kLarge);
  }
}

TEST_F(EvictLargeTest, APartIsRemovedAlsoWhileItIsFilled) {
  make_large("large");
  start();
  {
    Held reads(Call::kPread, 0, [](const Arguments& a) { return a.offset != 0 && a.bytes > 1; });
    stage("large", 0);
    ASSERT_TRUE(are_staged(1) && eventually([&] { return reads.is_reached(); }));
    set_quota(0);
    ASSERT_TRUE(eventually([&] { return word("large") == kHeld && parts() == 0; }));
    EXPECT_EQ(tier().used(), kLarge) << "a thread copies into it";
    reads.go_on();
    ASSERT_TRUE(keeps_to(0));
  }
  expect_nothing_left("large");
  EXPECT_EQ(counter(AgentCounter::staged_chunks), 1u) << "the others came to nothing";
  set_quota(kLarge);
  stage("large", 2);
  ASSERT_TRUE(placed_at_last("large"));
  EXPECT_TRUE(contents(copy_of("large")) == contents(pfs_ + "/large"));
}

TEST_F(EvictLargeTest, APartThatNobodyFillsJustNowIsRemoved) {
  make_large("large");
  start_without_filling();
  stage("large", 1);
  ASSERT_TRUE(are_staged(1));
  make_large("other");
  stage("other", 1);
  ASSERT_TRUE(are_staged(2));
  set_quota(kLarge);
  ASSERT_TRUE(keeps_to(kLarge));
  EXPECT_TRUE(is_gone("other"));
  EXPECT_TRUE(eventually([&] { return !is_open(pfs_ + "/other"); })) << "nor is its source kept";
  EXPECT_EQ(state("large"), State::kLarge);
  set_quota(0);
  ASSERT_TRUE(keeps_to(0));
  expect_nothing_left("large");
  EXPECT_TRUE(eventually([&] { return !is_open(pfs_ + "/large"); })) << "nor is its source kept";
  EXPECT_EQ(counter(AgentCounter::evicted_files), 0u) << "no whole copy was, which would have been staged";
}

TEST_F(EvictLargeTest, OfAPartOthersAreToldThatNoMoreOfItComes) {
  struct Told : PfsSource {
    using PfsSource::PfsSource;
    void given_up(Ref ref) noexcept override { refs.push_back(ref); }
    std::vector<Ref> refs;  // while one thread copies
  };
  config_.threads = 1;
  make_too_large();
  prepare();
  const Told* const told = make_placement<Told>();
  ASSERT_TRUE(placement_->start().ok());
  stage_what_fits();
  placement_->stop();
  EXPECT_EQ(told->refs, std::vector<Ref>{ref_of("large")});
}

}  // namespace
}  // namespace monarch
