// SPDX-License-Identifier: Apache-2.0
// The names of one file share one copy.
#include "runtime/placement/hard_links.h"

#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <thread>

#include "tests/placement_fixture.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;
using Turn = HardLinks::Turn;

struct stat file(uint64_t inode, int64_t changed = 1) {
  struct stat st {};
  st.st_dev = 7;
  st.st_ino = inode;
  st.st_size = 1000;
  st.st_ctim.tv_sec = changed;
  return st;
}

// Gives each name the copy, but those that it is told to refuse.
struct Links {
  std::vector<Ref> linked, refused;
  HardLinks::Link link() {
    return [this](Ref name, const HardLinks::Copy&) {
      for (const Ref no : refused)
        if (no == name) return false;
      linked.push_back(name);
      return true;
    };
  }
};

using Refs = std::vector<Ref>;
const HardLinks::Take kNothing = [](Ref) {};

TEST(HardLinksTest, TheFirstNameCopiesAndTheOthersWait) {
  HardLinks files;
  Links links;
  EXPECT_EQ(files.begin(1, file(5), links.link()), Turn::kCopy);
  EXPECT_EQ(files.begin(2, file(5), links.link()), Turn::kWaits);
  EXPECT_EQ(files.begin(3, file(6), links.link()), Turn::kCopy) << "another file";
  EXPECT_EQ(files.awaited_by(2), 1u);
  EXPECT_EQ(files.awaited_by(1), 0u);
  EXPECT_TRUE(links.linked.empty());
  EXPECT_TRUE(files.published({1, 0, 99}, links.link()).empty());
  EXPECT_EQ(links.linked, Refs{2});
  EXPECT_EQ(files.awaited_by(2), 0u);
  EXPECT_EQ(files.begin(4, file(5), links.link()), Turn::kLinked);
  EXPECT_EQ(links.linked, (Refs{2, 4}));
  const HardLinks::Names names = files.ended(1, kNothing);
  EXPECT_EQ(names.linked, (Refs{2, 4}));
  EXPECT_TRUE(names.waiting.empty());
  EXPECT_EQ(files.begin(2, file(5), links.link()), Turn::kCopy) << "the copy is gone";
}

TEST(HardLinksTest, WhoWaitedIsToldOfAFailure) {
  HardLinks files;
  Links links;
  files.begin(1, file(5), links.link());
  files.begin(2, file(5), links.link());
  files.begin(3, file(5), links.link());
  EXPECT_EQ(files.ended(1, kNothing).waiting, (Refs{2, 3}));
  EXPECT_EQ(files.awaited_by(2), 0u);
  EXPECT_TRUE(files.ended(1, kNothing).waiting.empty()) << "once";
  EXPECT_TRUE(files.published({1, 0, 99}, links.link()).empty());
  EXPECT_TRUE(links.linked.empty());
}

TEST(HardLinksTest, ANameIsTakenBeforeItIsOneOfItsOwn) {
  HardLinks files;
  Links links;
  files.begin(1, file(5), links.link());
  files.published({1, 0, 99}, links.link());
  ASSERT_EQ(files.begin(2, file(5), links.link()), Turn::kLinked);
  std::atomic<bool> taken{false}, begun{false};
  std::atomic<int> looks{0};
  std::thread evictor([&] {
    while (!begun) std::this_thread::yield();
    while (files.maker_of(2) != 2) ++looks;
    EXPECT_TRUE(taken);
  });
  files.ended(1, [&](Ref name) {
    EXPECT_EQ(name, 2u);
    begun = true;
    EXPECT_TRUE(eventually([&] { return looks >= 2 || others_sleep(); })) << "it looks, or waits to look";
    taken = true;
  });
  evictor.join();
}

TEST(HardLinksTest, AChangedFileIsAnother) {
  HardLinks files;
  Links links;
  files.begin(1, file(5), links.link());
  EXPECT_EQ(files.begin(2, file(5, 2), links.link()), Turn::kCopy);
  files.published({1, 0, 99}, links.link());
  EXPECT_EQ(files.begin(3, file(5, 2), links.link()), Turn::kCopy);
  EXPECT_EQ(files.begin(4, file(5), links.link()), Turn::kLinked);
  struct stat longer = file(5), later = file(5);  // within one tick of the PFS's clock
  longer.st_size = 1001;
  later.st_mtim.tv_nsec = 1;
  EXPECT_EQ(files.begin(5, longer, links.link()), Turn::kCopy);
  EXPECT_EQ(files.begin(6, later, links.link()), Turn::kCopy);
}

TEST(HardLinksTest, NotMoreNamesThanItMayRemember) {
  HardLinks files;
  Links links;
  constexpr Ref kMost = 65536;
  for (Ref name = 1; name <= kMost; ++name)
    ASSERT_EQ(files.begin(name, file(name), links.link()), Turn::kCopy);
  EXPECT_EQ(files.begin(kMost + 1, file(1), links.link()), Turn::kCopy) << "a copy of its own";
  files.ended(2, kNothing);
  EXPECT_EQ(files.begin(kMost + 1, file(1), links.link()), Turn::kWaits);
}

