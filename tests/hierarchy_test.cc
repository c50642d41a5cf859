// SPDX-License-Identifier: Apache-2.0
// runtime/hierarchy, and the sweep of what it left behind.
#include "runtime/hierarchy/hierarchy.h"

#include <optional>

#include "runtime/agent/sweep.h"
#include "runtime/hierarchy/grant.h"
#include "tests/faulty_os.h"
#include "tests/manual_clock.h"
#include "tests/stores.h"
#include "tests/tiers.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kBlock = 4096;
// As monarchctl run names a job's directory.
const std::string kPrefix = kUserDirPrefix + std::to_string(::geteuid()) + ".";
const std::string kJob = kPrefix + "test";

class HierarchyTest : public ::testing::Test {
 protected:
  TierConfig tier(const std::string& name, uint64_t quota) { return tier_config(scratch_, name, quota); }
  Tier open(const TierConfig& config) {
    const std::vector<StoreEnds> root = stores_.start({config}, kJob);
    Result<Tier> opened = Tier::open(config, kJob, clock_, root.empty() ? nullptr : &root[0]);
    EXPECT_TRUE(opened.ok()) << opened.error().text;
    return opened.take();
  }
  // Makes the file systems of tiers look like this.
  static Intercept::Handler file_system(uint64_t blocks, const std::atomic<uint64_t>* available) {
    return [=](Arguments& a) {
      a.fs->f_frsize = kBlock;
      a.fs->f_blocks = blocks;
      a.fs->f_bavail = *available;
      return 0;
    };
  }
  ManualClock clock_;
  Scratch scratch_;
  Stores stores_;
};

// ---- space

TEST_F(HierarchyTest, CountsWholeBlocksUpToTheQuota) {
  Tier t = open(tier("a", 3 * kBlock));
  EXPECT_EQ(t.quota(), 3 * kBlock);
  EXPECT_TRUE(t.reserve(1));
  EXPECT_EQ(t.used(), kBlock);
  EXPECT_FALSE(t.reserve(2 * kBlock + 1));
  EXPECT_EQ(t.used(), kBlock) << "a refused reservation counts nothing";
  EXPECT_TRUE(t.reserve(2 * kBlock));
  EXPECT_FALSE(t.reserve(1));
  EXPECT_TRUE(t.reserve(0)) << "an empty file takes no block";
  t.release(2 * kBlock);
  EXPECT_TRUE(t.reserve(kBlock + 1));
  EXPECT_EQ(t.used(), 3 * kBlock);
  EXPECT_FALSE(t.reserve(INT64_MAX));
}

TEST_F(HierarchyTest, QuotaAndFloorAreExactOverThreads) {
  constexpr uint64_t kRoom = 1000;
  for (const bool floor : {false, true}) {
    SCOPED_TRACE(floor);
    const std::atomic<uint64_t> available{floor ? kRoom : 10 * kRoom};
    const Intercept statvfs(Call::kFstatvfs, file_system(kRoom, &available));
    Tier t = open(tier(floor ? "floor" : "quota", (floor ? 10 * kRoom : kRoom) * kBlock));
    std::atomic<uint64_t> reserved{0}, most{0};
    Threads(4, [&](uint32_t i) {
      for (uint32_t turn = 0; turn < 1000; ++turn) {
        const uint64_t blocks = 1 + (turn + i) % 3;
        if (!t.reserve(blocks * kBlock)) continue;
        const uint64_t now = reserved += blocks;
        for (uint64_t seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
        }
        if (turn % 4 == 0) {
          reserved -= blocks;
          t.took(blocks * kBlock);
          t.release(blocks * kBlock);
        }
      }
    }).join();
    while (t.reserve(kBlock)) ++reserved;
    EXPECT_EQ(reserved, kRoom);
    EXPECT_EQ(t.used(), kRoom * kBlock);
    EXPECT_EQ(t.promised(), kRoom * kBlock);
    EXPECT_LE(most, kRoom);
  }
}

