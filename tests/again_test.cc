// SPDX-License-Identifier: Apache-2.0
// Files that the job wrote, staged again once they were left alone for stage_again seconds.

#include "tests/placement_fixture.h"

namespace monarch {
namespace {

class AgainTest : public PlacementTest {
 protected:
  AgainTest() { config_.stage_again = 1; }

  // All that is to happen to a file that was staged and is written by the job.
  void begin(const std::string& name = "f") {
    scratch_.file("pfs/" + name, noise(1000, 1));
    start();
    demand(name);
    write(name, noise(1000, 2));
  }
  void write(const std::string& name, const std::string& text) {
    set_invalid(board_->get(), rel(name).hash);
    scratch_.file("pfs/" + name, text);
  }
  Found newest(const std::string& name) {
    return catalog_->reader().newest(catalog_->reader().find(rel(name)), rel(name));
  }
  // Opens the file, as tasks do, until it is staged again; for `seconds` at most.
  bool comes(const std::string& name, int seconds = 20) {
    return has_another(name, seconds) && serves(name, newest(name));
  }
  bool has_another(const std::string& name, int seconds = 20) {
    const int64_t end = clock_.now_ns() + seconds * int64_t{1000000000};
    const Found old = newest(name);
    const Ref before = old.ref;
    // What takes a copy's place is counted behind that.
    const uint64_t again =
        counter(AgentCounter::staged_again) + (old && state_of(old.entry->state) == State::kPlaced);
    do {
      placement_->demand(rel(name));
      pass(50);
      if (const Found now = newest(name); now && now.ref != before)
        return eventually([&] { return counter(AgentCounter::staged_again) >= again; });
    } while (clock_.now_ns() < end);
    return false;
  }
  bool serves(const std::string& name, const Found& found) {
    const uint64_t state = found.entry->state.load();
    return state_of(state) == State::kPlaced && change_of(state) != 0 &&
           !is_changed_since(*board_->get(), rel(name).hash, change_of(state)) &&
           contents(path_of_copy(tier(tier_of(state)), found.ref)) == contents(pfs_ + "/" + name);
  }
};

TEST_F(AgainTest, WhatIsLeftAlone) {
  scratch_.file("pfs/f", noise(300000, 1));
  start();
  EXPECT_EQ(state_of(demand("f")), State::kPlaced);
  for (const uint32_t seed : {2, 3}) {
    write("f", noise(100000 * seed, seed));
    EXPECT_TRUE(comes("f"));
    EXPECT_EQ(word("f"), again_word(again_of(word("f"))))
        << "who has the first copy open finds the first entry";
  }
  EXPECT_EQ(counter(AgentCounter::staged_again), 2u);
  EXPECT_EQ(placed_files(node_counts(*board_->get(), {})), 1u);
  const Found found = newest("f");
  const Identity* id = catalog_->reader().find_copy(0, stat_of(path_of_copy(tier(), found.ref)).st_ino);
  ASSERT_NE(id, nullptr);
  EXPECT_EQ(catalog_->reader().entry(id->entry), found.entry);
}

TEST_F(AgainTest, TheCopyThatServesNobodyGoesFirstWhenSpaceGoesBack) {
  ::signal(SIGIO, SIG_IGN);  // of leases
  config_.prefetch = AgentConfig::Prefetch::kOn;
  scratch_.file("pfs/f", noise(300000, 1));
  start();
  EXPECT_EQ(state_of(demand("f")), State::kPlaced);
  write("f", noise(200000, 2));
  ASSERT_TRUE(comes("f"));
  const Found second = newest("f");
  const auto lower = [&](uint64_t quota) {
    placement_->set_quota(0, quota);
    placement_->keep_to_quotas();
    return eventually([&] { return tier().used() <= quota; }) && quiet();
  };
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(lower(tier().space_of(200000)));
    EXPECT_EQ(tier().used(), tier().space_of(200000));
    EXPECT_TRUE(serves("f", newest("f")));
    EXPECT_EQ(files_on(), 1);
    EXPECT_EQ(placed_files(node_counts(*board_->get(), {})), 1u);
  }
  ASSERT_TRUE(lower(0));
  EXPECT_EQ(placed_files(node_counts(*board_->get(), {})), 0u);
  EXPECT_EQ(files_on(), 0);
  EXPECT_EQ(tier().used(), 0u);
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
  EXPECT_EQ(newest("f").ref, second.ref);
  if (placement_->set_quota(0, 1 << 20)) placement_->room_grew();
  ASSERT_TRUE(eventually([&] { return newest("f").ref != second.ref; }));
  EXPECT_TRUE(serves("f", newest("f")));
}

TEST_F(AgainTest, NotBeforeItWasLeftAlone) {
  config_.stage_again = 3;
  begin();
  const int64_t written = clock_.now_ns();
  placement_->demand(rel("f"));  // and nobody asks any more
  EXPECT_TRUE(eventually([&] { return counter(AgentCounter::staged_again) == 1; }));
  EXPECT_GE(clock_.now_ns() - written, 3 * int64_t{1000000000});
}

TEST_F(AgainTest, WhatTheJobMade) {
  start();
  placement_->demand(rel("new"));
  EXPECT_TRUE(settles("new"));
  write("new", noise(5000, 1));
  EXPECT_TRUE(comes("new"));
  EXPECT_EQ(counter(AgentCounter::staged_again), 0u);
  EXPECT_EQ(placed_files(node_counts(*board_->get(), {})), 1u);
}

TEST_F(AgainTest, WhatTheJobWroteBeforeItWasStaged) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  write("f", noise(1000, 2));
  EXPECT_EQ(demand("f"), state_word(State::kDropped, Reason::kWritten));
  EXPECT_TRUE(comes("f"));
  EXPECT_EQ(counter(AgentCounter::staged_again), 0u) << "it was not staged before";
  EXPECT_EQ(placed_files(node_counts(*board_->get(), {})), 1u);
}

