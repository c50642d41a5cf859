// SPDX-License-Identifier: Apache-2.0
// The order in which a job will use files: how it is told, and what comes next.
#include "runtime/placement/order.h"

#include <poll.h>

#include "runtime/agent/order_watch.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

std::vector<Ref> all_of(Order* order) {
  std::vector<Ref> refs;
  while (const std::optional<Ref> ref = order->next()) refs.push_back(*ref);
  return refs;
}

TEST(OrderTest, RanksAreMergedByAccessAndEpochsFollowEachOther) {
  Order order;
  EXPECT_FALSE(order.next());
  EXPECT_TRUE(order.add({1, 0, 0, {90, 91}}));
  EXPECT_TRUE(order.add({0, 7, 0, {20, 21, 22}}));
  EXPECT_TRUE(order.add({0, 3, 0, {10, 11}}));
  EXPECT_EQ(all_of(&order), (std::vector<Ref>{10, 20, 11, 21, 22, 90, 91}));
  EXPECT_TRUE(order.empty());
}

TEST(OrderTest, WhatIsNoneIsPassedOverInItsPlace) {
  Order order;
  EXPECT_TRUE(order.add({0, 0, 0, {0, 0, 10, 0, 11, 0}}));
  EXPECT_TRUE(order.add({0, 1, 0, {20, 0, 0, 21, 22}}));
  EXPECT_TRUE(order.add({0, 2, 0, {0, 0}}));
  EXPECT_EQ(all_of(&order), (std::vector<Ref>{20, 10, 21, 11, 22}));
  EXPECT_TRUE(order.empty());
}

TEST(OrderTest, PiecesComeInAnyOrderAndLate) {
  Order order;
  EXPECT_TRUE(order.add({0, 0, 2, {12, 13}}));
  EXPECT_TRUE(order.add({0, 1, 0, {20, 21, 22, 23}}));
  EXPECT_EQ(order.next(), Ref{20});
  EXPECT_EQ(order.next(), Ref{21});
  EXPECT_TRUE(order.add({0, 0, 0, {10, 11}})) << "behind the others: it is used first";
  EXPECT_EQ(all_of(&order), (std::vector<Ref>{10, 11, 12, 22, 13, 23}));
}

TEST(OrderTest, WhatIsTooLongIsRefusedUntilThereIsRoom) {
  constexpr size_t kPiece = Order::kPieceRefs;
  Order order(2 * kPiece + 3);
  EXPECT_TRUE(order.add({0, 0, 0, {}}));
  EXPECT_TRUE(order.empty());
  EXPECT_TRUE(order.add({0, 0, 0, {5, 6}}));
  EXPECT_FALSE(order.add({1, 0, 0, {7, 8}}));
  EXPECT_TRUE(order.add({1, 0, 0, {7}}));
  EXPECT_EQ(order.next(), Ref{5});
  EXPECT_FALSE(order.add({1, 0, 1, {8}})) << "what is taken of a piece is held until all is";
  EXPECT_EQ(order.next(), Ref{6});
  EXPECT_TRUE(order.add({1, 0, 1, {8, 9}}));
  EXPECT_EQ(all_of(&order), (std::vector<Ref>{7, 8, 9}));
  EXPECT_TRUE(order.add({1, 0, 0, std::vector<Ref>(kPiece + 3, 1)}));
}

TEST(UsesTest, FilesWaitByTheirEpochsUntilTheirCopyIsBegun) {
  constexpr Ref kOnce = 1, kTwice = 6, kThrice = 4000;  // entries are as near as that
  Uses uses;
  for (const auto& [epoch, refs] : std::vector<std::pair<uint32_t, std::vector<Ref>>>{
           {0, {kOnce, kTwice, kThrice}}, {7, {kThrice, kTwice}}, {30, {kThrice, kThrice}}, {31, {kThrice}}})
    for (const Ref ref : refs) uses.add(ref, epoch);
  EXPECT_EQ((std::vector<uint32_t>{uses.of(0xffffffff), uses.of(kOnce), uses.of(kTwice), uses.of(kThrice)}),
            (std::vector<uint32_t>{0, 1, 2, 3}));
  const auto waiting = [&] {
    std::vector<uint64_t> all;
    for (const uint32_t epochs : {0u, 1u, 2u, 3u}) all.push_back(uses.waiting(epochs));
    return all;
  };
  EXPECT_EQ(waiting(), (std::vector<uint64_t>{3, 2, 1, 0}));
  for (const Ref ref : {kTwice, kTwice, Ref{0xffffffff}, Ref{2000}}) uses.begun(ref);
  EXPECT_EQ(waiting(), (std::vector<uint64_t>{2, 1, 1, 0}));
  uses.add(kTwice, 1);
  uses.add(kOnce, 1);
  EXPECT_EQ(uses.of(kTwice), 3u);
  EXPECT_EQ(waiting(), (std::vector<uint64_t>{2, 2, 1, 0}));
}

