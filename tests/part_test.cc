// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/part.h"

#include "tests/node_fixture.h"

namespace monarch {
namespace {

using Share = TierConfig::Share;

constexpr uint64_t kBlock = 4096, kQuota = 1000 * kBlock;

// Of a tier of 1000 blocks, in blocks.
TEST(PartTest, AShareIsTheJobsPartOfTheNode) {
  const NodePart quarter = {2, 8, 10 * kBlock, 100 * kBlock};
  const Quota all{0, 100};
  struct Case {
    const char* what;
    Share share;
    NodePart part;
    uint64_t expected;
    Quota job_capacity = {0, 100};
    TierConfig::Charge charge = TierConfig::Charge::kNode;
  };
  const Case cases[] = {
      {"cores", Share::kCpus, quarter, 250},
      {"memory", Share::kMemory, quarter, 100},
      {"equal is as cpus", Share::kEqual, quarter, 250},
      {"whole", Share::kWhole, quarter, 1000},
      {"all cores: all, whatever the key says", Share::kMemory, {8, 8, 10, 100}, 1000},
      {"more than all there is not", Share::kCpus, {9, 8, 0, 0}, 1000},
      {"nor of memory", Share::kMemory, {2, 8, 200, 100}, 1000},
      {"the job's cores are not known", Share::kCpus, {0, 8, 10, 100}, 1000},
      {"the node's are not known", Share::kCpus, {2, 0, 10, 100}, 1000},
      {"Slurm does not track memory", Share::kMemory, {2, 8, 0, 100}, 1000},
      {"the node's memory is not known", Share::kMemory, {2, 8, 10, 0}, 1000},
      {"whole blocks", Share::kCpus, {1, 3, 0, 0}, 333},
      {"one at least", Share::kMemory, {1, 2, 1, 1 << 20}, 1},
      {"no more than a job's capacity", Share::kWhole, quarter, 400, {0, 40}},
      {"which is in blocks", Share::kWhole, quarter, 5, {6 * kBlock - 1, -1}},
      {"and more than the share", Share::kCpus, quarter, 250, {0, 40}},
      {"nor than its memory, if charged to it", Share::kWhole, quarter, 10, all, TierConfig::Charge::kJob},
      {"all cores or not", Share::kCpus, {8, 8, 10 * kBlock, 0}, 10, all, TierConfig::Charge::kJob},
  };
  for (const Case& c : cases) {
    TierConfig tier;
    tier.quota.bytes = kQuota;
    tier.share = c.share;
    tier.job_capacity = c.job_capacity;
    tier.charge = c.charge;
    EXPECT_EQ(share_of(tier, c.part), c.expected * kBlock) << c.what;
  }
  TierConfig odd;
  odd.quota.bytes = kQuota + 1;
  EXPECT_EQ(share_of(odd, {8, 8, 0, 0}), kQuota + 1) << "all is all";
}

class CoresTest : public NodeTest {
 protected:
  uint32_t ask() const {
    constexpr int kPatienceMs = 20000;
    CoresQuestion question(state_, record(1).job, {"/etc/slurm.conf", "", program_});
    const uint32_t cores = question.answer(kPatienceMs);
    EXPECT_EQ(question.answer(kPatienceMs), cores) << "once more";
    EXPECT_TRUE(no_child_is_left());
    return cores;
  }
};

TEST_F(CoresTest, AreWhatSlurmConfSaysAndKnownForAWhile) {
  says("echo 64");
  EXPECT_EQ(ask(), 64u);
  says("echo 32");
  EXPECT_EQ(ask(), 64u);
  EXPECT_EQ(contents(scratch_ / "asked"), "--cores n1\n");
  const std::string known = state_.path() + "/cores.c.n1";
  for (const int64_t age : {601, -5}) {
    const timespec then[2] = {{::time(nullptr) - age, 0}, {::time(nullptr) - age, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, known.c_str(), then, 0), 0);
    says("echo " + std::to_string(1000 + age));
    EXPECT_EQ(ask(), static_cast<uint32_t>(1000 + age)) << "an administrator may have changed it";
  }
  std::ofstream(known) << "rubbish";
  says("echo 16");
  EXPECT_EQ(ask(), 16u);
}

TEST_F(CoresTest, AreNotKnownIfNobodySaysANumberInTime) {
  for (const char* body : {"echo 64; exit 1", "echo many", "echo", "echo -1", "printf 64", "echo 99999999999",
                           "yes", "kill $$"}) {
    says(body);
    EXPECT_EQ(ask(), 0u) << body;
  }
  std::filesystem::remove(scratch_ / "asked");
  clock_.pass_once([this] { return exists(scratch_ / "asked"); });
  says("exec sleep 600");
  EXPECT_EQ(ask(), 0u);
  clock_.pass_once({});
  program_ = scratch_ / "missing";
  EXPECT_EQ(ask(), 0u);
  program_ = "";
  EXPECT_EQ(ask(), 0u);
  EXPECT_FALSE(exists(state_.path() + "/cores.c.n1")) << "and nothing is kept";
}

}  // namespace
}  // namespace monarch
