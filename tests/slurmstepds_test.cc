// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/slurmstepds.h"

#include "tests/scratch.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

// A /proc of plain files.
class SlurmstepdsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  }
  void process(const std::string& pid, const std::string& title, const std::string& uids = "0\t0\t0\t0") {
    scratch_.file("proc/" + pid + "/cmdline", title + std::string(1, '\0'));
    scratch_.file("proc/" + pid + "/status", "Name:\tx\nUid:\t" + uids + "\nGid:\t0\t0\t0\t0\n");
    scratch_.file("proc/" + pid + "/exe", "");
  }
  std::vector<Slurmstepd> found() const {
    Result<std::vector<Slurmstepd>> all = slurmstepds(scratch_ / "proc");
    EXPECT_TRUE(all.ok());
    return all.ok() ? all.take() : std::vector<Slurmstepd>();
  }
  const Scratch scratch_;
};

TEST_F(SlurmstepdsTest, AreToldByTheirTitle) {
  struct {
    const char* title;
    uint32_t job;
    bool anchor;
  } const titles[] = {
      {"slurmstepd: [12.extern]", 12, true},      {"slurmstepd: [13.batch]", 13, true},
      {"slurmstepd: [14.0]", 14, false},          {"slurmstepd: [15.interactive]", 15, false},
      {"slurmstepd: [16+1.batch]", 16, true},     {"slurmstepd: [17+0.3]", 17, false},
      {"slurmstepd: [18.extern] more", 18, true}, {"slurmstepd: [19+x", 19, false},
  };
  for (const auto& [title, job, anchor] : titles) {
    process("100", title);
    const std::vector<Slurmstepd> all = found();
    ASSERT_EQ(all.size(), 1u) << title;
    EXPECT_EQ(all[0].pid, 100);
    EXPECT_EQ(all[0].job, job) << title;
    EXPECT_EQ(all[0].anchor, anchor) << title;
  }
  for (const char* title :
       {"", "slurmstepd", "slurmstepd: ", "slurmstepd: [", "slurmstepd: [x.batch]", "slurmstepd: [12]",
        "slurmstepd: [.batch]", " slurmstepd: [12.batch]", "sleep", "evil-program: 12.extern]"}) {
    process("100", title);
    EXPECT_TRUE(found().empty()) << title;
  }
}

TEST_F(SlurmstepdsTest, NoUserPassesForOne) {
  const std::string title = "slurmstepd: [12.extern]";
  process("100", title);
  EXPECT_EQ(found().size(), 1u);
  for (const char* uids : {"65534\t0\t0\t0", "0\t65534\t0\t0", "0\t0\t65534\t0", "0\t0\t0\t65534"}) {
    process("100", title, uids);
    EXPECT_TRUE(found().empty()) << uids;
  }
  process("100", title);
  for (const mode_t lent : {04755u, 02755u}) {
    ASSERT_EQ(::chmod((scratch_ / "proc/100/exe").c_str(), lent), 0);
    EXPECT_TRUE(found().empty()) << "what is executed with rights that it lends has its user's title";
  }
  ASSERT_EQ(::chmod((scratch_ / "proc/100/exe").c_str(), 0755), 0);
  EXPECT_EQ(found().size(), 1u);
  fs::remove(scratch_ / "proc/100/exe");
  EXPECT_TRUE(found().empty()) << "nobody knows what it is";
  process("100", title);
  ASSERT_EQ(::chown((scratch_ / "proc/100").c_str(), 65534, 65534), 0);
  EXPECT_TRUE(found().empty());
  process("self", title);
  process("x100", title);
  process(":1", title);
  EXPECT_TRUE(found().empty()) << "no pids";
}

TEST_F(SlurmstepdsTest, AListThatBreaksOffIsNone) {
  process("100", "slurmstepd: [12.extern]");
  const int status = in_child([&] {
    if (!before_call(SYS_getdents64, [](CallArguments) { return EIO; })) return 255;
    const Result<std::vector<Slurmstepd>> all = slurmstepds(scratch_ / "proc");
    return all.ok() ? 0 : all.error().code;
  });
  if (status == 255) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(status, EIO);
}

TEST_F(SlurmstepdsTest, AnErrorIsNotNone) {
  EXPECT_EQ(slurmstepds(scratch_ / "missing").error().code, ENOENT);
  EXPECT_FALSE(has_slurmstepd(0xfffffff0)) << "of this machine";
}

}  // namespace
}  // namespace monarch
