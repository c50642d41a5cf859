// SPDX-License-Identifier: Apache-2.0
// The walk, with the placement that it feeds.
#include "runtime/metadata/walker.h"

#include "runtime/layout/catalog_layout.h"
#include "runtime/metadata/dataset.h"
#include "tests/listed.h"
#include "tests/placement_fixture.h"
#include "tests/private_mounts.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

TEST_F(PlacementTest, TheWalkKeepsWhatDirectoriesHoldOnceTheyAreQuiet) {
  for (int i = 0; i < 30; ++i) scratch_.file("pfs/d/f" + std::to_string(i), "x");
  fs::create_symlink("d/f1", pfs_ + "/link");
  ASSERT_EQ(::mkfifo((pfs_ + "/d/fifo").c_str(), 0600), 0);
  scratch_.file("pfs/young/f", "x");
  const timespec later[2] = {{0, UTIME_OMIT}, {::time(nullptr) + 3600, 0}};  // however long the walk takes
  ASSERT_EQ(::utimensat(AT_FDCWD, (pfs_ + "/young").c_str(), later, 0), 0);
  struct stat st;
  ASSERT_EQ(::stat((pfs_ + "/d").c_str(), &st), 0);
  start();
  placement_->demand(rel("d"));  // asked for before the walk: a directory nevertheless
  placement_->demand(rel("d/f3"));
  walk();
  ASSERT_TRUE(eventually([&] { return walked(); }));
  const CatalogReader& reader = catalog_->reader();
  ASSERT_NE(reader.listing(rel("d")), nullptr);
  EXPECT_EQ(listed(reader, rel("d")), read_directory(pfs_ + "/d"));
  EXPECT_EQ(reader.listing(rel("d"))->ino, st.st_ino);
  EXPECT_EQ(reader.listing(rel("d"))->dev, st.st_dev);
  EXPECT_EQ(listed(reader, rel("young")), read_directory(pfs_ + "/young")) << "its clock is an hour ahead";
  EXPECT_EQ(reader.listing(rel("d/fifo")), nullptr);
}

// The PFS's clock is an hour behind: what it changed just now looks old. But a change within a tick of that
// clock would not show.
TEST_F(PlacementTest, TheWalkMeasuresQuietByTheDirectorysOwnClock) {
  const LaterBy hour(3600);
  scratch_.file("pfs/d/f", "x");
  const int64_t begin = clock_.now_ns();
  start();
  start_walk();
  ASSERT_TRUE(eventually([&] { return catalog_->reader().listing(rel("d")) != nullptr; }));
  struct stat st;
  ASSERT_EQ(::stat((pfs_ + "/d").c_str(), &st), 0);
  EXPECT_GE(clock_.now_ns() - begin, quiet_ns(st));
  EXPECT_GE(quiet_ns(st), 100000000);
  st.st_ctim.tv_nsec = 0;
  EXPECT_GE(quiet_ns(st), 2000000000) << "its clock may tick once a second";
  EXPECT_EQ(listed(catalog_->reader(), rel("d")), read_directory(pfs_ + "/d"));
  ASSERT_TRUE(eventually([&] { return walked(); }));
}

// Absent paths may exist then. Half a directory is none: what readdir(3) did not tell may be there.
TEST_F(PlacementTest, TheWalkSaysWhenItIsNotComplete) {
  for (int i = 0; i < 5; ++i) scratch_.file("pfs/f" + std::to_string(i), "x");
  start();
  uint64_t errors = 0;
  const auto is_incomplete_if = [&](Call call, const Intercept::Handler& fails) {
    const Intercept fault(call, fails);
    start_walk();
    EXPECT_TRUE(eventually([&] { return counter(AgentCounter::walk_errors) == errors + 1; }));
    ++errors;
    walker_->stop();
    EXPECT_FALSE(walked());
  };
  for (const int error : {EIO, ENOMEM, ESTALE}) {
    is_incomplete_if(Call::kReaddir,
                     [error, calls = 0](Arguments&) mutable { return ++calls == 4 ? error : 0; });
    EXPECT_EQ(catalog_->reader().listing(rel("")), nullptr);
  }
  scratch_.file("pfs/bad/f", "x");
  is_incomplete_if(Call::kOpenBeneath, [](Arguments& a) {
    return (a.flags & O_DIRECTORY) && std::string(a.path) == "bad" ? EACCES : 0;
  });
  EXPECT_FALSE(catalog_->reader().find(rel("bad/f")));
}

