// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_memory.h"

#include "runtime/hierarchy/job_room.h"
#include "tests/node_fixture.h"

namespace monarch {
namespace {

constexpr uint64_t kGiB = 1 << 30;

// Of what Linux 6.18 writes of a job's group of Slurm 22.05, of which nothing is in the group itself; the
// numbers of pages of files are larger.
constexpr char kOldStat[] =
    "cache 0\ndirty 0\nwriteback 0\ninactive_file 0\nactive_file 0\nhierarchical_memory_limit 4194304000\n"
    "total_cache 14098432\ntotal_rss 999424\ntotal_dirty 12288\ntotal_writeback 4096\n"
    "total_inactive_anon 983040\ntotal_active_anon 16384\ntotal_inactive_file 8002432\n"
    "total_active_file 2000000\ntotal_unevictable 0\n";
// In the order of version 2 (the kernel's cgroup-v2.rst).
constexpr char kNewStat[] =
    "anon 52428800\nfile 10485760\nshmem 1048576\nfile_mapped 4096\nfile_dirty 1048576\nfile_writeback 0\n"
    "inactive_anon 52428800\nactive_anon 1048576\ninactive_file 6291456\nactive_file 3145728\n"
    "slab 1500000\nworkingset_refault_file 7\nworkingset_activate_file 3\n";

class JobMemoryTest : public ::testing::Test {
 protected:
  std::string group(const std::string& usage_file, const std::string& usage, const std::string& stat) {
    const std::string name = "group" + std::to_string(++groups_);
    if (!usage_file.empty()) scratch_.file(name + "/" + usage_file, usage);
    scratch_.file(name + "/memory.stat", stat);
    return scratch_ / name;
  }
  Result<uint64_t> used_old(const std::string& usage, const std::string& stat) {
    return memory_used(group("memory.usage_in_bytes", usage, stat));
  }
  Result<uint64_t> used_new(const std::string& usage, const std::string& stat) {
    return memory_used(group("memory.current", usage, stat));
  }

  const Scratch scratch_;