// By its name, or by another, of which the mark of the inode tells; or it is settled otherwise.
TEST_F(AgainTest, NotWhatIsChangedWhileItIsCopied) {
  const std::function<void()> changes[] = {
      [&] { set_invalid(board_->get(), rel("f").hash); },
      [&] { set_invalid(board_->get(), mark_of_inode(source_stat("f").st_ino), kChangedInodes); },
      [&] { catalog_->entry(catalog_->reader().find(rel("f")).ref).state = state_word(State::kNoFit); }};
  for (const auto& change : changes) {
    SCOPED_TRACE(&change - changes);
    begin();
    std::atomic<int> copied{0};
    {
      const Intercept changed(Call::kPwrite, [&](Arguments&) {
        change();
        ++copied;
      });
      EXPECT_FALSE(comes("f", 3));
    }
    EXPECT_GT(copied, 0);
    EXPECT_EQ(counter(AgentCounter::staged_again), 0u);
    if (&change == &changes[0]) {
      EXPECT_TRUE(comes("f"));
    }
    if (&change == &changes[2]) {
      EXPECT_EQ(word("f"), state_word(State::kNoFit));
    }
    end();
  }
}

TEST_F(AgainTest, NotWhileSomebodyMayWrite) {
  begin();
  Fd writer(::open((pfs_ + "/f").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(comes("f", 3)) << "it is open for writing";
  void* map = ::mmap(nullptr, 1000, PROT_READ | PROT_WRITE, MAP_SHARED, writer.get(), 0);
  ASSERT_NE(map, MAP_FAILED);
  writer.reset();
  EXPECT_FALSE(comes("f", 3)) << "it is mapped for writing";
  ::munmap(map, 1000);
  EXPECT_TRUE(comes("f"));
}

TEST_F(AgainTest, NotWhatHasAnotherName) {
  begin();
  ASSERT_EQ(::link((pfs_ + "/f").c_str(), (pfs_ + "/g").c_str()), 0);
  EXPECT_FALSE(comes("f", 3));
}

TEST_F(AgainTest, NotWithoutAnEnd) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  demand("f");
  for (int i = 0; i < kMostAgain; ++i) {
    write("f", noise(1000, static_cast<uint32_t>(i) + 2));
    EXPECT_TRUE(comes("f")) << i;
  }
  write("f", noise(1000, 9));
  const uint64_t read = counter(AgentCounter::agent_bytes_pfs);
  EXPECT_FALSE(comes("f", 3));
  EXPECT_EQ(counter(AgentCounter::staged_again), static_cast<uint64_t>(kMostAgain));
  EXPECT_EQ(counter(AgentCounter::agent_bytes_pfs), read);
}

TEST_F(AgainTest, WhatACleanerRemoves) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  demand("f");
  for (int i = 0; i < kMostAgain; ++i) {
    ASSERT_EQ(::unlink(path_of_copy(tier(), newest("f").ref).c_str()), 0);
    ASSERT_TRUE(has_another("f")) << i;
    EXPECT_TRUE(contents(path_of_copy(tier(), newest("f").ref)) == contents(pfs_ + "/f"));
  }
  ASSERT_EQ(::unlink(path_of_copy(tier(), newest("f").ref).c_str()), 0);
  EXPECT_FALSE(has_another("f", 3)) << "not without an end";
  EXPECT_EQ(tier().used(), (kMostAgain + 1) * tier().space_of(1000)) << "somebody may have them open";
  EXPECT_EQ(counter(AgentCounter::tier_errors), 0u);
}