TEST_F(HierarchyTest, LeavesTheFloorOfTheFileSystemFree) {
  std::atomic<uint64_t> available{110};
  std::optional<Intercept> statvfs;
  statvfs.emplace(Call::kFstatvfs, file_system(1000, &available));
  TierConfig config = tier("a", 0);
  config.quota.percent = 100;
  config.min_free.percent = 10;
  Tier t = open(config);
  EXPECT_EQ(t.quota(), 1000 * kBlock) << "a share of the whole file system";
  EXPECT_TRUE(t.reserve(10 * kBlock));
  EXPECT_FALSE(t.reserve(11 * kBlock));
  EXPECT_EQ(t.used(), 10 * kBlock);
  available = 100;  // others fill it
  EXPECT_FALSE(t.reserve(1));
  available = 50;
  EXPECT_FALSE(t.reserve(1));
  t.took(10 * kBlock);  // they are written
  available = 500;
  EXPECT_TRUE(t.reserve(400 * kBlock));
  statvfs.reset();
  statvfs.emplace(Call::kFstatvfs, EIO);
  EXPECT_FALSE(t.reserve(1)) << "a file system that does not answer has no room";
}

TEST_F(HierarchyTest, WhatIsReservedAndNotWrittenIsPromised) {
  std::atomic<uint64_t> available{110};
  Intercept statvfs(Call::kFstatvfs, file_system(1000, &available));
  TierConfig config = tier("a", 1000 * kBlock);
  config.min_free.percent = 10;
  Tier t = open(config);
  ASSERT_TRUE(t.reserve(6 * kBlock));
  EXPECT_EQ(t.promised(), 6 * kBlock);
  EXPECT_EQ(t.room(), 4 * kBlock);
  EXPECT_FALSE(t.reserve(5 * kBlock));
  EXPECT_EQ(t.promised(), 6 * kBlock) << "a refused reservation promises nothing";
  available = 106;  // a part is written
  t.took(4 * kBlock);
  EXPECT_EQ(t.room(), 4 * kBlock);
  Tier moved = std::move(t);
  EXPECT_FALSE(moved.reserve(5 * kBlock));
  EXPECT_TRUE(moved.reserve(4 * kBlock));
  EXPECT_EQ(moved.room(), 0u);
  // The first one is given up.
  moved.took(2 * kBlock);
  moved.release(6 * kBlock);
  EXPECT_EQ(moved.room(), 2 * kBlock);
}

TEST_F(HierarchyTest, WhatIsAllocatedIsNotPromised) {
  Tier t = open(tier("a", 1000 * kBlock));
  for (const bool part : {false, true}) {
    SCOPED_TRACE(part);
    const auto create = [&](uint64_t bytes, uint64_t* promised) {
      const Result<Fd> file = part ? t.create_part(5, 1, bytes, promised) : t.create(5, bytes, promised);
      EXPECT_TRUE(file.ok()) << file.error().text;
    };
    ASSERT_TRUE(t.reserve(3));
    uint64_t promised = kBlock;
    create(0, &promised);
    EXPECT_EQ(promised, kBlock) << "nothing was to be allocated";
    {
      const Intercept none(Call::kFallocate, EOPNOTSUPP);
      create(3, &promised);
      EXPECT_EQ(promised, kBlock);
    }
    EXPECT_EQ(t.promised(), kBlock);
    create(3, &promised);
    if (promised != 0) GTEST_SKIP() << "nothing can be allocated here";
    EXPECT_EQ(t.promised(), 0u);
  }
}

TEST_F(HierarchyTest, FillsTheTiersInOrder) {
  Result<Hierarchy> opened = Hierarchy::open({tier("ram", 2 * kBlock), tier("ssd", 3 * kBlock)}, kJob);
  ASSERT_TRUE(opened.ok()) << opened.error().text;
  Hierarchy& h = *opened;
  EXPECT_EQ(h.reserve(kBlock), 0);
  EXPECT_EQ(h.reserve(2 * kBlock), 1) << "does not fit the first any more";
  EXPECT_EQ(h.reserve(kBlock), 0) << "the first still has room";
  EXPECT_EQ(h.reserve(kBlock), 1);
  EXPECT_EQ(h.reserve(1), -1);
  h.tiers()[0].release(kBlock);
  EXPECT_EQ(h.reserve(1), 0);
}

// ---- directories

TEST_F(HierarchyTest, DirectoriesAreTheUsersAlone) {
  const mode_t old = ::umask(0);
  Tier t = open(tier("a", kBlock));
  const Result<Fd> file = t.create(0x1234, 0);
  ::umask(old);
  ASSERT_TRUE(file.ok()) << file.error().text;
  ASSERT_TRUE(publish(&t, *file, 0x1234).ok());
  EXPECT_EQ(mode_of(t.copies_path()), unsigned{kUserDirMode});
  EXPECT_EQ(mode_of(t.copies_path() + "/34"), 0700u);
  EXPECT_EQ(mode_of(path_of_copy(t, 0x1234)), 0400u);
  EXPECT_EQ(t.copies_path(), scratch_ / "a/" + kJob);
  EXPECT_EQ(t.device(), stat_of(path_of_copy(t, 0x1234)).st_dev);
}

