// SPDX-License-Identifier: Apache-2.0
// What a node says of the files that it holds.
#include "runtime/peer/holdings.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/metadata/board.h"
#include "runtime/peer/fetch.h"
#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/lack_of_memory.h"
#include "tests/scratch.h"
#include "tests/tiers.h"

namespace monarch {
namespace {

class HoldingsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string run_dir = scratch_.dir("run");
    catalog_ = make_catalog(run_dir);
    Result<Hierarchy> hierarchy =
        Hierarchy::open({tier_config(scratch_, "ssd", 1 << 20)}, "monarch-run.test");
    Result<BoardFile> board = BoardFile::create(run_dir);
    ASSERT_TRUE(catalog_ && hierarchy.ok() && board.ok());
    hierarchy_.emplace(hierarchy.take());
    board_.emplace(board.take());
  }
  void start(uint32_t nodes) {
    nodes_ = nodes;
    holdings_.emplace(HoldingsOptions{catalog_.get(), &*hierarchy_, board_->get(), 1, nodes,
                                      [](const RelPath&, uint32_t) {}});
  }
  Ref hold(const std::string& name) {
    const Ref ref = catalog_->add(rel(name), DT_REG);
    holdings_->piece(holdings_->begin(ref, {1, 2, 3, 4, 0}, false, nullptr).get(), 0, 5);
    EXPECT_TRUE(holdings_->copied(ref, 0));
    return ref;
  }
  std::vector<std::string> hold_many(int files) {
    std::vector<std::string> names;
    for (int i = 0; i < files; ++i) {
      names.push_back("d" + std::to_string(i % 7) + "/f" + std::to_string(i));
      refs_.push_back(hold(names.back()));
    }
    return names;
  }
  // What is said of a share to who asks on and on; `*looks`: at how many files it was looked.
  std::multiset<FileKey> said(NodeIndex share, uint64_t* looks, Gather* from = nullptr) {
    std::multiset<FileKey> all;
    Gather gather;
    gather.share = share;
    if (from) gather = *from;
    for (bool ended = false; !ended;) {
      const HeldPage page = holdings_->page(gather, [&](const FileKey& key) {
        ++*looks;
        return home_of(key, nodes_) == share;
      });
      for (const HeldFile& file : page.files) all.insert(file.key);
      gather.log = page.log;
      gather.from = page.next;
      ended = page.ended;
    }
    if (from) *from = gather;
    return all;
  }
  std::map<NodeIndex, std::multiset<FileKey>> shares_of(const std::vector<std::string>& names) const {
    std::map<NodeIndex, std::multiset<FileKey>> shares;
    for (const std::string& name : names)
      shares[home_of(file_key(0, name), nodes_)].insert(file_key(0, name));
    return shares;
  }

  const Scratch scratch_;
  std::unique_ptr<Catalog> catalog_;
  std::optional<Hierarchy> hierarchy_;
  std::optional<BoardFile> board_;
  std::optional<Holdings> holdings_;
  uint32_t nodes_ = 1;
  std::vector<Ref> refs_;
};

// When a home is gone, each node of the job may be asked by all others, as its deputies: what one of them
// asks for must not cost a look at all that is held.
TEST_F(HoldingsTest, WhoAsksForAShareCostsALookAtThatShare) {
  start(1024);
  const std::vector<std::string> names = hold_many(5000);
  auto shares = shares_of(names);
  uint64_t looks = 0;
  for (NodeIndex share = 0; share < nodes_; ++share) EXPECT_EQ(said(share, &looks), shares[share]) << share;
  EXPECT_EQ(looks, names.size());
  EXPECT_TRUE(said(5000, &looks).empty()) << "of no node";
}

TEST_F(HoldingsTest, WhatIsNotHeldAnyMoreIsNotSaid) {
  start(2);
  const std::vector<std::string> names = hold_many(3000);
  auto shares = shares_of(names);
  uint64_t looks = 0;
  Gather last[2];
  for (const NodeIndex share : {0u, 1u}) {
    last[share].share = share;
    EXPECT_EQ(said(share, &looks, &last[share]), shares[share]);
  }
  for (size_t i = 0; i < names.size(); i += 2) {
    const FileKey key = file_key(0, names[i]);
    EXPECT_EQ(holdings_->given_up(refs_[i]), key);
    shares[home_of(key, 2)].erase(key);
  }
  for (const NodeIndex share : {0u, 1u}) EXPECT_EQ(said(share, &looks), shares[share]);
  // The others come and go: the log stays short, and who has heard all of the one before hears of the new
  // one.
  for (int round = 0; round < 5; ++round)
    for (size_t i = 0; i < names.size(); i += 2) {
      hold(names[i]);
      EXPECT_TRUE(holdings_->given_up(refs_[i]));
    }
  for (const NodeIndex share : {0u, 1u}) {
    looks = 0;
    const auto now = said(share, &looks, &last[share]);
    EXPECT_EQ(std::set<FileKey>(now.begin(), now.end()),
              std::set<FileKey>(shares[share].begin(), shares[share].end()));
    EXPECT_LE(looks, names.size());
    EXPECT_TRUE(said(share, &looks, &last[share]).empty()) << "nothing has come since";
  }
}