TEST_F(AgainTest, WhatACleanerRemovesStaysWithinTheQuota) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  demand("f");
  placement_->set_quota(0, tier().used());
  const uint64_t opens = counter(AgentCounter::agent_opens_pfs);
  ASSERT_EQ(::unlink(path_of_copy(tier(), newest("f").ref).c_str()), 0);
  EXPECT_FALSE(has_another("f", 3));
  EXPECT_GT(counter(AgentCounter::agent_opens_pfs), opens) << "it was tried";
  EXPECT_EQ(tier().used(), tier().quota());
  EXPECT_EQ(files_on(), 0);
}

// Its entry is settled otherwise, or it was changed once more, before it is time: who opens it next asks
// again.
TEST_F(AgainTest, NotWhatCameToBeAnotherMeanwhile) {
  for (const char* name : {"settled", "written", "last"})
    scratch_.file(std::string("pfs/") + name, noise(1000, 1));
  start();
  for (const char* name : {"settled", "written", "last"}) {
    demand(name);
    write(name, noise(1000, 2));
    placement_->demand(rel(name));
  }
  const uint64_t opens = counter(AgentCounter::agent_opens_pfs);
  catalog_->entry(newest("settled").ref).state = state_word(State::kPass, Reason::kUnreadable);
  set_invalid(board_->get(), rel("written").hash);
  const uint64_t changes = (*board_)->header.changes.exchange(kLastChange);
  pass(2500);
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), opens);
  (*board_)->header.changes = changes;
  EXPECT_TRUE(comes("written"));
  EXPECT_EQ(counter(AgentCounter::staged_again), 1u);
  EXPECT_EQ(word("settled"), state_word(State::kPass, Reason::kUnreadable));
}

TEST_F(AgainTest, NotWhatIsNoFileAnyMore) {
  for (const char* name : {"removed", "fifo"}) scratch_.file(std::string("pfs/") + name, noise(1000, 1));
  start();
  for (const char* name : {"removed", "fifo"}) {
    demand(name);
    write(name, noise(1000, 2));
    ASSERT_EQ(::unlink((pfs_ + "/" + name).c_str()), 0);
  }
  ASSERT_EQ(::mkfifo((pfs_ + "/fifo").c_str(), 0600), 0);
  const uint64_t opens = counter(AgentCounter::agent_opens_pfs);
  EXPECT_FALSE(comes("removed", 2));
  EXPECT_FALSE(comes("fifo", 2));
  EXPECT_EQ(counter(AgentCounter::agent_opens_pfs), opens) << "not even to look";
}