// What it is told of, in their order.
class Heard : public WalkSink {
 public:
  void read(const WalkedDirectory& directory) override {
    const MutexLock hold(lock_);
    directories_.push_back(directory);
  }
  void reads() override { ++long_ones; }
  void ended() override { ++ends; }
  std::vector<WalkedDirectory> directories() {
    const MutexLock hold(lock_);
    return directories_;
  }
  std::atomic<int> long_ones{0}, ends{0};

 private:
  Mutex lock_;
  std::vector<WalkedDirectory> directories_ GUARDED_BY(lock_);
};

class ToldWalkTest : public PlacementTest {
 protected:
  void SetUp() override {
    for (const char* file : {"a/f", "a/b/g", "a/b/c/h", "d/i", "j"})
      scratch_.file(std::string("pfs/") + file, "x");
    fs::create_symlink("j", pfs_ + "/link");
  }
  void make_walker() {
    walker_ = std::make_unique<Walker>(
        catalog_.get(), &*dataset_, board_->get(), &rates_->pfs_stats, [this] { placement_->catalog_grew(); },
        watch_.get(), clock_);
  }
  void start_anew() {
    if (placement_) end();
    start();
    make_walker();
  }
  // What a walk of all tells; it walks with so many threads.
  bool tells(Heard* heard, int threads = 1) {
    start_anew();
    walker_->start(threads, heard);
    return eventually([&] { return heard->ends == 1; });
  }
  // The same; the catalog is empty again then.
  std::vector<WalkedDirectory> told() {
    Heard heard;
    EXPECT_TRUE(tells(&heard, 2) && walked());
    start_anew();
    return heard.directories();
  }
  void expect_all_listed() {
    EXPECT_TRUE(walked());
    for (const char* path : {"", "a", "a/b", "a/b/c", "d"}) {
      struct stat st;
      ASSERT_EQ(::stat((pfs_ + "/" + path).c_str(), &st), 0);
      const Listing* listing = catalog_->reader().listing(rel(path));
      ASSERT_NE(listing, nullptr) << path;
      EXPECT_EQ(listed(catalog_->reader(), rel(path)), read_directory(pfs_ + "/" + path));
      EXPECT_EQ(std::tuple(listing->dev, listing->ino, listing->mtime, listing->ctime),
                std::tuple(st.st_dev, st.st_ino, nanoseconds(st.st_mtim), nanoseconds(st.st_ctim)));
    }
  }
  // Of d, what was told first.
  static void expect_put_off(const std::vector<WalkedDirectory>& all) {
    const auto first = std::find_if(all.begin(), all.end(), [](const auto& one) { return one.path == "d"; });
    ASSERT_NE(first, all.end());
    EXPECT_EQ(first->listing, WalkedDirectory::Listed::kLater);
  }
  static constexpr int64_t kDays = 3 * 86400;
};

TEST_F(ToldWalkTest, WhatAnotherWalkHasReadIsNotReadAgain) {
  const LaterBy quiet(kDays);
  std::vector<WalkedDirectory> all = told();
  EXPECT_EQ(all.size(), 5u);
  // In whatever order it comes.
  for (size_t turn = 0; turn < all.size(); ++turn) {
    std::rotate(all.begin(), all.begin() + 1, all.end());
    Heard heard;
    for (const WalkedDirectory& directory : all) {
      EXPECT_TRUE(walker_->enter(directory));
      EXPECT_FALSE(walker_->enter(directory)) << "it is known";
    }
    EXPECT_FALSE(walked()) << "it may be that more comes";
    walker_->start(2, &heard);
    EXPECT_EQ(heard.ends, 1);
    expect_all_listed();
    EXPECT_FALSE(catalog_->reader().find(rel(""))) << "the root has no name";
    EXPECT_EQ(counter(AgentCounter::walk_dirs), 0u);
    EXPECT_EQ(counter(AgentCounter::walk_files), 5u);
    EXPECT_EQ(heard.directories().size(), 0u);
    start_anew();
  }
}