class OrderWatchTest : public ::testing::Test {
 protected:
  int post(const std::vector<Ref>& refs, uint32_t rank = 0) const {
    OrderHeader header;
    header.count = static_cast<uint32_t>(refs.size());
    header.rank = rank;
    header.epoch = 4;
    header.first = uint64_t{1} << 40;
    return post_order(dir_.get(), header, refs.data());
  }
  void append(const std::string& bytes) const { std::ofstream(file_, std::ios::app) << bytes; }
  static std::string text_of(const OrderHeader& header, size_t refs) {
    return std::string(reinterpret_cast<const char*>(&header), sizeof header) +
           std::string(refs * sizeof(Ref), 'r');
  }
  static bool is_told(const OrderWatch& watch) {
    pollfd p = {watch.fd(), POLLIN, 0};
    return ::poll(&p, 1, 0) == 1;
  }
  // That the box, with `bytes` behind a good piece, has that one only, and takes another one afterwards.
  void expect_dropped(OrderWatch* watch, const std::string& bytes) const {
    ASSERT_EQ(post({1, 2}), 0);
    append(bytes);
    const std::vector<OrderPiece> pieces = watch->take();
    ASSERT_EQ(pieces.size(), 1u);
    EXPECT_EQ(pieces[0].refs, (std::vector<Ref>{1, 2}));
    EXPECT_EQ(std::filesystem::file_size(file_), 0u);
    EXPECT_EQ(post({3}), 0);
    EXPECT_EQ(watch->take().size(), 1u);
  }
  const Scratch scratch_;
  const Fd dir_{::open(scratch_.path().c_str(), O_PATH | O_DIRECTORY)};
  const std::string file_ = scratch_ / kOrderFile;
};

TEST_F(OrderWatchTest, EachPieceIsToldAndTakenOnce) {
  EXPECT_EQ(post({1}), ENOENT) << "no agent has made it";
  OrderWatch watch(dir_.get());
  EXPECT_FALSE(is_told(watch));
  ASSERT_EQ(post({5, 6, 7}), 0);
  ASSERT_EQ(post({8}, 2), 0);
  EXPECT_TRUE(is_told(watch));
  const std::vector<OrderPiece> pieces = watch.take();
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_EQ(pieces[0].refs, (std::vector<Ref>{5, 6, 7}));
  EXPECT_EQ(std::tuple(pieces[0].epoch, pieces[0].rank, pieces[0].first),
            std::tuple(4u, 0u, uint64_t{1} << 40));
  EXPECT_EQ(pieces[1].rank, 2u);
  EXPECT_FALSE(is_told(watch));
  EXPECT_TRUE(watch.take().empty());
}

TEST_F(OrderWatchTest, WhatMakesNoSenseIsDroppedWithAllBehindIt) {
  OrderWatch watch(dir_.get());
  OrderHeader good, foreign, other, long_one;
  good.count = 3;
  foreign.magic ^= 1;
  ++other.version;
  long_one.count = kMostInPiece + 1;
  for (const std::string& bytes :
       {std::string("x"), text_of(foreign, 0), text_of(other, 0), text_of(long_one, kMostInPiece + 1),
        text_of(good, 2), text_of(good, 3).substr(0, sizeof good + 11), text_of(other, 0) + text_of(good, 3)})
    expect_dropped(&watch, bytes);
}

TEST_F(OrderWatchTest, AFullBoxIsNotWrittenUntilItIsTaken) {
  OrderWatch watch(dir_.get());
  const std::vector<Ref> most(kMostInPiece, 9);
  int posted = 0;
  while (post(most) == 0) ++posted;
  EXPECT_EQ(post(most), EAGAIN);
  EXPECT_LE(std::filesystem::file_size(file_), kMostOrderBytes);
  EXPECT_EQ(watch.take().size(), static_cast<size_t>(posted));
  EXPECT_EQ(post(most), 0);
}

TEST_F(OrderWatchTest, WhoWritesIsNotDisturbedAndTellsAtTheEnd) {
  OrderWatch watch(dir_.get());
  ASSERT_EQ(post({1}), 0);
  Fd writer(::open(file_.c_str(), O_WRONLY | O_APPEND));
  ASSERT_EQ(::flock(writer.get(), LOCK_EX), 0);
  EXPECT_TRUE(watch.take().empty());
  EXPECT_EQ(post({2}), EAGAIN);
  ::flock(writer.get(), LOCK_UN);
  writer.reset();
  EXPECT_TRUE(is_told(watch));
  EXPECT_EQ(watch.take().size(), 1u);
}

TEST_F(OrderWatchTest, AnotherKindOfFileIsLeftAlone) {
  scratch_.file("other", text_of(OrderHeader(), 0));
  std::filesystem::create_symlink(scratch_ / "other", file_);
  OrderWatch watch(dir_.get());
  EXPECT_EQ(watch.fd(), -1);
  EXPECT_TRUE(watch.take().empty());
  EXPECT_NE(post({1}), 0);
  EXPECT_EQ(std::filesystem::file_size(scratch_ / "other"), sizeof(OrderHeader));
}

}  // namespace
}  // namespace monarch
