// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/memory.h"

#include "tests/scratch.h"

namespace monarch {
namespace {

constexpr uint64_t kGiB = 1 << 30;

class Memory : public ::testing::Test {
 protected:
  Memory() {
    scratch_.file("proc/meminfo",
                  "MemTotal:       20971520 kB\nMemFree:         1000 kB\nMemAvailable:   10485760 kB\n");
  }
  MemoryState state() const { return read_memory(scratch_ / "proc", scratch_ / "cg"); }
  void cgroup(const std::string& dir, const std::string& limit, uint64_t used, uint64_t cache) const {
    scratch_.file("cg/" + dir + "/memory.max", limit + "\n");
    scratch_.file("cg/" + dir + "/memory.current", std::to_string(used) + "\n");
    scratch_.file("cg/" + dir + "/memory.stat",
                  "anon 5\ninactive_file " + std::to_string(cache) + "\nactive_file 0\n");
  }
  Scratch scratch_;
};

TEST_F(Memory, IsWhatIsAvailableLessAReserve) {
  EXPECT_EQ(state().spare, 9 * kGiB) << "10 GiB available, less a twentieth of 20";
  EXPECT_EQ(state().stalled, 0);
}

TEST_F(Memory, NothingKnownLimitsNothing) {
  EXPECT_EQ(read_memory(scratch_ / "none", scratch_ / "none").spare, UINT64_MAX);
}

TEST_F(Memory, TheControlGroupLimitsAndItsFilePagesMakeWay) {
  scratch_.file("proc/self/cgroup", "0::/slurm/job1/step\n");
  cgroup("slurm/job1/step", std::to_string(4 * kGiB), 3 * kGiB, 2 * kGiB);
  EXPECT_EQ(state().spare, 3 * kGiB - 4 * kGiB / 20);
  cgroup("slurm/job1", std::to_string(2 * kGiB), 2 * kGiB, 0);
  EXPECT_EQ(state().spare, 0u) << "so does a group above it";
  cgroup("slurm/job1", "max", 0, 0);
  EXPECT_EQ(state().spare, 3 * kGiB - 4 * kGiB / 20);
}

TEST_F(Memory, VersionOneOfControlGroups) {
  scratch_.file("proc/self/cgroup", "7:memory:/slurm/job1\n3:cpu:/other\n");
  scratch_.file("cg/memory/slurm/job1/memory.limit_in_bytes", std::to_string(4 * kGiB));
  scratch_.file("cg/memory/slurm/job1/memory.usage_in_bytes", std::to_string(2 * kGiB));
  scratch_.file("cg/memory/slurm/job1/memory.stat", "cache 1\ntotal_inactive_file 1073741824\n");
  EXPECT_EQ(state().spare, 3 * kGiB - 4 * kGiB / 20);
}

TEST_F(Memory, PressureIsThatOfTheLastTenSeconds) {
  scratch_.file(
      "proc/pressure/memory",
      "some avg10=12.34 avg60=1.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0 avg300=0 total=0\n");
  EXPECT_DOUBLE_EQ(state().stalled, 12.34);
}

TEST_F(Memory, OfThisMachineIsRead) {
  const MemoryState here = read_memory();
  EXPECT_LT(here.spare, UINT64_MAX);
  EXPECT_GE(here.stalled, 0);
}

}  // namespace
}  // namespace monarch
