// SPDX-License-Identifier: Apache-2.0
// The names of one file share one copy.
#include "runtime/placement/hard_links.h"

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

using Refs = std::vector<Ref>;
const HardLinks::Take kNothing = [](Ref) {};

class HardLinksTest : public ::testing::Test {
 protected:
  Turn begin(Ref name, const struct stat& source) { return files_.begin(name, source, link_); }
  void publish(Ref name) { EXPECT_TRUE(files_.published({name, 0, 99}, link_).empty()); }

  HardLinks files_;
  Refs linked_;
  const HardLinks::Link link_ = [this](Ref name, const HardLinks::Copy&) {
    linked_.push_back(name);
    return true;
  };
};

TEST_F(HardLinksTest, TheFirstNameCopiesAndTheOthersWait) {
  EXPECT_EQ(begin(1, file(5)), Turn::kCopy);
  EXPECT_EQ(begin(2, file(5)), Turn::kWaits);
  EXPECT_EQ(begin(3, file(6)), Turn::kCopy) << "another file";
  EXPECT_EQ(files_.awaited_by(2), 1u);
  EXPECT_EQ(files_.awaited_by(1), 0u);
  EXPECT_TRUE(linked_.empty());
  publish(1);
  EXPECT_EQ(linked_, Refs{2});
  EXPECT_EQ(files_.awaited_by(2), 0u);
  EXPECT_EQ(begin(4, file(5)), Turn::kLinked);
  EXPECT_EQ(linked_, (Refs{2, 4}));
  const HardLinks::Names names = files_.ended(1, kNothing);
  EXPECT_EQ(names.linked, (Refs{2, 4}));
  EXPECT_TRUE(names.waiting.empty());
  EXPECT_EQ(begin(2, file(5)), Turn::kCopy) << "the copy is gone";
}

TEST_F(HardLinksTest, WhoWaitedIsToldOfAFailure) {
  for (const Ref name : {1, 2, 3}) begin(name, file(5));
  EXPECT_EQ(files_.ended(1, kNothing).waiting, (Refs{2, 3}));
  EXPECT_EQ(files_.awaited_by(2), 0u);
  EXPECT_TRUE(files_.ended(1, kNothing).waiting.empty()) << "once";
  publish(1);
  EXPECT_TRUE(linked_.empty());
}

TEST_F(HardLinksTest, AChangedFileIsAnother) {
  begin(1, file(5));
  struct stat longer = file(5), later = file(5);  // within one tick of the PFS's clock
  longer.st_size = 1001;
  later.st_mtim.tv_nsec = 1;
  EXPECT_EQ(begin(2, file(5, 2)), Turn::kCopy);
  publish(1);
  Ref name = 3;
  for (const struct stat& changed : {file(5, 2), longer, later})
    EXPECT_EQ(begin(name++, changed), Turn::kCopy);
  EXPECT_EQ(begin(name, file(5)), Turn::kLinked);
}

TEST_F(HardLinksTest, NotMoreNamesThanItMayRemember) {
  constexpr Ref kMost = 65536;
  for (Ref name = 1; name <= kMost; ++name) ASSERT_EQ(begin(name, file(name)), Turn::kCopy);
  EXPECT_EQ(begin(kMost + 1, file(1)), Turn::kCopy) << "a copy of its own";
  files_.ended(2, kNothing);
  EXPECT_EQ(begin(kMost + 1, file(1)), Turn::kWaits);
}

class HardLinksPlacementTest : public PlacementTest {
 protected:
  // A file of a few blocks with these names.
  void make(const std::vector<std::string>& names, unsigned seed = 1) {
    scratch_.file("pfs/" + names[0], noise(10000, seed));
    for (size_t i = 1; i < names.size(); ++i)
      fs::create_hard_link(pfs_ + "/" + names[0], pfs_ + "/" + names[i]);
  }
  uint64_t inode_of(const std::string& path) { return stat_of(copy_of(path)).st_ino; }
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
  EXPECT_EQ(tier().used(), space() + 2 * tier().name_space());
  EXPECT_EQ(files_on(), 3);
  EXPECT_EQ(counter(AgentCounter::staged_files), 3u);
  EXPECT_EQ(counter(AgentCounter::demand_files), 3u);
  EXPECT_EQ(counter(AgentCounter::staged_bytes), 10000u);
  EXPECT_EQ((*board_)->placed_bytes[0], 10000u);
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
    uint64_t opens = 0;
    for (const std::string name : {"a", "b"}) {
      if (name == "b" && !found) continue;
      catalog_->add(rel(name), DT_REG);
      placement_->catalog_grew();
      ++opens;
      ASSERT_TRUE(eventually([&] { return counter(AgentCounter::agent_opens_pfs) == opens; }));
    }
    pass(100);
    EXPECT_EQ(state("a"), State::kStaging) << "it waits for the rate";
    EXPECT_EQ(demand("b"), state_word(State::kPlaced));
    EXPECT_TRUE(placed_at_last("a"));
    EXPECT_EQ(inode_of("a"), inode_of("b"));
    end();
  }
}

TEST_F(HardLinksPlacementTest, ALostCopyIsLostUnderAllNamesButThatOfANewerOne) {
  make({"a", "b", "c"});
  start();
  const uint64_t newer = again_word(catalog_->add(rel("newer"), DT_UNKNOWN));
  const Intercept lost(Call::kFinishSync, [&](Arguments&) {
    EXPECT_TRUE(placed_at_last("b") && placed_at_last("c"));
    catalog_->entry(catalog_->reader().find(rel("c")).ref).state = newer;
    return EIO;
  });
  demand("a");
  for (const char* name : {"b", "c"}) placement_->demand(rel(name));
  ASSERT_TRUE(eventually([&] { return files_on() == 0 && tier().used() == 0; }));
  const uint64_t given_up = state_word(State::kNoFit, Reason::kTierError);
  EXPECT_TRUE(eventually([&] { return word("a") == given_up && word("b") == given_up; }));
  EXPECT_EQ(word("c"), newer);
  EXPECT_EQ((*board_)->placed_bytes[0], 0u);
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

TEST_F(HardLinksPlacementTest, NamesHaveTheirOwnCopiesWhereTheyCannotShareOne) {
  make({"a", "b"});
  std::atomic<int> names{0};
  struct Case {
    const char* where;
    Call call;
    Intercept::Handler handler;
  };
  const timespec later = {os::realtime_s() + 3600, 0};  // after the catalog is made
  const std::vector<Case> cases = {
      {"the tier has no links", Call::kLinkat, [](Arguments& a) { return a.flags == 0 ? EPERM : 0; }},
      {"the one that waits for the copy cannot be linked", Call::kLinkat,
       [&](Arguments&) {
         if (++names == 1) {  // the copy gets its name
           placement_->demand(rel("b"));
           eventually([&] { return state("b") == State::kStaging; });
           EXPECT_TRUE(quiet()) << "they wait for this one";
         }
         return names == 2 || names == 3 ? EPERM : 0;
       }},
      {"times do not tell of changes", Call::kFstatResult, [later](Arguments& a) {
         a.st->st_ctim = later;
         return 0;
       }}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.where);
    start();
    {
      const Intercept none(c.call, c.handler);
      for (const char* name : {"a", "b"}) EXPECT_EQ(demand(name), state_word(State::kPlaced));
    }
    EXPECT_NE(inode_of("a"), inode_of("b"));
    EXPECT_EQ(tier().used(), 2 * space());
    end();
    remove_copies();
  }
}

}  // namespace
}  // namespace monarch