TEST_F(HierarchyTest, RefusesADirectoryThatOthersCanEnter) {
  const TierConfig config = tier("a", kBlock);
  const std::string dir = scratch_.dir("a/" + kJob);
  for (const auto mode : {0777, 0701, 0750, 01755}) {
    fs::permissions(dir, static_cast<fs::perms>(mode));
    const Result<Tier> opened = Tier::open(config, kJob);
    ASSERT_FALSE(opened.ok()) << std::oct << mode;
    EXPECT_EQ(opened.error().code, EPERM);
  }
  fs::permissions(dir, static_cast<fs::perms>(kUserDirMode));
  EXPECT_TRUE(Tier::open(config, kJob).ok()) << "made for the user beforehand";
  if (::geteuid() != 0) return;
  ASSERT_EQ(::chown(dir.c_str(), 65534, 65534), 0);
  EXPECT_EQ(Tier::open(config, kJob).error().code, EPERM) << "somebody else's";
}

// Where others can rename, that may be the user's own, with what it holds: nothing is put into it.
TEST_F(HierarchyTest, RefusesADirectoryThatNoRunHasMade) {
  const TierConfig config = tier("a", kBlock);
  scratch_.file("a/" + kJob + "/thesis", "x");
  fs::permissions(scratch_ / ("a/" + kJob), fs::perms::owner_all);
  EXPECT_EQ(Hierarchy::open({config}, kJob).error().code, EPERM);
  EXPECT_TRUE(fs::exists(scratch_ / ("a/" + kJob + "/thesis")));
}

TEST_F(HierarchyTest, RefusesAFileSystemOnWhichNothingIsKnownAgain) {
  const TierConfig config = tier("a", kBlock);
  const auto refused = [&](int error, const std::function<void(struct stat*)>& change) {
    const Intercept looks(Call::kFstatResult, [&](Arguments& a) { return change(a.st), 0; });
    const bool is_refused = Hierarchy::open({config}, kJob).error().code == error;
    return is_refused && !fs::exists(scratch_ / ("a/" + kJob));
  };
  const auto of_copies = [&](void (*change)(struct stat*)) {
    return refused(EOPNOTSUPP, [=](struct stat* st) {
      if (S_ISREG(st->st_mode)) change(st);
    });
  };
  EXPECT_TRUE(refused(EPERM, [](struct stat* st) { st->st_mode &= ~unsigned{S_ISVTX}; })) << "by its mode";
  for (const bool tmpfile : {true, false}) {
    const Intercept opens(Call::kOpenat, [=](Arguments& a) {
      return !tmpfile && (a.flags & O_TMPFILE) == O_TMPFILE ? EOPNOTSUPP : 0;
    });
    EXPECT_TRUE(of_copies([](struct stat* st) { st->st_mtim.tv_nsec = 0; })) << "by its mtime";
    EXPECT_TRUE(of_copies([](struct stat* st) { ++st->st_dev; })) << "by its device";
  }
  const Intercept times(Call::kFutimens, EIO);
  EXPECT_TRUE(Hierarchy::open({config}, kJob).ok()) << "that may pass";
}

TEST_F(HierarchyTest, RefusesALinkInPlaceOfTheDirectory) {
  const TierConfig config = tier("a", kBlock);
  scratch_.dir("elsewhere");
  fs::create_directory_symlink(scratch_ / "elsewhere", scratch_ / ("a/" + kJob));
  EXPECT_FALSE(Tier::open(config, kJob).ok());
  EXPECT_TRUE(fs::is_empty(scratch_ / "elsewhere"));
}

TEST_F(HierarchyTest, RemovesItsDirectoriesFromAllTiers) {
  std::vector<TierConfig> tiers = {tier("a", kBlock), tier("b", kBlock)};
  const auto make = [&] {
    Result<Hierarchy> opened = Hierarchy::open(tiers, kJob);
    ASSERT_TRUE(opened.ok()) << opened.error().text;
    for (Tier& t : opened->tiers()) {
      const Result<Fd> file = t.create(7, 0);
      ASSERT_TRUE(file.ok() && publish(&t, *file, 7).ok());
    }
  };
  make();
  scratch_.dir("a/other");
  const Status removed = remove_job_dirs(tiers, kJob);
  EXPECT_TRUE(removed.ok()) << removed.error().text;
  EXPECT_TRUE(fs::is_empty(scratch_ / "b"));
  EXPECT_TRUE(fs::exists(scratch_ / "a/other"));
  EXPECT_FALSE(fs::exists(scratch_ / ("a/" + kJob)));
  EXPECT_TRUE(remove_job_dirs(tiers, kJob).ok()) << "again";
  make();
  tiers[0].path = scratch_ / "missing";
  EXPECT_TRUE(remove_job_dirs(tiers, kJob).error().text.starts_with("tier a: "));
  EXPECT_TRUE(fs::is_empty(scratch_ / "b")) << "it goes on to the next tier";
  std::swap(tiers[0], tiers[1]);
  EXPECT_FALSE(Hierarchy::open(tiers, kJob).ok());
  EXPECT_TRUE(fs::is_empty(scratch_ / "b")) << "if one fails the others are left clean";
}