TEST_F(ToldWalkTest, WhatAnotherWalkHasNotReadIsReadHere) {
  const LaterBy quiet(kDays);
  const std::vector<WalkedDirectory> all = told();
  for (size_t lost = 0; lost < all.size(); ++lost) {
    SCOPED_TRACE(all[lost].path);
    for (size_t i = 0; i < all.size(); ++i) EXPECT_TRUE(i == lost || walker_->enter(all[i]));
    walker_->start(2);
    ASSERT_TRUE(eventually([&] { return walked(); }));
    expect_all_listed();
    EXPECT_EQ(counter(AgentCounter::walk_dirs), 1u);
    EXPECT_EQ(counter(AgentCounter::walk_files), 5u);
    start_anew();
  }
}

TEST_F(ToldWalkTest, AListingThatDoesNotComeIsReadHere) {
  const std::vector<WalkedDirectory> all = told();
  ASSERT_EQ(all.size(), 10u) << "each was changed just now, and is read again";
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(all[i].listing, WalkedDirectory::Listed::kLater);
  for (size_t i = 0; i < 9; ++i) EXPECT_TRUE(walker_->enter(all[i]));
  EXPECT_EQ(catalog_->reader().listing(rel(all[9].path)), nullptr);
  walker_->start(2);
  EXPECT_FALSE(walked()) << "not before the listing is there";
  ASSERT_TRUE(eventually([&] { return walked(); }));
  expect_all_listed();
  EXPECT_EQ(counter(AgentCounter::walk_dirs), 1u);
  EXPECT_EQ(counter(AgentCounter::walk_files), 5u);
}

// As when it was renamed, and another one has its name.
TEST_F(ToldWalkTest, ADirectoryThatIsAnotherOnceItWasReadIsReadAgain) {
  const LaterBy quiet(kDays);
  struct stat d;
  ASSERT_EQ(::stat((pfs_ + "/d").c_str(), &d), 0);
  const std::function<void(struct stat*)> changes[] = {[](struct stat* st) { ++st->st_ino; },
                                                       [](struct stat* st) { ++st->st_mtim.tv_nsec; },
                                                       [](struct stat* st) { ++st->st_ctim.tv_nsec; }};
  for (const auto& change : changes) {
    SCOPED_TRACE(&change - changes);
    std::atomic<int> looks{0};
    std::vector<WalkedDirectory> all;
    {
      const Intercept alters(Call::kFstatResult, [&](Arguments& a) {
        if (a.st->st_ino == d.st_ino && a.st->st_dev == d.st_dev && ++looks == 2) change(a.st);
      });
      all = told();
    }
    expect_put_off(all);
    EXPECT_EQ(all.size(), 6u) << "the others were quiet";
    end();
  }
}

// By programs that unpack an archive, and keep its times.
TEST_F(ToldWalkTest, AnOldTimeOfADirectoryThatWasChangedJustNowIsNotBelieved) {
  const timespec old[2] = {{0, UTIME_OMIT}, {::time(nullptr) - kDays, 5}};
  ASSERT_EQ(::utimensat(AT_FDCWD, (pfs_ + "/d").c_str(), old, 0), 0);
  const std::vector<WalkedDirectory> all = told();
  expect_put_off(all);
}

// What changed since is not what was told: the kernel's values tell.
TEST_F(ToldWalkTest, AListingIsThatOfTheDirectoryAsItWas) {
  const LaterBy quiet(kDays);
  const std::vector<WalkedDirectory> all = told();
  scratch_.file("pfs/a/new", "x");
  for (const WalkedDirectory& directory : all) EXPECT_TRUE(walker_->enter(directory));
  walker_->start(1);
  struct stat st;
  ASSERT_EQ(::stat((pfs_ + "/a").c_str(), &st), 0);
  ASSERT_NE(catalog_->reader().listing(rel("a")), nullptr);
  EXPECT_NE(catalog_->reader().listing(rel("a"))->ctime, nanoseconds(st.st_ctim));
}

