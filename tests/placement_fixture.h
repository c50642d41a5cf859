// SPDX-License-Identifier: Apache-2.0
// What the tests of placement and walk share: the agent without its requests, on real directories.
#pragma once

#include <optional>

#include "preload/decide/waiting.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/walker.h"
#include "runtime/placement/pfs_source.h"
#include "runtime/placement/placement.h"
#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/quiet.h"
#include "tests/stores.h"
#include "tests/tiers.h"

namespace monarch {

inline int64_t nanoseconds(const timespec& t) { return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec; }

inline constexpr char kPlacementJob[] = "monarch-run.test";

// For a queue with nothing beside it, whose threads always have something to look at.
struct Others : WorkQueue::Others {
  std::optional<uint32_t> next_chunk(Ref) override { return {}; }
  int64_t due() override { return 0; }
  bool is_short() override { return false; }
  uint32_t least_uses() override { return 0; }
  bool affords(uint64_t) override { return true; }
  Reserved reserve(uint64_t) override { return {nullptr, 1}; }
  int64_t next_look_ns() override { return INT64_MAX; }
};

class PlacementTest : public ::testing::Test {
 protected:
  PlacementTest() {
    config_.threads = 4;
    config_.prefetch = AgentConfig::Prefetch::kOff;
    add_tier("ssd", 1 << 30);
  }
  ~PlacementTest() override {
    if (placement_) end();
  }
  // Ends what start() began; it can be started again.
  void end() {
    halt();
    walker_.reset();
    placement_.reset();
    catalog_.reset();
    board_.reset();
    hierarchy_.reset();
    stores_.end();
    dataset_.reset();
    EXPECT_EQ(open_descriptors(), descriptors_) << "descriptors were left open";
    for (const auto& file : std::filesystem::directory_iterator(run_dir_))
      std::filesystem::remove(file.path());
  }

  // After end().
  void remove_copies() {
    for (const TierConfig& tier : tiers_) std::filesystem::remove_all(tier.path + "/" + kPlacementJob);
  }

  // Ends the copying and the walk. What waits for a rate sees that when its time has come.
  void halt() {
    driver_ = std::this_thread::get_id();
    std::atomic<bool> ended{false};
    std::thread stops([&] {
      if (walker_) walker_->stop();
      if (placement_) placement_->stop();
      ended = true;
    });
    EXPECT_TRUE(eventually([&] { return ended.load(); }));
    stops.join();
  }
  // With time that goes on meanwhile (tests/quiet.h); in other threads than
  // the one that started it stands still.
  bool eventually(const std::function<bool()>& condition) {
    return std::this_thread::get_id() == driver_ ? monarch::eventually(&clock_, condition)
                                                 : monarch::eventually(condition);
  }
  void pass(int64_t ms) { monarch::pass(&clock_, ms); }

  void add_tier(const std::string& name, uint64_t quota) {
    tiers_.push_back(tier_config(scratch_, name, quota));
  }