// ---- copies, with and without O_TMPFILE

TEST_F(HierarchyTest, ACopyIsSeenOnlyOnceItIsPublished) {
  const std::string content = noise(10000, 1);
  for (const bool has_tmpfile : {true, false}) {
    SCOPED_TRACE(has_tmpfile);
    const Intercept opens(Call::kOpenat, [=](Arguments& a) {
      return !has_tmpfile && (a.flags & O_TMPFILE) == O_TMPFILE ? EOPNOTSUPP : 0;
    });
    Tier t = open(tier(has_tmpfile ? "a" : "b", 1 << 20));
    const std::string path = path_of_copy(t, 0xabcd);
    const Result<Fd> file = t.create(0xabcd, content.size());
    ASSERT_TRUE(file.ok()) << file.error().text;
    struct stat st;
    ASSERT_EQ(::fstat(file->get(), &st), 0);
    EXPECT_EQ(st.st_size, 0);
    EXPECT_GE(st.st_blocks * 512, static_cast<int64_t>(content.size())) << "not allocated";
    EXPECT_EQ(files_on(t), has_tmpfile || is_by_store() ? 0 : 1);
    ASSERT_EQ(::pwrite(file->get(), content.data(), content.size(), 0), 10000);
    EXPECT_FALSE(fs::exists(path));
    const Status published = publish(&t, *file, 0xabcd);
    ASSERT_TRUE(published.ok()) << published.error().text;
    EXPECT_EQ(contents(path), content);
    EXPECT_EQ(files_on(t), 1);
    for (int i = 0; i < 2; ++i) t.remove(0xabcd);
    EXPECT_EQ(files_on(t), 0);
  }
}

// ---- the sweep

class SweepTest : public HierarchyTest {
 protected:
  // As a run makes it.
  std::string user_dir(const std::string& name) {
    const std::string path = scratch_.dir("a/" + name);
    EXPECT_EQ(::chmod(path.c_str(), kUserDirMode), 0);
    return path;
  }
  int sweep() {
    const Result<int> removed = sweep_user_dirs(base_);
    EXPECT_TRUE(removed.ok()) << removed.error().text;
    return removed.ok() ? *removed : -1;
  }
  const std::string base_ = scratch_.dir("a");
};

TEST_F(SweepTest, RemovesOldDirectoriesThatNoProcessHolds) {
  scratch_.file("a/" + kPrefix + "old/5f/0000005f", "x");
  user_dir(kPrefix + "old");
  EXPECT_EQ(sweep(), 0) << "its maker may be about to lock it";
  EXPECT_TRUE(fs::exists(base_ + "/" + kPrefix + "old/5f/0000005f"));
  {
    Tier t = open(tier("a", kBlock));
    LaterBy some(11);
    EXPECT_EQ(sweep(), 1);
    EXPECT_FALSE(fs::exists(base_ + "/" + kPrefix + "old"));
    EXPECT_TRUE(fs::exists(t.copies_path()));
  }
  LaterBy some(11);
  EXPECT_EQ(sweep(), 1);
  EXPECT_EQ(sweep(), 0);
}

// Between the look and the removal somebody gives the name to what a run is at work in.
TEST_F(SweepTest, RemovesWhatItHasLookedAt) {
  user_dir(kPrefix + "old");
  scratch_.file("a/live/5f/0000005f", "x");
  user_dir("live");
  LaterBy some(11);
  bool renamed = false;
  const Intercept opens(Call::kOpenat, [&](Arguments& a) {
    if (a.path == base_ || std::exchange(renamed, true)) return 0;  // the list of names comes before
    fs::rename(base_ + "/" + kPrefix + "old", base_ + "/aside");
    fs::rename(base_ + "/live", base_ + "/" + kPrefix + "old");
    return 0;
  });
  EXPECT_EQ(sweep(), 0);
  EXPECT_TRUE(renamed);
  EXPECT_TRUE(fs::exists(base_ + "/" + kPrefix + "old/5f/0000005f"));
}