TEST_F(ToldWalkTest, ChangesAreWatchedForAlsoWhereAnotherWalkHasRead) {
  const LaterBy quiet(kDays);
  const std::vector<WalkedDirectory> all = told();
  watches_ = true;
  for (const bool by_another : {false, true}) {
    start_anew();
    if (by_another) {
      for (const WalkedDirectory& directory : all) EXPECT_TRUE(walker_->enter(directory));
    } else {
      walker_->start(2);
      ASSERT_TRUE(eventually([&] { return walked(); }));
    }
    scratch_.file("pfs/a/b/c/h", "y");
    EXPECT_TRUE(eventually([&] { return is_invalid(*board_->get(), rel("a/b/c/h").hash); }));
    walker_.reset();
    placement_.reset();
    watch_.reset();
    end();
  }
}

TEST_F(ToldWalkTest, WhatDoesNotFitIsNotEntered) {
  const LaterBy quiet(kDays);
  std::vector<WalkedDirectory> all = told();
  WalkedDirectory other = all[0];
  other.root = 1;
  EXPECT_FALSE(walker_->enter(other)) << "no such root";
  // A type that is not the one which is known here.
  EXPECT_NE(catalog_->add(rel("d/i"), DT_LNK), 0u);
  for (const WalkedDirectory& directory : all) EXPECT_TRUE(walker_->enter(directory));
  EXPECT_EQ(catalog_->reader().listing(rel("d")), nullptr);
  EXPECT_NE(catalog_->reader().listing(rel("a")), nullptr);
  walker_->start(1);
  all[0].path = "new";
  EXPECT_FALSE(walker_->enter(all[0])) << "too late";
}

TEST_F(ToldWalkTest, WhatCouldNotBeReadIsNotTold) {
  const LaterBy quiet(kDays);
  Heard heard, half;
  {
    const Intercept opens(Call::kOpenBeneath, [](Arguments& a) {
      return (a.flags & O_DIRECTORY) && std::string(a.path) == "a/b" ? EACCES : 0;
    });
    ASSERT_TRUE(tells(&heard));
    EXPECT_FALSE(walked());
  }
  for (const WalkedDirectory& directory : heard.directories()) EXPECT_NE(directory.path, "a/b");
  EXPECT_EQ(heard.directories().size(), 3u);
  const Intercept fault(Call::kReaddir, [calls = 0](Arguments&) mutable { return ++calls == 4 ? EIO : 0; });
  ASSERT_TRUE(tells(&half));
  for (const WalkedDirectory& directory : half.directories()) EXPECT_NE(directory.path, "") << "half of it";
}

// Other nodes know a subvolume's device by other numbers.
TEST_F(ToldWalkTest, AListingOnAnotherDeviceIsNotTold) {
  const LaterBy quiet(kDays);
  struct stat st;
  ASSERT_EQ(::stat((pfs_ + "/a/b").c_str(), &st), 0);
  Heard heard;
  Intercept other(Call::kFstatResult, [&](Arguments& a) {
    if (a.st->st_ino == st.st_ino) a.st->st_dev += 1;
  });
  ASSERT_TRUE(tells(&heard));
  EXPECT_EQ(heard.directories().size(), 5u);
  for (const WalkedDirectory& directory : heard.directories())
    EXPECT_EQ(directory.listing == WalkedDirectory::Listed::kNow, directory.path != "a/b") << directory.path;
}

// Each name costs a call where the file system tells no types, and one may be slow.
TEST_F(ToldWalkTest, ALongOrSlowDirectoryIsToldOfMeanwhile) {
  const LaterBy quiet(kDays);
  Heard slow, long_one;
  {
    const Intercept types(Call::kReaddirResult, [](Arguments& a) { a.name->d_type = DT_UNKNOWN; });
    ASSERT_TRUE(tells(&slow));
  }
  EXPECT_TRUE(walked());
  EXPECT_EQ(slow.directories().size(), 5u);
  EXPECT_EQ(slow.long_ones, 10) << "names";
  for (int i = 0; i < 5000; ++i) scratch_.file("pfs/long/" + std::to_string(i), "");
  ASSERT_TRUE(tells(&long_one));
  EXPECT_EQ(long_one.long_ones, 1);
}