  // The agent without its requests: everything but the walk.
  void start() {
    prepare();
    if (!HasFatalFailure()) place();
  }
  // What `start` does before the first thread runs.
  void prepare() {
    driver_ = std::this_thread::get_id();
    descriptors_ = open_descriptors();
    Result<Dataset> dataset = Dataset::open({pfs_});
    Result<Hierarchy> hierarchy =
        Hierarchy::open(tiers_, kPlacementJob, clock_, stores_.start(tiers_, kPlacementJob));
    stores_.grant_all();
    Result<BoardFile> board = BoardFile::create(run_dir_);
    ASSERT_TRUE(dataset.ok() && hierarchy.ok() && board.ok());
    dataset_.emplace(dataset.take());
    dataset_->exclude = config_.exclude;
    hierarchy_.emplace(hierarchy.take());
    board_.emplace(board.take());
    std::vector<TierView> views;
    for (const Tier& t : hierarchy_->tiers()) views.push_back({t.name(), t.copies_path(), t.device()});
    Result<std::unique_ptr<Catalog>> catalog = Catalog::create(
        run_dir_, dataset_->root_views(), dataset_->prefixes, views,
        {config_.stage_wait_max, 0, false, config_.metadata == AgentConfig::Metadata::kServe});
    ASSERT_TRUE(catalog.ok());
    catalog_ = catalog.take();
  }
  void place() {
    make_placement();
    ASSERT_TRUE(placement_->start().ok());
  }
  // After prepare(): a placement that reads through a `Source`, which is returned. It is not started.
  template <typename Source = PfsSource>
  Source* make_placement() {
    rates_.emplace(config_, clock_);
    if (watches_) {
      watch_ = std::make_unique<ChangeWatch>(&*dataset_, board_->get(), 1000);
      watch_->start();
    }
    auto source = std::make_unique<Source>(catalog_.get(), &*dataset_, board_->get(), &*rates_);
    Source* const made = source.get();
    source_ = std::move(source);
    placement_ = std::make_unique<PlacementHandler>(catalog_.get(), &*hierarchy_, &*dataset_, board_->get(),
                                                    config_, &*rates_, source_.get(), watch_.get(), clock_);
    return made;
  }
  // What nobody waits for is hardly copied: one file at a time, which waits for the rate.
  void start_without_filling() {
    config_.threads = 3;
    config_.pfs_bandwidth = 1;
    start();
    EXPECT_TRUE(rates_->pfs_bytes.wait(1 << 20, [] { return false; }));  // the only one that passes
  }
  void start_walk() {
    walker_ = std::make_unique<Walker>(
        catalog_.get(), &*dataset_, board_->get(), &rates_->pfs_stats, [this] { placement_->catalog_grew(); },
        nullptr, clock_);
    walker_->start(3);
  }
  bool walked() const { return catalog_->header().roots[0].walked == 1; }
  void walk() {
    start_walk();
    ASSERT_TRUE(eventually([&] { return walked(); }));
  }

  uint64_t word(const std::string& path) const {
    const Found found = catalog_->reader().find(rel(path));
    return found ? found.entry->state.load(std::memory_order_acquire) : 0;
  }
  State state(const std::string& path) const { return state_of(word(path)); }
  bool settles(const std::string& path) {
    return eventually([&] { return !unsettled(state(path)); });
  }
  bool placed_at_last(const std::string& path) {
    return eventually([&] { return state(path) == State::kPlaced; });
  }
  // Asks for a file; its state word once that is settled. A copy is counted behind that, before who waits is
  // woken.
  uint64_t demand(const std::string& path) {
    const std::atomic<uint32_t>& wakes = (*board_)->parking[rel(path).hash % kParking];
    const uint32_t before = wakes;
    const bool is_new = unsettled(state(path));
    placement_->demand(rel(path));
    EXPECT_TRUE(settles(path)) << path;
    if (is_new && state(path) == State::kPlaced) {
      EXPECT_TRUE(eventually([&] { return wakes != before; })) << path;
    }
    return word(path);
  }
  uint64_t counter(AgentCounter c) const { return total(*board_->get(), c); }
  Tier& tier(size_t number = 0) { return hierarchy_->tiers()[number]; }
  // Files on a tier, whatever their names.
  int files_on(size_t number = 0) { return monarch::files_on(tier(number)); }
  std::string copy_of(const std::string& path) {
    return path_of_copy(tier(tier_of(word(path))), catalog_->reader().find(rel(path)).ref);
  }