class AgainInVainTest : public AgainTest {
 protected:
  AgainInVainTest() { config_.threads = 1; }
  void SetUp() override {
    scratch_.file("pfs/f", noise(1000, 1));
    start();
    std::atomic<bool> written{false};
    {
      const Intercept sync(Call::kFinishSync, [&](Arguments&) { written = true; });
      ASSERT_EQ(demand("f"), state_word(State::kPlaced));
      ASSERT_TRUE(eventually([&] { return written.load(); }));
    }
    write("f", noise(2000, 2));
    verdicts_ = verdicts();
  }
  uint64_t verdicts() const {
    return counter(AgentCounter::no_fit_files) + counter(AgentCounter::dropped_files) +
           counter(AgentCounter::source_errors);
  }
  // Of "f"; only those in that state, if one is named.
  int entries(std::optional<State> state = {}) {
    int all = 0;
    catalog_->walk(0, [&](Ref ref) {
      all += catalog_->path_of(ref) == "f" && (!state || state_of(catalog_->entry(ref).state) == *state);
      return true;
    });
    return all;
  }
  // Opens the file until it was copied anew so many times, in vain.
  void fails(uint64_t times) {
    const uint64_t opens = counter(AgentCounter::agent_opens_pfs);
    EXPECT_TRUE(eventually([&] {
      placement_->demand(rel("f"));
      return counter(AgentCounter::agent_opens_pfs) >= opens + times;
    }));
    expect_as_before();
  }
  void expect_as_before() {
    demand("none" + std::to_string(++asked_));  // the only thread has ended what it was about
    EXPECT_TRUE(eventually([&] { return entries(State::kStaging) == 0; }));
    EXPECT_EQ(entries(), 2);
    EXPECT_EQ(files_on(), 1);
    EXPECT_EQ(tier().used(), tier().space_of(1000));
    EXPECT_EQ((*board_)->placed_bytes[0], 1000u);
    EXPECT_EQ(verdicts(), verdicts_);
    EXPECT_EQ(counter(AgentCounter::staged_files), 1u);
    EXPECT_EQ(counter(AgentCounter::staged_again), 0u);
    placement_->room_grew();
  }
  void expect_comes() {
    EXPECT_TRUE(comes("f"));
    EXPECT_EQ(entries(), 2);
    EXPECT_EQ(files_on(), 2);
    EXPECT_EQ(placed_files(node_counts(*board_->get(), {})), 1u);
  }
  uint64_t verdicts_ = 0;
  int asked_ = 0;
};

TEST_F(AgainInVainTest, WhatIsWrittenMeanwhileOrCannotBeReadTakesOneEntry) {
  {
    const Intercept marks(Call::kPwrite, [&](Arguments&) { set_invalid(board_->get(), rel("f").hash); });
    fails(3);
  }
  {
    const Intercept reads(Call::kPread, EIO);
    fails(3);
  }
  expect_comes();
}

TEST_F(AgainInVainTest, WhatHasNoRoomTakesOneEntry) {
  const uint64_t quota = tier().quota();
  placement_->set_quota(0, tier().used());
  fails(3);
  placement_->set_quota(0, quota);
  expect_comes();
}

TEST_F(AgainInVainTest, WhatTheDeviceLosesTakesOneEntry) {
  {
    const Intercept lost(Call::kFinishSync, EIO);
    placement_->demand(rel("f"));  // once: nobody waits for the copy
    ASSERT_TRUE(eventually([&] { return tier().closed(); }));
    expect_as_before();
  }
  clock_.advance_ms(20000);
  expect_comes();
}

// Of a file that the job did not write, who may write it is not asked.
TEST_F(AgainTest, WhatIsStagedTheFirstTimeMayBeOpenForWriting) {
  scratch_.file("pfs/f", noise(1000, 1));
  start();
  const struct stat st = source_stat("f");
  set_invalid(board_->get(), mark_of_inode(st.st_ino), kChangedInodes);
  const Fd writer(::open((pfs_ + "/f").c_str(), O_RDWR | O_CLOEXEC));
  EXPECT_EQ(demand("f"), state_word(State::kPlaced));
}

}  // namespace
}  // namespace monarch
