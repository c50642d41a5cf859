// SPDX-License-Identifier: Apache-2.0
// What a node says of the files that it holds.
#include "runtime/peer/holdings.h"

#include <future>
#include <map>
#include <set>

#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/manual_clock.h"
#include "tests/peer_fixture.h"

namespace monarch {
namespace {

class HoldingsTest : public ::testing::Test {
 protected:
  void start(uint32_t nodes) {
    nodes_ = nodes;
    holdings_.emplace(HoldingsOptions{parts_.catalog.get(), &*parts_.hierarchy, parts_.board(), 1, nodes,
                                      [](const RelPath&, uint32_t) {},
                                      [this](Ref ref, Fd copy) {
                                        EXPECT_TRUE(copy);
                                        spoilt_.push_back(ref);
                                      }});
  }
  Ref hold(const std::string& name) {
    const Ref ref = parts_.catalog->add(rel(name), DT_REG);
    holdings_->piece(holdings_->begin(ref, {1, 2, 3, 4, 0}, false, nullptr).get(), 0, 5);
    EXPECT_TRUE(holdings_->copied(ref, 0));
    return ref;
  }
  Tier& tier() { return parts_.tier(); }
  // The same with a copy.
  Ref hold_copy(const RelPath& path, uint64_t inode, bool names, size_t bytes = 100) {
    const Ref ref = parts_.catalog->add(path, DT_REG);
    const std::string content = noise(bytes, inode);
    Result<Fd> copy = tier().create(ref, bytes);
    EXPECT_TRUE(copy.ok());
    write_to(*copy, content);
    EXPECT_TRUE(publish(&tier(), *copy, ref).ok());
    const auto coming = holdings_->begin(ref, {bytes, 2, 3, inode, 0}, names, nullptr);
    uint64_t piece = 0;
    for (const uint64_t check : checks_of(content)) holdings_->piece(coming.get(), piece++, check);
    EXPECT_TRUE(holdings_->copied(ref, 0));
    return ref;
  }
  std::unique_ptr<ServedFile> ask(const std::string& path, uint64_t inode = 0, uint32_t root = 0) {
    Get get;
    get.root = root;
    get.path = path;
    get.inode = inode;
    return holdings_->open(get, &why_);
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
  AgentParts parts_{scratch_, scratch_.dir("pfs"), 8 << 20, {4 * kMiB, 0, false, true}};
  std::optional<Holdings> holdings_;
  uint32_t nodes_ = 1;
  std::vector<Ref> refs_;
  GetResult why_ = GetResult::kOk;
  std::vector<Ref> spoilt_;
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

TEST_F(HoldingsTest, WhatNoNodeAsksForIsNotThere) {
  start(1);
  const Ref ref = hold_copy(rel("f"), 4, false);
  hold_copy(rel("d/../h"), 6, false);
  EXPECT_NE(ask("f"), nullptr);
  EXPECT_EQ(ask("f", 0, 1), nullptr) << "another root";
  EXPECT_EQ(ask("d/../h"), nullptr);
  EXPECT_EQ(ask(std::string(kPathBytes, 'f')), nullptr);
  ASSERT_EQ(::unlink(path_of_copy(tier(), ref).c_str()), 0);
  EXPECT_EQ(ask("f"), nullptr) << "its copy is gone";
  EXPECT_EQ(why_, GetResult::kGone);
}

// It is there, and may be sent as soon as the shortage is over.
TEST_F(HoldingsTest, WhatCannotBeOpenedForLackOfDescriptorsIsNotGone) {
  start(1);
  hold_copy(rel("f"), 4, false);
  for (const int error : {EMFILE, ENFILE, ENOMEM, EIO}) {
    const Intercept fails(Call::kOpenat, error);
    EXPECT_EQ(ask("f"), nullptr);
    EXPECT_EQ(why_, error == EIO ? GetResult::kGone : GetResult::kBusy) << error;
  }
  EXPECT_NE(ask("f"), nullptr);
}

// Whoever has it by another name has the same file.
TEST_F(HoldingsTest, AFileOfSeveralNamesIsFoundByAnyThatIsHeld) {
  constexpr uint64_t kInode = 4;
  start(1);
  const Ref a = hold_copy(rel("a"), kInode, true), b = hold_copy(rel("b"), kInode, true);
  EXPECT_NE(ask("other", kInode), nullptr);
  EXPECT_EQ(ask("other"), nullptr);
  EXPECT_EQ(ask("other", kInode + 1), nullptr);
  EXPECT_TRUE(holdings_->given_up(a));
  EXPECT_NE(ask("other", kInode), nullptr);
  hold_copy(rel("a"), kInode, true);
  EXPECT_TRUE(holdings_->given_up(b));
  hold_copy(rel("b"), kInode, true);
  EXPECT_TRUE(holdings_->given_up(b));
  EXPECT_NE(ask("a", kInode), nullptr) << "by its own";
  hold_copy(rel("one"), 9, false);
  EXPECT_NE(ask("one", 9), nullptr) << "it has got another one since";
}

// What this node gets is sent on piece by piece.
class ComingTest : public HoldingsTest {
 protected:
  static constexpr FileIdentity kIdentity = {3 * kPieceBytes, 2, 3, 4, 0};
  void SetUp() override {
    holdings_.emplace(HoldingsOptions{parts_.catalog.get(), &*parts_.hierarchy, parts_.board(), 1, 2,
                                      [this](const RelPath& path, uint32_t piece) {
                                        EXPECT_EQ(path.hash, rel("f").hash);
                                        wanted_.push_back(piece);
                                      },
                                      nullptr},
                      clock_);
    ref_ = parts_.catalog->add(rel("f"), DT_REG);
    coming_ = holdings_->begin(ref_, kIdentity, false, copy_);
  }
  std::unique_ptr<ServedFile> follow(Purpose purpose, Follow follow = Follow::kYes) {
    Get get;
    get.path = "f";
    get.follow = follow;
    get.purpose = purpose;
    return holdings_->open(get, &why_);
  }
  ManualClock clock_;
  std::shared_ptr<Fd> copy_ = std::make_shared<Fd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Ref ref_ = 0;
  std::shared_ptr<Holdings::Coming> coming_;
  std::vector<uint32_t> wanted_;
};

TEST_F(ComingTest, WhatATaskOfAnotherNodeWaitsForIsAskedForOnce) {
  const auto file = follow(Purpose::kDemand);
  ASSERT_NE(file, nullptr);
  holdings_->piece(coming_.get(), 0, 5);
  EXPECT_EQ(file->check(0, 0), 5u);
  EXPECT_TRUE(wanted_.empty()) << "it is there";
  EXPECT_EQ(follow(Purpose::kPrefetch)->check(1, 0), std::nullopt);
  EXPECT_EQ(follow(Purpose::kDemand, Follow::kNo)->check(1, 0), std::nullopt);
  EXPECT_TRUE(wanted_.empty());
  for (int i = 0; i < 2; ++i) EXPECT_EQ(file->check(1, 0), std::nullopt);
  EXPECT_EQ(wanted_, std::vector<uint32_t>{1});
}

TEST_F(ComingTest, APieceIsWaitedForUntilItIsThereOrWillNotBe) {
  const auto waits_for = [&](uint64_t piece) {
    auto came =
        std::async(std::launch::async, [this, piece, file = std::shared_ptr(follow(Purpose::kPrefetch))] {
          return file->check(piece, kPatienceMs);
        });
    EXPECT_TRUE(clock_.await_waiting(1));
    return came;
  };
  auto comes = waits_for(1);
  holdings_->piece(coming_.get(), 0, 5);
  holdings_->piece(coming_.get(), 1, 6);
  EXPECT_EQ(comes.get(), 6u);
  auto late = waits_for(2);
  clock_.advance_ms(kPatienceMs);
  EXPECT_EQ(late.get(), std::nullopt);
  auto in_vain = waits_for(2);
  EXPECT_FALSE(holdings_->given_up(ref_));
  EXPECT_EQ(in_vain.get(), std::nullopt);
}

TEST_F(ComingTest, WhoGoesOnKeepsWhatIsThere) {
  holdings_->piece(coming_.get(), 0, 5);
  copy_.reset();
  EXPECT_EQ(follow(Purpose::kPrefetch), nullptr) << "it has ended for now";
  EXPECT_EQ(why_, GetResult::kGone);
  const auto copy = std::make_shared<Fd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  EXPECT_EQ(holdings_->begin(ref_, kIdentity, false, copy), coming_);
  const auto file = follow(Purpose::kPrefetch);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->copy(), copy->get());
  EXPECT_EQ(file->check(0, 0), 5u);
}

// Each thread that copies parts of a file begins it, while others are asked for it. The whole check runs this
// under the thread sanitizer, too.
TEST_F(ComingTest, WhoAsksWhileItBeginsAgainIsServed) {
  constexpr int kRounds = 2000;
  std::thread begins([&] {
    for (int i = 0; i < kRounds; ++i) {
      const auto copy = std::make_shared<Fd>(::open("/dev/null", O_RDONLY | O_CLOEXEC));
      for (const auto& one : {copy, copy_}) EXPECT_EQ(holdings_->begin(ref_, kIdentity, false, one), coming_);
    }
  });
  for (int i = 0; i < kRounds; ++i) {
    const auto file = follow(Purpose::kPrefetch);  // none at times: another copy has just ended
    EXPECT_TRUE(!file || file->copy() >= 0);
  }
  begins.join();
  EXPECT_EQ(follow(Purpose::kPrefetch)->copy(), copy_->get());
}

TEST_F(ComingTest, WhatWasReplacedMeanwhileBeginsAnew) {
  const auto before = follow(Purpose::kPrefetch);
  const auto now = holdings_->begin(ref_, {2 * kPieceBytes, 9, 9, 4, 0}, false, copy_);
  EXPECT_NE(now, coming_);
  holdings_->piece(now.get(), 0, 7);
  EXPECT_EQ(before->check(0, 60000), std::nullopt) << "at once: that one has ended";
  holdings_->piece(coming_.get(), 1, 5);  // by a thread that has not heard of it
  const auto file = follow(Purpose::kPrefetch);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->identity().mtime_ns, 9);
  EXPECT_EQ(file->check(0, 0), 7u);
  EXPECT_EQ(file->check(1, 0), std::nullopt);
  holdings_->piece(now.get(), 1, 8);
  const std::optional<FileIdentity> held = holdings_->copied(ref_, 0);
  ASSERT_TRUE(held);
  EXPECT_EQ(held->bytes, 2 * kPieceBytes);
}

TEST_F(ComingTest, WhatIsNotWholeIsNotHeld) {
  for (const uint64_t number : {0, 8, 1, 1}) holdings_->piece(coming_.get(), number, 5);
  EXPECT_EQ(holdings_->copied(ref_, 0), std::nullopt);
  EXPECT_EQ(follow(Purpose::kPrefetch), nullptr);
  EXPECT_EQ(holdings_->given_up(ref_), std::nullopt);
}

// As when another node says that it got wrong bytes from here.
class DoubtTest : public HoldingsTest {
 protected:
  static constexpr uint64_t kPieces = 3, kBytes = (kPieces - 1) * kPieceBytes + 100;
  void SetUp() override {
    start(2);
    ref_ = hold_copy(rel("f"), 4, false, kBytes);
    checks_ = checks_of(noise(kBytes, 4));
  }
  std::unique_ptr<ServedFile> asked() { return ask("f"); }
  void spoil() { overwrite(path_of_copy(tier(), ref_), "?", kPieceBytes + 5); }
  Ref ref_ = 0;
  std::vector<uint64_t> checks_;
  std::atomic<int> reads_{0};
  const Intercept counts_{Call::kPread, [this](Arguments&) { ++reads_; }};
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
  spoil();
  holdings_->doubt(file_key(0, "f"));
  const auto file = asked();
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(file->check(0, 0), checks_[0]);
  EXPECT_EQ(file->check(1, 0), std::nullopt);
  EXPECT_EQ(asked(), nullptr);
  EXPECT_EQ(why_, GetResult::kGone);
  EXPECT_EQ(spoilt_, std::vector<Ref>{ref_}) << "nor does a task of this node get it";
}

TEST_F(DoubtTest, AllOfItIsLookedAtAlsoIfNobodyAsks) {
  holdings_->look();
  holdings_->doubt(file_key(0, "f"));
  holdings_->look();
  EXPECT_TRUE(eventually([&] { return reads_ == static_cast<int>(kPieces); }));
  EXPECT_TRUE(eventually([&] {
    const auto file = asked();
    const int before = reads_;
    return file && file->check(0, 0) == checks_[0] && reads_ == before;
  })) << "it is not doubted any more";
  spoil();
  holdings_->doubt(file_key(0, "f"));
  holdings_->look();
  EXPECT_TRUE(eventually([&] { return asked() == nullptr; }));
  holdings_->stop();
  EXPECT_EQ(spoilt_, std::vector<Ref>{ref_});
}

TEST_F(DoubtTest, WhatComesIsLookedAtOnceItIsWhole) {
  const std::string content = noise(100, 1);
  const Ref ref = parts_.catalog->add(rel("g"), DT_REG);
  Result<Fd> copy = tier().create(ref, content.size());
  ASSERT_TRUE(copy.ok());
  const auto coming = holdings_->begin(ref, {content.size(), 2, 3, 5, 0}, false, nullptr);
  holdings_->piece(coming.get(), 0, check_of_piece(content.data(), content.size()));
  for (const char* name : {"g", "f"}) holdings_->doubt(file_key(0, name));
  holdings_->look();
  EXPECT_TRUE(eventually([&] { return reads_ == static_cast<int>(kPieces); })) << "f";
  ASSERT_TRUE(publish(&tier(), *copy, ref).ok());  // though nothing was written
  ASSERT_TRUE(holdings_->copied(ref, 0));
  EXPECT_TRUE(eventually([&] { return ask("g") == nullptr; }));
  holdings_->stop();
  EXPECT_EQ(spoilt_, std::vector<Ref>{ref});
}

// Whoever has the key may doubt what it likes. What is not held leaves room for what is.
TEST_F(DoubtTest, OnlySoManyAreDoubted) {
  for (int i = 0; i < 1000; ++i) holdings_->doubt(file_key(0, std::to_string(i)));
  holdings_->doubt(file_key(0, "f"));
  EXPECT_EQ(asked()->check(0, 0), checks_[0]);
  EXPECT_EQ(reads_, 0);
  holdings_->look();
  spoil();
  EXPECT_TRUE(eventually([&] {
    holdings_->doubt(file_key(0, "f"));
    holdings_->look();
    return asked() == nullptr;
  }));
}

}  // namespace
}  // namespace monarch