TEST_F(HoldingsTest, WhatDoesNotBeginForLackOfMemoryIsNotServed) {
  start(2);
  const auto copy = std::make_shared<Fd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  for (const char* name : {"one", "several"}) {
    const Ref ref = catalog_->add(rel(name), DT_REG);
    const bool names = name == std::string("several");
    bool began = false;
    for (int n = 1; !began; ++n) {
      lack_memory_at(n);
      try {
        (void)holdings_->begin(ref, {3 * kPieceBytes, 2, 3, 4, 0}, names, copy);
        began = true;
      } catch (const std::bad_alloc&) {
      }
      lack_memory_at(0);
      Get get;
      get.path = name;
      GetResult why = GetResult::kOk;
      const auto file = holdings_->open(get, &why);
      EXPECT_EQ(file != nullptr, began);
      if (file) {
        EXPECT_EQ(file->check(2, 0), std::nullopt);
      }
      EXPECT_EQ(holdings_->given_up(ref), std::nullopt);
      EXPECT_EQ(holdings_->open(get, &why), nullptr);
      ASSERT_LT(n, 100);
    }
  }
}

// As when another node says that it got wrong bytes from here.
class DoubtTest : public HoldingsTest {
 protected:
  static constexpr uint64_t kPieces = 3, kBytes = (kPieces - 1) * kPieceBytes + 100;
  void SetUp() override {
    HoldingsTest::SetUp();
    Result<Hierarchy> hierarchy =
        Hierarchy::open({tier_config(scratch_, "hdd", 8 << 20)}, "monarch-run.test");
    ASSERT_TRUE(hierarchy.ok());
    hierarchy_.emplace(hierarchy.take());
    start(2);
    ref_ = catalog_->add(rel("f"), DT_REG);
    const std::string content = noise(kBytes, 1);
    Result<Fd> copy = tier().create(ref_, kBytes);
    ASSERT_TRUE(copy.ok());
    ASSERT_EQ(::pwrite(copy->get(), content.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
    const auto coming = holdings_->begin(ref_, {kBytes, 2, 3, 4, 0}, false, nullptr);
    for (uint64_t i = 0; i < kPieces; ++i) {
      const uint64_t at = i * kPieceBytes;
      checks_.push_back(check_of_piece(content.data() + at, std::min(kPieceBytes, kBytes - at)));
      holdings_->piece(coming.get(), i, checks_.back());
    }
    ASSERT_TRUE(tier().publish(*copy, ref_).ok());
    ASSERT_TRUE(holdings_->copied(ref_, 0));
    writes_ = copy.take();
  }
  Tier& tier() { return hierarchy_->tiers()[0]; }
  std::unique_ptr<ServedFile> asked() {
    Get get;
    get.path = "f";
    return holdings_->open(get, &why_);
  }
  Ref ref_ = 0;
  Fd writes_;
  std::vector<uint64_t> checks_;
  GetResult why_ = GetResult::kOk;
  std::atomic<int> reads_{0};
  const Intercept counts_{Call::kPread, [this](Arguments&) {
                            ++reads_;
                            return 0;
                          }};
};

// Whoever asks for one piece, for which a task may wait, does not wait until the whole copy has been read.
TEST_F(DoubtTest, EachPieceIsLookedAtOnceBeforeItIsSent) {
  const auto before = asked();
  ASSERT_NE(before, nullptr);
  for (uint64_t i = 0; i < kPieces; ++i) EXPECT_EQ(before->check(i, 0), checks_[i]);
  EXPECT_EQ(reads_, 0);
  holdings_->doubt(file_key(0, "f"));
  auto file = asked();
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(reads_, 0);
  EXPECT_EQ(file->check(1, 0), checks_[1]);
  EXPECT_EQ(reads_, 1);
  EXPECT_EQ(file->check(2, 0), checks_[2]);
  EXPECT_EQ(asked()->check(0, 0), checks_[0]);
  EXPECT_EQ(reads_, static_cast<int>(kPieces));
  file = asked();
  for (uint64_t i = 0; i < kPieces; ++i) EXPECT_EQ(file->check(i, 0), checks_[i]);
  EXPECT_EQ(reads_, static_cast<int>(kPieces)) << "it is not doubted any more";
}

TEST_F(DoubtTest, AWrongPieceIsNotSentAndItsCopyNotUsed) {
  ASSERT_EQ(::pwrite(writes_.get(), "?", 1, kPieceBytes + 5), 1);
  holdings_->doubt(file_key(0, "f"));
  const auto file = asked();
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->check(0, 0), checks_[0]);
  EXPECT_EQ(file->check(1, 0), std::nullopt);
  EXPECT_EQ(asked(), nullptr);
  EXPECT_EQ(why_, GetResult::kGone);
  EXPECT_EQ(state_of(catalog_->entry(ref_).state), State::kNoFit) << "nor does a task of this node get it";
}

}  // namespace
}  // namespace monarch
