// SPDX-License-Identifier: Apache-2.0
// runtime/hierarchy/locality: on a made-up node of two sockets, and on this machine.
#include "runtime/hierarchy/locality.h"

#include <numaif.h>

#include "tests/machine.h"

namespace monarch {
namespace {

// An NVMe disk on each socket; a tier is on `point`.
std::string near_tiers_on(const std::vector<std::string>& points, bool lists = true) {
  Machine m(hpc_node());
  m.plain_root();
  for (const char* n : {"0", "1"}) {
    const std::string disk = std::string("nvme") + n + "n1", device = std::string("259:") + n;
    m.nvme(disk, device);
    m.mount(device, *n == '0' ? "/first" : "/second", "xfs", "/dev/" + disk);
  }
  for (const char* point : {"/first", "/second", "/elsewhere"}) m.dir(point, 01777);
  if (lists) {
    m.file("sys/devices/system/node/node0/cpulist", "0-1\n");
    m.file("sys/devices/system/node/node1/cpulist", "2-3,6\n");
  }
  std::vector<TierConfig> tiers(points.size());
  for (size_t i = 0; i < points.size(); ++i) tiers[i].path = points[i];
  return processors_near(tiers, m.sources());
}

TEST(Locality, ThreadsBelongNearTheDisksOfTheTiers) {
  EXPECT_EQ(near_tiers_on({"/first"}), "0-1");
  EXPECT_EQ(near_tiers_on({"/second"}), "2-3,6");
  EXPECT_EQ(near_tiers_on({"/second", "/first"}), "0-1,2-3,6");
  EXPECT_EQ(near_tiers_on({"/elsewhere"}), "") << "on a disk of which no node is known";
  EXPECT_EQ(near_tiers_on({"/first"}, false), "") << "the kernel lists no processors";
}

std::vector<int> allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> list;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) list.push_back(i);
  return list;
}

TEST(Locality, AThreadMovesToThoseOfTheProcessorsThatItMayUse) {
  const std::vector<int> before = allowed();
  ASSERT_FALSE(before.empty());
  EXPECT_FALSE(run_on("near the disk").ok());
  std::thread([&] {
    const int last = before.back();
    EXPECT_TRUE(run_on(std::to_string(last)).ok());
    EXPECT_EQ(allowed(), std::vector<int>{last});
    if (before.size() == 1) return;
    EXPECT_TRUE(run_on(std::to_string(before.front())).ok());
    EXPECT_EQ(allowed(), std::vector<int>{last}) << "none that it may use: it stays";
  }).join();
  EXPECT_EQ(allowed(), before) << "only that thread";
}

TEST(Locality, NodesThatAreShortOfMemoryAreLeftAlone) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  constexpr int kSelf = 10, kOtherSocket = 21, kFar = 31;
  const NodeMemory some{10 * kGiB, 64 * kGiB, kSelf}, little{2 * kGiB, 64 * kGiB, kSelf}, none{0, 0, kSelf};
  EXPECT_EQ(nodes_with_memory({some, little, none}), std::vector<int>{0});
  EXPECT_EQ(nodes_with_memory({some, some}), (std::vector<int>{0, 1}));
  EXPECT_TRUE(nodes_with_memory({little, none}).empty());
  EXPECT_TRUE(nodes_with_memory({}).empty());
  const NodeMemory next{60 * kGiB, 64 * kGiB, kOtherSocket}, last{60 * kGiB, 64 * kGiB, kFar};
  EXPECT_EQ(nodes_with_memory({last, next, some}), std::vector<int>{2}) << "the nearest that has any";
  EXPECT_EQ(nodes_with_memory({last, next, little}), std::vector<int>{1});
}

int policy_of_this_thread() {
  int mode = -1;
  return ::get_mempolicy(&mode, nullptr, 0, nullptr, 0) == 0 ? mode : MPOL_DEFAULT;  // a kernel without NUMA
}

TEST(Locality, TheMemoryPolicyLastsAsLongAsTheObject) {
  const int before = policy_of_this_thread();
  const bool may_choose = ::set_mempolicy(MPOL_DEFAULT, nullptr, 0) == 0;
  {
    const MemoryPolicy spread(true);
    // A container may forbid the call.
    const bool several = std::filesystem::exists("/sys/devices/system/node/node1") && may_choose;
    EXPECT_EQ(policy_of_this_thread(), several ? MPOL_INTERLEAVE : before);
  }
  EXPECT_EQ(policy_of_this_thread(), before);
  const MemoryPolicy none(false);
  EXPECT_EQ(policy_of_this_thread(), before);
}

}  // namespace
}  // namespace monarch
