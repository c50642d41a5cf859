// SPDX-License-Identifier: Apache-2.0
// Root lowers a tier's quota: large files, whole ones and parts.
#include "runtime/placement/evict.h"

#include <dirent.h>

#include <atomic>
#include <functional>
#include <map>

#include "runtime/placement/copying.h"
#include "tests/evict_fixture.h"

namespace monarch {
namespace {

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
    scratch_.file("pfs/large", noise(kLarge, 1));
  }
  void stage_what_fits() {
    demand("large");
    placement_->demand_chunk(rel("large"), 0);
    ASSERT_TRUE(eventually([&] { return counter(AgentCounter::staged_chunks) == 2; }));
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
  scratch_.file("pfs/large", noise(kLarge, 1));
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
  scratch_.file("pfs/large", noise(kLarge, 1));
  start();
  demand("large");
  std::atomic<bool> held{true};
  std::atomic<int> reading{0};
  {
    Intercept reads(Call::kPread, [&](Arguments& a) {
      if (a.offset == 0) return 0;
      ++reading;
      return eventually([&] { return !held; }) ? 0 : EIO;
    });
    placement_->demand_chunk(rel("large"), 0);
    ASSERT_TRUE(eventually([&] { return counter(AgentCounter::staged_chunks) >= 1 && reading >= 1; }));
    set_quota(0);
    ASSERT_TRUE(eventually([&] { return word("large") == kHeld; }));
    EXPECT_TRUE(eventually([&] { return parts() == 0; }));
    EXPECT_EQ(tier().used(), kLarge) << "a thread copies into it";
    held = false;
    ASSERT_TRUE(keeps_to(0));
  }
  expect_nothing_left("large");
  EXPECT_EQ(counter(AgentCounter::staged_chunks), 1u) << "the others came to nothing";
  set_quota(kLarge);
  demand("large");
  placement_->demand_chunk(rel("large"), 2);
  ASSERT_TRUE(placed_at_last("large"));
  EXPECT_TRUE(contents(copy_of("large")) == contents(pfs_ + "/large"));
}

TEST_F(EvictLargeTest, APartThatIsParkedOrKeptIsRemoved) {
  make_too_large();
  start();
  stage_what_fits();
  EXPECT_EQ(tier().used(), 2u << 20);
  set_quota((2 << 20) - 1);
  ASSERT_TRUE(keeps_to((2 << 20) - 1));
  expect_nothing_left("large");
  set_quota(kLarge);
  demand("large");
  placement_->demand_chunk(rel("large"), 0);
  ASSERT_TRUE(placed_at_last("large"));
}

TEST_F(EvictLargeTest, APartThatNobodyFillsJustNowIsRemoved) {
  scratch_.file("pfs/large", noise(kLarge, 1));
  start_without_filling();
  demand("large");
  placement_->demand_chunk(rel("large"), 1);
  ASSERT_TRUE(eventually([&] { return counter(AgentCounter::staged_chunks) >= 1; }));
  scratch_.file("pfs/other", noise(kLarge, 2));
  demand("other");
  placement_->demand_chunk(rel("other"), 1);
  ASSERT_TRUE(eventually([&] { return counter(AgentCounter::staged_chunks) >= 2; }));
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

// As when another thread has just taken it, for a reason of its own.
TEST_F(EvictLargeTest, APartThatIsNotThereAnyMoreIsNotRemoved) {
  scratch_.file("pfs/large", noise(kLarge, 1));
  make(1);
  start();
  place_all(1);
  const Ref ref = catalog_->add(rel("large"), DT_REG);
  ASSERT_NE(catalog_->start_chunks(ref, 0, source_stat("large")), 0u);
  const uint64_t before = word("large");
  set_quota(0);
  ASSERT_TRUE(keeps_to(0));
  EXPECT_EQ(word("large"), before);
  EXPECT_EQ(counter(AgentCounter::evicted_files), 1u);
}

TEST_F(EvictLargeTest, LackOfDescriptorsPutsAPartOff) {
  make_too_large();
  start();
  stage_what_fits();
  {
    std::atomic<int> opens{0};
    const Intercept none(Call::kOpenat, [&](Arguments&) {
      ++opens;
      return EMFILE;
    });
    set_quota(0);
    ASSERT_TRUE(eventually([&] { return opens >= 3; }));
    EXPECT_EQ(state("large"), State::kLarge) << "it may be open";
  }
  ASSERT_TRUE(keeps_to(0));
  expect_nothing_left("large");
}

// Tells when a copy is complete, and tasks find it, before who made it goes on; and what is given up.
class ToldSource : public PfsSource {
 public:
  using PfsSource::PfsSource;
  void copied(Ref ref, int) noexcept override {
    if (told) told(ref);
  }
  void given_up(Ref ref) noexcept override { ++times_given_up[ref]; }
  std::function<void(Ref)> told;
  std::map<Ref, int> times_given_up;  // while one thread copies
};

class EvictToldTest : public EvictLargeTest {
 protected:
  // `told`: see ToldSource.
  void start(const std::function<void(Ref)>& told = nullptr) {
    prepare();
    told_ = make_placement<ToldSource>();
    told_->told = told;
    ASSERT_TRUE(placement_->start().ok());
    placement_->set_quota(0, tier().quota());
  }
  ToldSource* told_ = nullptr;
};

TEST_F(EvictToldTest, OfAPartOthersAreToldThatNoMoreOfItComes) {
  config_.threads = 1;
  make_too_large();
  start();
  stage_what_fits();
  placement_->stop();
  EXPECT_EQ(told_->times_given_up[catalog_->reader().find(rel("large")).ref], 1);
}

TEST_F(EvictToldTest, ACopyWithHolesThatIsTakenAwayAtOnceGivesItsSpaceBackOnce) {
  const std::string path = scratch_.file("pfs/holes", "begin");
  std::filesystem::resize_file(path, 2 * kLarge);
  if (!is_sparse(source_stat("holes"))) GTEST_SKIP() << "files have no holes here";
  scratch_.file("pfs/other", noise(kLarge, 1));
  std::atomic<bool> there{false};
  start([&](Ref ref) {
    if (ref != catalog_->reader().find(rel("holes")).ref) return;
    there = true;
    EXPECT_TRUE(eventually([&] { return word("holes") == kHeld; }));
  });
  demand("other");
  placement_->demand_chunk(rel("other"), 0);
  ASSERT_TRUE(placed_at_last("other"));
  const Fd held = open_copy("other");
  demand("holes");
  placement_->demand_chunk(rel("holes"), 0);
  ASSERT_TRUE(eventually([&] { return there.load(); }));
  set_quota(kLarge);
  EXPECT_TRUE(is_gone("holes"));
  EXPECT_EQ(state("other"), State::kPlaced);
  EXPECT_EQ(tier().used(), kLarge);
}

}  // namespace
}  // namespace monarch
