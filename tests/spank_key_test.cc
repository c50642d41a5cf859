// SPDX-License-Identifier: Apache-2.0
// How the key of a job's agents comes from the submission to the nodes, and to nobody else.
#include <set>

#include "tests/spank_fixture.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

constexpr char kInStep[] = "SLURM_SPANK_MONARCH_KEY", kInProlog[] = "SPANK_MONARCH_KEY";

class SpankKey : public SpankPlugin {
 protected:
  // What Slurm is given to carry to the job's nodes.
  std::map<std::string, std::string> submitted(spank_context_t context, bool dataset = true,
                                               bool refused = false) {
    load();
    init(context);
    if (dataset) option("monarch-dataset", scratch_.path().c_str());
    if (refused) option("no-monarch", nullptr);
    hook("init_post_opt");
    return fake_.controlled;
  }
  void prolog() { SpankPlugin::prolog({{"monarch-dataset", "/data"}}); }
};

TEST_F(SpankKey, EachSubmissionMakesOne) {
  std::set<std::string> keys;
  for (const spank_context_t context : {S_CTX_ALLOCATOR, S_CTX_LOCAL, S_CTX_ALLOCATOR}) {
    const std::map<std::string, std::string> given = submitted(context);
    ASSERT_EQ(given.size(), 1u);
    const auto& [name, key] = *given.begin();
    EXPECT_EQ(name, "MONARCH_KEY");
    EXPECT_TRUE(key.size() == 64 && key.find_first_not_of("0123456789abcdef") == std::string::npos) << key;
    keys.insert(key);
    EXPECT_TRUE(submitted(context, false).empty());
    EXPECT_TRUE(submitted(context, true, true).empty());
  }
  EXPECT_EQ(keys.size(), 3u) << "none like another";
  ::setenv("SLURM_JOB_ID", "7", 1);
  EXPECT_TRUE(submitted(S_CTX_LOCAL).empty()) << "a step has its job's";
  EXPECT_EQ(submitted(S_CTX_ALLOCATOR).size(), 1u) << "a job submitted from within a job has its own";
}

TEST_F(SpankKey, WithoutRandomNumbersThereIsNone) {
  const int status = in_child([&] {
    if (!before_call(SYS_getrandom, [](CallArguments) { return EAGAIN; })) return 99;
    init(S_CTX_ALLOCATOR);
    option("monarch-check", "off");
    option("monarch-dataset", "/data");
    hook("init_post_opt");
    return fake_.controlled.empty() ? 0 : 1;
  });
  if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(status, 0);
}

TEST_F(SpankKey, ThePrologHandsItOnWithTheNodes) {
  prolog();
  EXPECT_EQ(told_helper("MONARCH_JOB_KEY") + told_helper("MONARCH_JOB_NODES"), "nonenone");
  const std::string key(64, 'a');
  ::setenv(kInProlog, key.c_str(), 1);
  ::setenv("SLURM_NODELIST", "n[1-2]", 1);
  prolog();
  EXPECT_EQ(told_helper("MONARCH_JOB_KEY"), key);
  EXPECT_EQ(told_helper("MONARCH_JOB_NODES"), "n[1-2]");
  EXPECT_FALSE(has(arguments(), key)) << "all can read a command line";
  ::setenv("SLURM_JOB_NODELIST", "n[1-3]", 1);
  prolog();
  EXPECT_EQ(told_helper("MONARCH_JOB_NODES"), "n[1-3]");
}

TEST_F(SpankKey, AStepHandsOnWhatItsEnvironmentHas) {
  const auto start = [&](const std::map<std::string, std::string>& environment) {
    step({}, environment);
    return told_helper("MONARCH_JOB_KEY") + " " + told_helper("MONARCH_JOB_NODES");
  };
  const std::string key(64, 'b');
  EXPECT_EQ(start({}), "none none");
  EXPECT_EQ(start({{kInStep, key}, {"SLURM_NODELIST", "n[1-2]"}}), key + " n[1-2]");
  EXPECT_EQ(start({{kInStep, key}, {"SLURM_JOB_NODELIST", "m"}, {"SLURM_NODELIST", "n"}}), key + " m");
  EXPECT_EQ(start({{kInStep, key}}), key + " none");
  EXPECT_EQ(start({{kInStep, key + "b"}, {"SLURM_NODELIST", "n"}}), "none n") << "that is too long for one";
  EXPECT_EQ(start({{"SLURM_NODELIST", std::string(1 << 16, 'n')}}), "none none");
  EXPECT_FALSE(has(arguments(), key));
}

TEST_F(SpankKey, NoTaskSeesIt) {
  for (const char* dataset : {"/data", ""}) {
    step({}, {}, *dataset ? Options{{"monarch-dataset", dataset}} : Options());
    fake_.environment = {{kInStep, "k"}, {kInProlog, "k"}, {"HOME", "/home/u"}};
    hook("task_init");
    EXPECT_EQ(fake_.environment.count(kInStep) + fake_.environment.count(kInProlog), 0u) << dataset;
    EXPECT_EQ(fake_.environment.count("HOME"), 1u);
  }
}

}  // namespace
}  // namespace monarch