 private:
  int groups_ = 0;
};

TEST_F(JobMemoryTest, CleanPagesOfFilesDoNotCount) {
  const Result<uint64_t> old = used_old("15728640\n", kOldStat);
  ASSERT_TRUE(old.ok()) << old.error().text;
  EXPECT_EQ(*old, 15728640u - (8002432u + 2000000u - 12288u - 4096u));
  const Result<uint64_t> now = used_new("67108864\n", kNewStat);
  ASSERT_TRUE(now.ok()) << now.error().text;
  EXPECT_EQ(*now, 67108864u - (6291456u + 3145728u - 1048576u));
}

// The two files are not of one moment.
TEST_F(JobMemoryTest, NothingIsLessThanNothing) {
  EXPECT_EQ(*used_new("4096\n", kNewStat), 0u);
  EXPECT_EQ(*used_new("9000\n", "inactive_file 4096\nactive_file 0\nfile_dirty 8192\nfile_writeback 4096\n"),
            9000u)
      << "more is dirty than there is";
  EXPECT_EQ(*used_new("9000\n",
                      "inactive_file 18446744073709551615\nactive_file 18446744073709551615\n"
                      "file_dirty 0\nfile_writeback 0\n"),
            0u);
}

TEST_F(JobMemoryTest, WhatIsNotANumberTellsNothing) {
  const std::string rest = "active_file 1\nfile_dirty 0\nfile_writeback 0\n";
  EXPECT_TRUE(used_new("9000", "inactive_file 4096\n" + rest).ok());
  for (const char* bad :
       {"", "max\n", "-1\n", "18446744073709551616\n", "4096 4096\n", "4096x", " 1\n", "1\n2\n"})
    EXPECT_FALSE(used_new(bad, "inactive_file 4096\n" + rest).ok()) << bad;
  for (const char* bad : {"", "inactive_file\n", "inactive_file \n", "inactive_file -1\n",
                          "inactive_files 1\n", "xinactive_file 1\n", "inactive_file 18446744073709551616\n",
                          "inactive_file 1 2\n", "inactive_file\t1\n"})
    EXPECT_FALSE(used_new("9000\n", bad + rest).ok()) << bad;
  EXPECT_FALSE(used_old("9000\n", kNewStat).ok()) << "each version has its own names";
  const std::string no_stat = group("memory.current", "1\n", kNewStat);
  std::filesystem::remove(no_stat + "/memory.stat");
  for (const std::string& path : {scratch_ / "none", group("", "", kNewStat), no_stat})
    EXPECT_EQ(memory_used(path).error().code, ENOENT) << path;
}

class MemoryGroupTest : public JobMemoryTest {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  }
  // A node with these hierarchies, "memory" or "" (version 2), and the groups of a job's below.
  Cgroups node(const std::vector<std::string>& hierarchies) {
    std::string mounts;
    for (const std::string& h : hierarchies) {
      const std::string point = scratch_.dir(h.empty() ? "unified" : h);
      mounts += "30 20 0:25 / " + point + " rw - " +
                (h.empty() ? "cgroup2 cgroup2 rw\n" : "cgroup cgroup rw," + h + "\n");
    }
    scratch_.file("mountinfo", mounts);
    return Cgroups(scratch_ / "mountinfo");
  }
  std::string counts(const std::string& path, const std::string& file) {
    scratch_.file(path + "/" + file, "1\n");
    return scratch_ / path;
  }
};

TEST_F(MemoryGroupTest, ItIsTheJobsOfAllSteps) {
  const Cgroups groups = node({"freezer", "memory", ""});
  const std::string mine = counts("memory/slurm_n1/uid_1000/job_7", "memory.usage_in_bytes");
  counts("freezer/slurm_n1/uid_1000/job_7", "memory.usage_in_bytes");
  counts("unified/slurm/job_7", "memory.current");
  const std::string lines =
      "9:freezer:/slurm_n1/uid_1000/job_7/step_0\n4:memory:/slurm_n1/uid_1000/job_7/step_0/task_0\n"
      "0::/slurm/job_7/step_0/user/task_0\n";
  EXPECT_EQ(memory_group_of(groups, 7, lines), mine);
  EXPECT_EQ(memory_group_of(groups, 7, "4:memory:/slurm_n1/uid_1000/job_7\n"), mine) << "itself";
  for (const char* other :
       {"4:memory:/slurm_n1/uid_1000/job_77/step_0\n", "4:memory:/slurm_n1/uid_1000/xjob_7\n", "4:memory:/\n",
        "", "\n", "4:memory\n", "::::\n", "0::/slurm/job_7/step_0\n", "9:freezer:/slurm_n1/uid_1000/job_7\n"})
    EXPECT_EQ(memory_group_of(groups, 7, other), "") << other;
  EXPECT_TRUE(memory_is_counted(groups));
}

TEST_F(MemoryGroupTest, OfVersionTwoThereHasToBeAController) {
  const Cgroups groups = node({"name=systemd", ""});
  EXPECT_FALSE(memory_is_counted(groups));
  scratch_.file("unified/cgroup.controllers", "cpuset cpu io pids\n");
  EXPECT_FALSE(memory_is_counted(groups));
  scratch_.file("unified/cgroup.controllers", "cpuset cpu io memory pids\n");
  EXPECT_TRUE(memory_is_counted(groups));
  const std::string path = "/system.slice/n1_slurmstepd.scope/job_7",
                    lines = "0::" + path + "/step_0/user/task_0\n";
  scratch_.dir("unified" + path);
  EXPECT_EQ(memory_group_of(groups, 7, lines), "");
  const std::string mine = counts("unified" + path, "memory.current");
  EXPECT_EQ(memory_group_of(groups, 7, lines), mine);
  EXPECT_FALSE(memory_is_counted(node({"freezer"})));
}

TEST_F(MemoryGroupTest, OneThatAUserMadeIsNone) {
  const Cgroups groups = node({"memory"});
  const std::string users = counts("memory/user/job_7", "memory.usage_in_bytes");
  ASSERT_EQ(::chown(users.c_str(), 65534, 65534), 0);
  EXPECT_EQ(memory_group_of(groups, 7, "4:memory:/user/job_7\n"), "");
  const std::string mine = counts("memory/slurm/uid_1/job_7", "memory.usage_in_bytes");
  counts("memory/slurm/uid_1/job_7/step_0/job_7", "memory.usage_in_bytes");
  EXPECT_EQ(memory_group_of(groups, 7, "4:memory:/slurm/uid_1/job_7/step_0/job_7\n"), mine) << "the first";
  std::filesystem::create_directory_symlink(mine, scratch_ / "memory/job_7");
  EXPECT_EQ(memory_group_of(groups, 7, "4:memory:/job_7\n"), "") << "no link";
}

// What looks like a job's step, with a child, in groups of the kernel's.
class FoundGroupTest : public NodeTest {
 protected:
  void TearDown() override {
    NodeTest::TearDown();
    for (auto at = made_.rbegin(); at != made_.rend(); ++at)
      eventually([&] { return ::rmdir(at->c_str()) == 0 || errno == ENOENT; });
  }
  // A group of the job's, made where memory is counted; "": none can be.
  std::string make(const std::string& parent) {
    const Cgroups all;
    for (const CgroupHierarchy& h : all.hierarchies()) {
      if (!h.has("memory") && !h.unified) continue;
      const std::string top = h.mount + "/unit-test." + std::to_string(::getpid()) + parent;
      std::string group = top + "/job_" + std::to_string(job_);
      if (::mkdir(top.c_str(), 0755) != 0 || ::mkdir(group.c_str(), 0755) != 0) continue;
      made_.insert(made_.end(), {top, group});
      if (h.has("memory") || ::access((group + "/memory.current").c_str(), F_OK) == 0) return group;
    }
    return "";
  }
  static void move(pid_t pid, const std::string& group) {
    std::ofstream(group + "/cgroup.procs") << pid << std::flush;
  }