class HardLinksPlacementTest : public PlacementTest {
 protected:
  // A file of a few blocks with these names.
  void make(const std::vector<std::string>& names, unsigned seed = 1) {
    scratch_.file("pfs/" + names[0], noise(10000, seed));
    for (size_t i = 1; i < names.size(); ++i)
      fs::create_hard_link(pfs_ + "/" + names[0], pfs_ + "/" + names[i]);
  }
  uint64_t inode_of(const std::string& path) {
    struct stat st {};
    EXPECT_EQ(::stat(copy_of(path).c_str(), &st), 0) << path;
    return st.st_ino;
  }
  // That the name is placed, on the copy of `first`, and is known by its own path.
  void expect_linked(const std::string& name, const std::string& first) {
    SCOPED_TRACE(name);
    ASSERT_EQ(state(name), State::kPlaced);
    EXPECT_TRUE(contents(copy_of(name)) == contents(pfs_ + "/" + name));
    EXPECT_EQ(inode_of(name), inode_of(first));
    const CatalogReader& reader = catalog_->reader();
    const Entry* entry = reader.find(rel(name)).entry;
    const Identity* identity = reader.identity_of(*entry);
    ASSERT_NE(identity, nullptr);
    EXPECT_EQ(reader.entry(identity->entry), entry);
    EXPECT_EQ(identity->tier_ino, inode_of(first));
    EXPECT_EQ(identity->pfs_ino, source_stat(name).st_ino);
    const Identity* known = reader.find_copy(0, inode_of(first));
    ASSERT_NE(known, nullptr);
    EXPECT_EQ(reader.entry(known->entry), reader.find(rel(first)).entry);
  }
  uint64_t space() { return tier().space_of(10000); }
};

TEST_F(HardLinksPlacementTest, NamesThatAreAskedForShareOneCopy) {
  make({"a", "b", "c"});
  start();
  for (const char* name : {"a", "b", "c"}) demand(name);
  expect_linked("b", "a");
  expect_linked("c", "a");
  EXPECT_EQ(tier().used(), space());
  EXPECT_EQ(files_on(), 3);
  EXPECT_EQ(counter(AgentCounter::staged_files), 3u);
  EXPECT_EQ(counter(AgentCounter::demand_files), 3u);
  EXPECT_EQ(counter(AgentCounter::staged_bytes), 10000u);
  EXPECT_EQ((*board_)->placed_bytes[0], 10000u);
}

TEST_F(HardLinksPlacementTest, PrefetchReadsEachFileOnce) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  constexpr unsigned kFiles = 20, kNames = 10;
  for (unsigned i = 0; i < kFiles; ++i) {
    std::vector<std::string> names;
    for (unsigned k = 0; k < kNames; ++k) names.push_back(std::to_string(i) + "." + std::to_string(k));
    make(names, i);
  }
  start();
  walk();
  ASSERT_TRUE(eventually([&] { return counter(AgentCounter::staged_files) == kFiles * kNames; }));
  for (unsigned i = 0; i < kFiles; ++i)
    for (unsigned k = 0; k < kNames; ++k) {
      const std::string name = std::to_string(i) + "." + std::to_string(k);
      EXPECT_EQ(state(name), State::kPlaced);
      EXPECT_TRUE(contents(copy_of(name)) == contents(pfs_ + "/" + name)) << name;
    }
  EXPECT_EQ(counter(AgentCounter::staged_bytes), kFiles * 10000u);
  EXPECT_EQ(tier().used(), kFiles * space());
}

TEST_F(HardLinksPlacementTest, WhoWaitsForANameHastensTheCopy) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  config_.threads = 4;
  config_.pfs_bandwidth = 1;
  make({"a", "b"});
  for (const bool found : {true, false}) {  // "b", too, before somebody waits for it
    SCOPED_TRACE(found);
    start();
    EXPECT_TRUE(rates_->pfs_bytes.wait(1 << 20, [] { return false; }));
    catalog_->add(rel("a"), DT_REG);
    placement_->catalog_grew();
    ASSERT_TRUE(eventually([&] { return counter(AgentCounter::agent_opens_pfs) == 1; }));
    if (found) {
      catalog_->add(rel("b"), DT_REG);
      placement_->catalog_grew();
      ASSERT_TRUE(eventually([&] { return counter(AgentCounter::agent_opens_pfs) == 2; }));
    }
    pass(100);
    EXPECT_EQ(state("a"), State::kStaging) << "it waits for the rate";
    EXPECT_EQ(demand("b"), state_word(State::kPlaced));
    EXPECT_TRUE(placed_at_last("a"));
    EXPECT_EQ(inode_of("a"), inode_of("b"));
    end();
  }
}

