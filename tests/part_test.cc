// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/part.h"

#include "tests/node_fixture.h"

namespace monarch {
namespace {

using Share = TierConfig::Share;

TEST(PartTest, AShareIsAPartOfCoresOrOfMemory) {
  const NodePart part = {2, 8, 10, 100};
  EXPECT_EQ(part_of(Share::kCpus, part), 0.25);
  EXPECT_EQ(part_of(Share::kMemory, part), 0.1);
  EXPECT_EQ(part_of(Share::kEqual, part), 1);
  EXPECT_EQ(part_of(Share::kWhole, part), 1);
  EXPECT_FALSE(has_all_cores(part));
}

TEST(PartTest, WhoHasAllCoresHasAll) {
  const NodePart part = {8, 8, 10, 100};
  EXPECT_TRUE(has_all_cores(part));
  for (const Share share : {Share::kCpus, Share::kMemory, Share::kEqual, Share::kWhole})
    EXPECT_EQ(part_of(share, part), 1);
  EXPECT_EQ(part_of(Share::kCpus, {9, 8, 0, 0}), 1) << "and more there are not";
}

TEST(PartTest, WhatIsNotKnownIsAll) {
  EXPECT_EQ(part_of(Share::kCpus, {0, 8, 10, 100}), 1);
  EXPECT_EQ(part_of(Share::kCpus, {2, 0, 10, 100}), 1);
  EXPECT_EQ(part_of(Share::kMemory, {2, 8, 0, 100}), 1) << "Slurm does not track it";
  EXPECT_EQ(part_of(Share::kMemory, {2, 8, 10, 0}), 1);
  EXPECT_EQ(part_of(Share::kMemory, {2, 8, 200, 100}), 1);
  EXPECT_FALSE(has_all_cores({0, 0, 0, 0}));
}

class CoresTest : public NodeTest {
 protected:
  void says(const std::string& body) {
    program_ =
        scratch_.file("program", "#!/bin/sh\necho \"$*\" >>" + (scratch_ / "asked") + "\n" + body + "\n");
    ::chmod(program_.c_str(), 0755);
  }
  uint32_t ask() const {
    constexpr int kPatienceMs = 20000;
    CoresQuestion question(state_, record(1).job, {"/etc/slurm.conf", "", program_});
    const uint32_t cores = question.answer(kPatienceMs);
    EXPECT_EQ(question.answer(kPatienceMs), cores) << "once more";
    EXPECT_TRUE(no_child_is_left());
    return cores;
  }
  std::string program_;
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