  const uint32_t job_ = 3000000000u + static_cast<uint32_t>(::getpid());

 private:
  std::vector<std::string> made_;
};

TEST_F(FoundGroupTest, ByTheProcessesOfItsSteps) {
  const std::string group = make(""), other = group.empty() ? "" : make(".other");
  if (other.empty()) GTEST_SKIP() << "no control group that counts memory can be made here";
  EXPECT_EQ(find_memory_group(job_), "") << "it has no step";
  const Stepd step = start_stepd(job_, "0", "r");
  EXPECT_EQ(find_memory_group(job_), "");
  const pid_t child = step.tasks[0];
  move(child, group);
  EXPECT_EQ(find_memory_group(job_), group) << "its task's";
  EXPECT_EQ(find_memory_group(job_ + 1), "");
  move(start_stepd(job_ + 1, "0").pid, other);
  EXPECT_EQ(find_memory_group(job_), group) << "another job's step does not count";
  move(step.pid, other);
  EXPECT_EQ(find_memory_group(job_), "") << "it is in two";
  move(child, other);
  EXPECT_EQ(find_memory_group(job_), other);
  move(step.pid, group);
  move(child, std::filesystem::path(group).parent_path());
  EXPECT_EQ(find_memory_group(job_), group) << "or its own";
}

TEST(MemoryRoomTest, AMarginIsLeft) {
  EXPECT_EQ(memory_margin(0), 32 * kMiB);
  EXPECT_EQ(memory_margin(320 * kMiB), 32 * kMiB);
  EXPECT_EQ(memory_margin(16 * kGiB), kGiB);
  EXPECT_EQ(memory_margin(UINT64_MAX), 8 * kGiB);
  EXPECT_EQ(next_room({}, 320 * kMiB, 20 * kMiB, UINT64_MAX, 5), (MemoryRoom{268 * kMiB, 5}));
  EXPECT_EQ(next_room({}, 320 * kMiB, 20 * kMiB + 1, UINT64_MAX, 5), (MemoryRoom{268 * kMiB - 4096, 5}));
  EXPECT_EQ(next_room({}, 320 * kMiB, 20 * kMiB, 100 * kMiB, 5), (MemoryRoom{100 * kMiB, 5}));
  for (const uint64_t used : {288 * kMiB, 320 * kMiB, 400 * kMiB, UINT64_MAX})
    EXPECT_EQ(next_room({}, 320 * kMiB, used, UINT64_MAX, 5), (MemoryRoom{0, 5}));
  EXPECT_EQ(next_room({}, 0, 0, UINT64_MAX, 5), (MemoryRoom{0, 5}));
}

TEST(MemoryRoomTest, ItGetsSmallerAtOnceWhenHalfOfTheMarginIsUsed) {
  const MemoryRoom all = {1000 * kMiB, 100};  // of 16 GiB, with a margin of 1 GiB
  const uint64_t half = 16 * kGiB - 1000 * kMiB - 512 * kMiB;
  EXPECT_EQ(next_room(all, 16 * kGiB, half, UINT64_MAX, 100), all);
  EXPECT_EQ(next_room(all, 16 * kGiB, half + 4096, UINT64_MAX, 100), (MemoryRoom{488 * kMiB - 4096, 100}))
      << "so that a whole margin is left";
  EXPECT_EQ(next_room(all, 16 * kGiB, 16 * kGiB, UINT64_MAX, 101), (MemoryRoom{0, 101}));
  EXPECT_EQ(next_room(all, 16 * kGiB, 0, 10 * kMiB, 101), (MemoryRoom{10 * kMiB, 101}))
      << "no more than may be";
  EXPECT_EQ(next_room({0, 1}, 16 * kGiB, 16 * kGiB, UINT64_MAX, 500), (MemoryRoom{0, 1}))
      << "nothing is less";
}

TEST(MemoryRoomTest, ItGrowsLaterByHalfOfWhatIsFree) {
  const MemoryRoom none = {0, 100};
  EXPECT_EQ(next_room(none, 16 * kGiB, 7 * kGiB, UINT64_MAX, 109), none) << "no sooner than that";
  const auto grown = [](uint64_t bytes, int64_t since) {
    return MemoryRoom{bytes, since, kLeastRoomWait, true};
  };
  EXPECT_EQ(next_room(none, 16 * kGiB, 7 * kGiB, UINT64_MAX, 110), grown(4 * kGiB, 110));
  EXPECT_EQ(next_room({4 * kGiB, 110}, 16 * kGiB, 7 * kGiB, UINT64_MAX, 120), grown(6 * kGiB, 120));
  EXPECT_EQ(next_room({6 * kGiB, 120}, 16 * kGiB, 7 * kGiB, UINT64_MAX, 130), grown(7 * kGiB, 130));
  EXPECT_EQ(next_room({7 * kGiB, 130}, 16 * kGiB, 7 * kGiB, UINT64_MAX, 140), grown(8 * kGiB, 140))
      << "the last step is a whole one";
  const MemoryRoom most = {8 * kGiB, 140};
  EXPECT_EQ(next_room(most, 16 * kGiB, 7 * kGiB, UINT64_MAX, 500), most);
  EXPECT_EQ(next_room(most, 16 * kGiB, 6 * kGiB + 4096, UINT64_MAX, 500), most)
      << "not for less than a margin";
  EXPECT_EQ(next_room(most, 16 * kGiB, 6 * kGiB, UINT64_MAX, 500), grown(9 * kGiB, 500));
  EXPECT_EQ(next_room({100 * kMiB, 1}, 16 * kGiB, 0, 101 * kMiB, 500), grown(101 * kMiB, 500))
      << "but up to the tier's own";
}

TEST(MemoryRoomTest, WhatHasToBeTakenBackAgainIsGivenLater) {
  MemoryRoom room = {0, 100};
  const auto next = [&](uint64_t used, int64_t now) {
    room = next_room(room, 16 * kGiB, used, UINT64_MAX, now);
  };
  next(7 * kGiB, 110);
  next(16 * kGiB, 111);
  EXPECT_EQ(room, (MemoryRoom{0, 111, 40, false}));
  next(15 * kGiB, 112);
  EXPECT_EQ(room.since, 111) << "it has nothing more to give back";
  next(7 * kGiB, 150);
  EXPECT_EQ(room.bytes, 0u);
  next(7 * kGiB, 151);
  EXPECT_EQ(room, (MemoryRoom{4 * kGiB, 151, 20, true}));
  next(12 * kGiB, 152);
  EXPECT_EQ(room, (MemoryRoom{3 * kGiB, 152, 80, false}));
  next(13 * kGiB, 153);
  EXPECT_EQ(room, (MemoryRoom{2 * kGiB, 153, 80, false})) << "for all that was given at once, once";
  EXPECT_EQ(next_room({kGiB, 1, 500, true}, 16 * kGiB, 16 * kGiB, UINT64_MAX, 2),
            (MemoryRoom{0, 2, 600, false}));
  EXPECT_EQ(next_room({0, 1, INT64_MAX, true}, 16 * kGiB, 0, UINT64_MAX, 601).wait, 300)
      << "no longer than that";
  EXPECT_EQ(next_room({0, INT64_MIN, INT64_MIN, true}, 16 * kGiB, 0, UINT64_MAX, 5).wait, kLeastRoomWait);
}

}  // namespace
}  // namespace monarch
