// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/probe.h"

#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"

namespace monarch {
namespace {

class ProbeTest : public NodeTest {
 protected:
  static constexpr int kLong = 60000;
};

TEST_F(ProbeTest, WhatIsThereAndWhatIsNotAnswers) {
  scratch_.file("file", "");
  const std::vector<bool> all(4, true);
  EXPECT_EQ(
      probe(state_, {scratch_ / "tier", scratch_.path(), scratch_ / "missing", scratch_ / "file"}, kLong),
      all);
  EXPECT_TRUE(probe(state_, {}, 0).empty());
  EXPECT_TRUE(children().empty()) << "no process is left behind";
  EXPECT_EQ(probe(state_, {scratch_ / "tier"}, 0), std::vector<bool>{false}) << "it has had no time";
  EXPECT_TRUE(eventually([] { return children().empty(); }));
}

TEST_F(ProbeTest, WhatHangsDoesNotAnswerAndHoldsNothingUp) {
  make_tier("other");
  const std::string hung = scratch_ / "tier";
  const Intercept hang(Call::kOpenat, [&](Arguments& a) {
    if (hung != a.path) return 0;
    for (;;) ::pause();
    return 0;
  });
  EXPECT_EQ(probe(state_, {hung, scratch_ / "other", hung}, 500), (std::vector<bool>{false, true, false}));
  EXPECT_TRUE(children().empty());
}

TEST_F(ProbeTest, AUsersMountBesideTheJobsIsNotAsked) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->fuse("tier/monarch", 65533, ",allow_other");
    m->check(probe(state_, {scratch_ / "tier"}, kLong).at(0), "it hangs, and the tier does not");
    m->fuse("tier", 65533, ",allow_other");
    m->check(!probe(state_, {scratch_ / "tier"}, 300).at(0), "the tier itself hangs");
    m->check(children().empty(), "no process is left behind");
  });
}

}  // namespace
}  // namespace monarch