// For lack of threads the walk is slower, or there is none.
TEST_F(PlacementTest, AWalkWithoutThreadsIsNotComplete) {
  scratch_.file("pfs/f", "x");
  start();
  Intercept none(Call::kStartThread, EAGAIN);
  start_walk();
  EXPECT_EQ(demand("f") & 0xff, static_cast<uint64_t>(State::kPlaced)) << "what is asked for is staged";
  EXPECT_FALSE(walked());
}

// ---- directories of a dataset

class DatasetTest : public ::testing::Test {
 protected:
  Scratch scratch_;
};

TEST_F(DatasetTest, DirectoriesInsideOthersAreMerged) {
  const std::string outer = scratch_.dir("data"), inner = scratch_.dir("data/train/a"),
                    beside = scratch_.dir("data-2");
  const Result<Dataset> dataset = Dataset::open({inner, beside, outer});
  ASSERT_TRUE(dataset.ok()) << dataset.error().text;
  ASSERT_EQ(dataset->roots.size(), 2u);
  EXPECT_EQ(dataset->roots[0].path, outer);
  EXPECT_EQ(dataset->roots[1].path, beside);
  ASSERT_EQ(dataset->prefixes.size(), 3u);
  const PrefixView& longest = dataset->prefixes[0];
  const struct stat st = stat_of(inner);
  EXPECT_EQ(std::tuple(longest.path, longest.below, longest.root, longest.ino, longest.dev),
            std::tuple(inner, "train/a", 0u, st.st_ino, st.st_dev));
}

TEST_F(DatasetTest, WhatIsMountedInsideIsOneOfItsOwn) {
  for (const char* name : {"data", "data/tmpfs", "data/bind", "beside", "beside/in"}) scratch_.dir(name);
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    const std::string data = scratch_ / "data";
    m->tmpfs("data/tmpfs", "test");
    m->check(::mount((scratch_ / "beside").c_str(), (data + "/bind").c_str(), "", MS_BIND, nullptr) == 0,
             "bind");
    const Result<Dataset> dataset = Dataset::open({data, data + "/tmpfs", data + "/bind", data + "/bind/in"});
    m->check(dataset.ok() && dataset->roots.size() == 3, "three roots");
    if (!dataset.ok()) return;
    const PrefixView& inner = dataset->prefixes[0];
    m->check(inner.path == data + "/bind/in" && inner.below == "in", "one of them has the inner one");
    m->check(dataset->roots[inner.root].path == data + "/bind", "the innermost");
  });
}

TEST_F(DatasetTest, IsKnownByAllItsNames) {
  const std::string data = scratch_.dir("data");
  fs::create_directory_symlink("data", scratch_ / "link");
  const Result<Dataset> dataset = Dataset::open({scratch_ / "link", scratch_ / "link", data});
  ASSERT_TRUE(dataset.ok()) << dataset.error().text;
  ASSERT_EQ(dataset->roots.size(), 1u);
  ASSERT_EQ(dataset->prefixes.size(), 2u);
  for (const PrefixView& prefix : dataset->prefixes) {
    EXPECT_TRUE(prefix.path == data || prefix.path == scratch_ / "link") << prefix.path;
    EXPECT_EQ(prefix.below, "");
  }
}

TEST_F(DatasetTest, ThatIsMissingOrOfTooManyDirectoriesIsAnError) {
  EXPECT_EQ(Dataset::open({scratch_ / "missing"}).error().code, ENOENT);
  EXPECT_EQ(Dataset::open({scratch_.file("file", "x")}).error().code, ENOTDIR);
  std::vector<std::string> paths;
  for (uint32_t i = 0; i < kMaxRoots; ++i) paths.push_back(scratch_.dir("d" + std::to_string(i)));
  EXPECT_TRUE(Dataset::open(paths).ok());
  paths.push_back(scratch_.dir("more"));
  EXPECT_EQ(Dataset::open(paths).error().code, EINVAL);
}

}  // namespace
}  // namespace monarch
