// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/cgroup.h"

#include <gtest/gtest.h>

#include "runtime/node/life.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  std::vector<CgroupHierarchy> read(const std::string& mountinfo) const {
    scratch_.file("mountinfo", mountinfo);
    return Cgroups(scratch_ / "mountinfo").hierarchies();
  }
  Scratch scratch_;
};

TEST_F(CgroupTest, EachHierarchyOnceWithItsControllers) {
  const auto found = read(
      "30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
      "31 30 0:27 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
      "32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd\n"
      "33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "34 30 0:29 / /mnt/again rw - cgroup cgroup rw,cpu,cpuacct\n"
      "35 30 0:30 /docker/1 /mnt/part rw - cgroup cgroup rw,memory\n");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_TRUE(found[0].unified);
  EXPECT_EQ(found[1].controllers, "name=systemd");
  EXPECT_EQ(found[2].mount, "/sys/fs/cgroup/cpu,cpuacct");
  EXPECT_TRUE(found[2].has("cpuacct"));
  EXPECT_FALSE(found[2].has("cpuset"));
}

TEST_F(CgroupTest, NamesWithBlanks) {
  const auto found = read("31 30 0:27 / /mnt/a\\040b\\134c rw - cgroup2 none rw\n");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].mount, "/mnt/a b\\c");
}

TEST_F(CgroupTest, WithoutHierarchiesThereIsNothingToEnd) {
  scratch_.file("none", "30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n");
  const Cgroups none(scratch_ / "none");
  EXPECT_FALSE(none.make("x", 0).ok());
  EXPECT_TRUE(none.end("x", 0));
  EXPECT_TRUE(none.names("").empty());
}

TEST(AgentMemory, IsWhatTheTiersInMemoryTakeAndMore) {
  AgentConfig agent;
  TierConfig disk, ram;
  disk.quota.bytes = uint64_t{1} << 40;
  ram.quota.bytes = uint64_t{16} << 30;
  ram.medium = Medium::kRam;
  EXPECT_EQ(agent_memory(agent, {disk}), uint64_t{2} << 30);
  EXPECT_EQ(agent_memory(agent, {disk, ram}), uint64_t{19} << 30);
  agent.memory_max = 0;
  EXPECT_EQ(agent_memory(agent, {ram}), 0u);
}

}  // namespace
}  // namespace monarch