TEST_F(SweepTest, ADirectoryThatHandsItsGroupDownIsNoMatter) {
  const TierConfig config = tier("a", kBlock);
  ASSERT_EQ(::chmod(base_.c_str(), 02777), 0);
  for (const char* end : {"1", "2"}) {
    EXPECT_TRUE(Tier::open(config, kPrefix + end).ok());
    EXPECT_EQ(mode_of(base_ + "/" + kPrefix + end), kUserDirMode | S_ISGID);
  }
  EXPECT_TRUE(remove_job_dirs({config}, kPrefix + "1").ok());
  EXPECT_FALSE(fs::exists(base_ + "/" + kPrefix + "1"));
  LaterBy some(11);
  EXPECT_EQ(sweep(), 1);
  EXPECT_FALSE(fs::exists(base_ + "/" + kPrefix + "2"));
}

// Where others may rename, a directory of the user's own can have any name.
TEST_F(SweepTest, LeavesWhatNoRunHasMade) {
  scratch_.file("a/" + kPrefix + "1.papers/thesis", "x");
  for (const mode_t mode : {0700, 0755, 01755, 02700, 03755}) {
    ASSERT_EQ(::chmod((base_ + "/" + kPrefix + "1.papers").c_str(), mode), 0);
    LaterBy some(11);
    EXPECT_EQ(sweep(), 0) << std::oct << mode;
    const Fd base(::open(base_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    EXPECT_EQ(remove_user_dir(base.get(), kPrefix + "1.papers").error().code, EPERM);
    EXPECT_EQ(remove_job_dirs({tier("a", kBlock)}, kPrefix + "1.papers").error().code, EPERM);
    EXPECT_TRUE(fs::exists(base_ + "/" + kPrefix + "1.papers/thesis"));
  }
}

TEST_F(SweepTest, LeavesWhatIsNotItsOwn) {
  for (const std::string& name : {std::string("monarch-runs"), "my." + kPrefix + "1",
                                  kUserDirPrefix + std::to_string(::geteuid()) + "1.of-another-user"})
    ASSERT_EQ(::chmod(scratch_.dir("a/" + name).c_str(), kUserDirMode), 0);
  scratch_.file("a/" + kPrefix + "file", "x");
  scratch_.file("elsewhere/kept", "x");
  fs::create_directory_symlink(scratch_ / "elsewhere", base_ + "/" + kPrefix + "link");
  if (::geteuid() == 0) {
    ASSERT_EQ(::chown(scratch_.dir("a/" + kPrefix + "others").c_str(), 65534, 65534), 0);
  }
  const auto entries = [&] { return std::distance(fs::directory_iterator(base_), {}); };
  const auto before = entries();
  LaterBy some(11);
  EXPECT_EQ(sweep(), 0);
  EXPECT_EQ(entries(), before);
  EXPECT_TRUE(fs::exists(scratch_ / "elsewhere/kept"));
}

TEST(Grant, WhatIsWrittenIsRead) {
  for (const char* group : {"", "/sys/fs/cgroup/job 1"}) {
    const Grants read = parse_grants(grants_text({{{"memory", 7}, {"ram", UINT64_MAX}}, 9, group}));
    ASSERT_EQ(read.tiers.size(), 2u);
    EXPECT_EQ(std::tuple(read.tiers[0].tier, read.tiers[0].quota, read.tiers[1].tier, read.tiers[1].quota),
              std::tuple("memory", 7u, "ram", UINT64_MAX));
    EXPECT_EQ(std::tuple(read.memory_group, read.memory), std::tuple(group, *group == 0 ? 0u : 9u));
  }
}

TEST(Grant, WhatIsNoGrantIsLeftOut) {
  for (const char* text : {"", "nvme", "nvme 7", "\n", " 7\n", "nvme\n", "nvme \n", "nvme x\n", "nvme -1\n",
                           "nvme 7 8\n", "nvme 18446744073709551616\n", "nvme\n7 \n", "memory /g\n",
                           "memory x /g\n", "nvme 7 /g\n", "memory 7/g\n"}) {
    const Grants read = parse_grants(text);
    EXPECT_TRUE(read.tiers.empty() && read.memory_group.empty()) << text;
  }
  EXPECT_EQ(parse_grants("x\nnvme 7\nram").tiers.size(), 1u);
}

}  // namespace
}  // namespace monarch