TEST_F(HardLinksPlacementTest, ALostCopyIsLostUnderAllNames) {
  make({"a", "b"});
  start();
  Intercept lost(Call::kFinishSync, [&](Arguments&) { return placed_at_last("b") ? EIO : ETIME; });
  demand("a");
  demand("b");
  const uint64_t given_up = state_word(State::kNoFit, Reason::kTierError);
  ASSERT_TRUE(eventually([&] { return word("a") == given_up && word("b") == given_up; }));
  ASSERT_TRUE(eventually([&] { return files_on() == 0 && tier().used() == 0; }));
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
}

// Of which there is a newer copy by then.
TEST_F(HardLinksPlacementTest, ANameThatWasStagedAgainOutlivesALostCopy) {
  make({"a", "b"});
  start();
  const uint64_t newer = again_word(catalog_->add(rel("newer"), DT_UNKNOWN));
  Intercept lost(Call::kFinishSync, [&](Arguments&) {
    EXPECT_TRUE(placed_at_last("b"));
    catalog_->entry(catalog_->reader().find(rel("b")).ref).state = newer;
    return EIO;
  });
  demand("a");
  demand("b");
  ASSERT_TRUE(eventually([&] { return files_on() == 0 && tier().used() == 0; }));
  EXPECT_EQ(word("a"), state_word(State::kNoFit, Reason::kTierError));
  EXPECT_EQ(word("b"), newer);
}

// One of its names is there still, and takes its space.
TEST_F(HardLinksPlacementTest, ALostCopyWithANameThatStaysIsCounted) {
  make({"a", "b"});
  start();
  std::string kept;
  {
    std::atomic<bool> held{true};
    const Intercept lost(Call::kFinishSync, [&](Arguments&) {
      (void)eventually([&] { return !held; });
      return EIO;
    });
    demand("a");
    demand("b");
    kept = copy_of("b");
    const Intercept stays(Call::kUnlinkat, [&](Arguments& a) { return kept.ends_with(a.path) ? EPERM : 0; });
    held = false;
    ASSERT_TRUE(eventually([&] { return state("a") == State::kNoFit && state("b") == State::kNoFit; }));
    placement_->stop();
  }
  EXPECT_TRUE(fs::exists(kept));
  EXPECT_EQ(files_on(), 1);
  EXPECT_EQ(tier().used(), space());
}

TEST_F(HardLinksPlacementTest, WhoWaitedForACopyThatFailedGetsItsVerdict) {
  make({"a", "b"});
  start();
  Intercept fails(Call::kPread, [&](Arguments&) {
    eventually([&] { return state("b") == State::kStaging; });
    EXPECT_TRUE(quiet()) << "it waits for this one";
    return EIO;
  });
  placement_->demand(rel("a"));
  ASSERT_TRUE(eventually([&] { return state("a") == State::kStaging; }));
  placement_->demand(rel("b"));
  ASSERT_TRUE(settles("a") && settles("b"));
  EXPECT_EQ(word("a"), state_word(State::kPass, Reason::kSourceError));
  EXPECT_EQ(word("b"), word("a"));
  EXPECT_EQ(tier().used(), 0u);
  EXPECT_EQ(files_on(), 0);
}

TEST_F(HardLinksPlacementTest, WithoutLinksOnTheTierEachNameHasItsCopy) {
  make({"a", "b"});
  start();
  Intercept none(Call::kLinkat, [&](Arguments& a) { return a.flags == 0 ? EPERM : 0; });  // of a name
  demand("a");
  demand("b");
  EXPECT_EQ(state("b"), State::kPlaced);
  EXPECT_NE(inode_of("a"), inode_of("b"));
  EXPECT_EQ(tier().used(), 2 * space());
}

TEST_F(HardLinksPlacementTest, WhoWaitedAndCannotBeLinkedGetsItsCopy) {
  make({"a", "b"});
  start();
  std::atomic<int> names{0};
  Intercept none(Call::kLinkat, [&](Arguments&) {
    if (++names == 1) {  // the copy of "a" gets its name while "b" waits for it
      placement_->demand(rel("b"));
      eventually([&] { return state("b") == State::kStaging; });
      EXPECT_TRUE(quiet()) << "they wait for this one";
    }
    return names == 2 || names == 3 ? EPERM : 0;
  });
  demand("a");
  ASSERT_TRUE(placed_at_last("b"));
  EXPECT_NE(inode_of("a"), inode_of("b"));
  EXPECT_EQ(tier().used(), 2 * space());
}

TEST_F(HardLinksPlacementTest, NamesHaveTheirOwnCopiesWhereTimesDoNotTellOfChanges) {
  make({"a", "b"});
  start();
  const Intercept seconds(Call::kFstatResult, [](Arguments& a) {
    a.st->st_ctim.tv_nsec = 0;
    return 0;
  });
  for (const char* name : {"a", "b"}) EXPECT_EQ(demand(name), state_word(State::kPlaced));
  EXPECT_NE(inode_of("a"), inode_of("b"));
}

}  // namespace
}  // namespace monarch