  // That `path` is placed, and copy and identity are those of the source, which looked like `source`.
  void expect_placed(const std::string& path, const struct stat& source, uint32_t on_tier = 0) {
    SCOPED_TRACE(path);
    ASSERT_EQ(word(path), state_word(State::kPlaced, Reason::kNone, on_tier));
    EXPECT_TRUE(contents(copy_of(path)) == contents(pfs_ + "/" + path)) << "the bytes differ";
    struct stat copy;
    ASSERT_EQ(::stat(copy_of(path).c_str(), &copy), 0);
    EXPECT_EQ(nanoseconds(copy.st_mtim), nanoseconds(source.st_mtim));
    const Entry* e = catalog_->reader().find(rel(path)).entry;
    EXPECT_EQ(e->size, static_cast<uint64_t>(source.st_size));
    EXPECT_EQ(e->mtime, nanoseconds(source.st_mtim));
    const Identity* id = catalog_->reader().find_copy(on_tier, copy.st_ino);
    ASSERT_NE(id, nullptr);
    EXPECT_EQ(id, catalog_->reader().identity(e->identity));
    EXPECT_EQ(catalog_->reader().entry(id->entry), e);
    EXPECT_EQ(id->pfs_ino, source.st_ino);
    EXPECT_EQ(id->atime, nanoseconds(source.st_atim));
    EXPECT_EQ(id->ctime, nanoseconds(source.st_ctim));
    EXPECT_EQ(id->blocks, source.st_blocks);
    const Attributes* a = catalog_->reader().attributes(id->attributes);
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->dev, source.st_dev);
    EXPECT_EQ(a->mode, source.st_mode);
    EXPECT_EQ(a->uid, source.st_uid);
    EXPECT_EQ(a->gid, source.st_gid);
    EXPECT_EQ(a->nlink, source.st_nlink);
    EXPECT_EQ(a->blksize, static_cast<uint32_t>(source.st_blksize));
  }
  struct stat source_stat(const std::string& path) const {
    struct stat st {};
    EXPECT_EQ(::stat((pfs_ + "/" + path).c_str(), &st), 0) << path;
    return st;
  }
  // In while_memory_is_short(): what the node has from now on, in KiB. What was read before is forgotten.
  std::string memory_is(const std::string& available) {
    std::string file = scratch_.file("meminfo", "MemTotal: 1000000 kB\nMemAvailable: " + available + " kB\n");
    later_.emplace_back(3600);
    return file;
  }
  // Runs `body` in a mount namespace of the test's own. False: mounting needs root.
  bool while_memory_is_short(const std::function<void()>& body) {
    const std::string file = memory_is("1");
    bool mounted = false;
    std::thread([&] {
      mounted = ::unshare(CLONE_NEWNS) == 0 &&
                ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                ::mount(file.c_str(), "/proc/meminfo", nullptr, MS_BIND, nullptr) == 0;
      if (!mounted) return;
      driver_ = std::this_thread::get_id();
      body();
    }).join();
    driver_ = std::this_thread::get_id();
    later_.clear();
    return mounted;
  }
  // That `path` was given up with this state and reason, without a trace on the tier.
  void expect_given_up(const std::string& path, State given_up, Reason reason) {
    SCOPED_TRACE(path);
    EXPECT_EQ(word(path), state_word(given_up, reason));
    EXPECT_EQ(files_on(), 0);
    EXPECT_EQ(tier().used(), 0u);
    EXPECT_EQ(tier().promised(), 0u);
    EXPECT_EQ(counter(AgentCounter::staged_files), 0u);
  }

  ManualClock clock_;
  std::atomic<std::thread::id> driver_{std::this_thread::get_id()};
  std::list<LaterBy> later_;
  Scratch scratch_;
  const std::string pfs_ = scratch_.dir("pfs"), run_dir_ = scratch_.dir("run");
  std::vector<TierConfig> tiers_;
  AgentConfig config_;
  int descriptors_ = 0;
  std::optional<Rates> rates_;
  std::optional<Dataset> dataset_;
  Stores stores_;
  std::optional<Hierarchy> hierarchy_;
  std::optional<BoardFile> board_;
  bool watches_ = false;
  std::unique_ptr<ChangeWatch> watch_;
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Source> source_;
  std::unique_ptr<PlacementHandler> placement_;
  std::unique_ptr<Walker> walker_;
};

}  // namespace monarch
