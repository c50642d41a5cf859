// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/policy.h"

#include <dlfcn.h>
#include <pwd.h>

#include "runtime/base/patience.h"
#include "runtime/config/dataset_rules.h"
#include "tests/node_fixture.h"

namespace {

constexpr int kHangs = -1;
int users_error, groups_error;  // with which the C library's calls fail

template <class Call>
Call* next(const char* name) {
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

extern "C" int getpwuid_r(uid_t uid, passwd* entry, char* room, size_t size, passwd** found) {
  if (users_error == 0) return next<decltype(getpwuid_r)>("getpwuid_r")(uid, entry, room, size, found);
  while (users_error == kHangs) ::pause();
  *found = nullptr;
  return users_error;
}
extern "C" int getgrnam_r(const char* name, group* entry, char* room, size_t size, group** found) {
  if (groups_error == 0) return next<decltype(getgrnam_r)>("getgrnam_r")(name, entry, room, size, found);
  while (groups_error == kHangs) ::pause();
  *found = nullptr;
  return groups_error;
}

namespace monarch {
namespace {

JobFacts facts_of(const std::string& partition, const std::string& account, const std::string& qos) {
  JobFacts facts;
  facts.user = {2101, 100, {100, 7}};
  facts.asked = facts.known = facts.named = true;
  facts.partition = partition;
  facts.account = account;
  facts.qos = qos;
  facts.user_name = "alice";
  facts.groups = {"staff"};
  return facts;
}

class PolicyTest : public ::testing::Test {
 protected:
  Config config(const std::string& policy) const {
    const std::string tiers =
        "[tier.a]\npath = /a\nquota = 1G\n[tier.b]\npath = /b\nquota = 1G\njob_capacity = 10%\n"
        "[agent]\npfs_opens = 5\n";
    Result<Config> loaded = load_config(scratch_.file("monarch.conf", tiers + policy));
    EXPECT_TRUE(loaded.ok()) << loaded.error().text;
    return loaded.ok() ? loaded.take() : Config();
  }
  // Why a job has none; "" if it has.
  std::string refusal(const std::string& policy, const JobFacts& facts,
                      const std::string& datasets = "/data") const {
    const Result<Config> mine = apply_policy(config(policy), facts, datasets);
    EXPECT_TRUE(mine.ok() || mine.error().code == kRefused || mine.error().code == ENOSPC);
    return mine.ok() ? "" : mine.error().text;
  }
  Config mine(const std::string& policy, const JobFacts& facts) const {
    Result<Config> mine = apply_policy(config(policy), facts, "/data");
    EXPECT_TRUE(mine.ok()) << mine.error().text;
    return mine.ok() ? mine.take() : Config();
  }

  Scratch scratch_;
  const JobFacts job_ = facts_of("gpu", "physics", "high");
};

TEST_F(PolicyTest, TheMoreSpecialSectionGoesBeforeTheMoreGeneralOne) {
  const auto opens = [&](const std::string& policy, const JobFacts& facts) {
    return mine(policy, facts).agent.pfs_opens;
  };
  const std::string keys[] = {"[policy.qos.high]\npfs_opens = 40\n",
                              "[policy.account.Physics]\npfs_opens = 30\n",
                              "[policy.partition.gpu]\npfs_opens = 20\n", "[policy]\npfs_opens = 10\n"};
  for (size_t first = 0; first < 4; ++first) {
    std::string text;
    for (size_t i = first; i < 4; ++i) text += keys[i];
    EXPECT_EQ(opens(text, job_), 40 - 10 * first);
  }
  EXPECT_EQ(opens("[policy.qos.high]\npfs_stats = 1\n[policy]\npfs_opens = 10\n", job_), 10u) << "key by key";
  EXPECT_EQ(opens("[policy.partition.GPU]\npfs_opens = 1\n[policy.account.phys]\npfs_opens = 2\n"
                  "[policy.qos.gpu]\npfs_opens = 3\n",
                  job_),
            5u)
      << "others do not count";
  EXPECT_EQ(opens(keys[0], facts_of("", "", "HIGH")), 40u) << "as Slurm compares them";
  JobFacts unknown = job_;
  unknown.known = false;
  EXPECT_EQ(opens(keys[2], unknown), 5u);
  const Config all = mine(
      "[policy]\nmax_files = 1M\npfs_bandwidth = 1G\npfs_opens = none\npfs_stats = 7\njob_capacity = 5G\n"
      "closing_line = off\n",
      job_);
  EXPECT_EQ(
      std::tuple(all.agent.max_files, all.agent.pfs_bandwidth, all.agent.pfs_opens, all.agent.pfs_stats),
      std::tuple(1u << 20, 1u << 30, 0u, 7u));
  EXPECT_EQ(all.tiers[0].job_capacity.of(1), uint64_t{5} << 30);
  EXPECT_FALSE(all.closing_line);
}

TEST_F(PolicyTest, SwitchedOffIsToldWithItsReason) {
  const std::string off = "the administrator has switched it off for jobs";
  for (const auto& [section, of] : {std::pair("partition.gpu", " of partition gpu"),
                                    {"account.physics", " of account physics"},
                                    {"qos.high", " with QOS high"}})
    EXPECT_EQ(refusal(std::string("[policy.") + section + "]\nenabled = off\n", job_),
              off + of + " (monarch.conf: [policy." + section + "] enabled = off)");
  const std::string only_gpu = "[policy]\nenabled = off\n[policy.partition.gpu]\nenabled = on\n";
  EXPECT_EQ(refusal(only_gpu, job_), "");
  EXPECT_TRUE(refusal(only_gpu + "[policy.qos.High]\nenabled = on\n[policy.account.x]\nenabled = off\n",
                      facts_of("cpu", "", ""))
                  .ends_with("; it is on for partition gpu, qos high"));
  JobFacts unknown = job_;
  unknown.known = false;
  EXPECT_TRUE(has(refusal(only_gpu, unknown), ", and slurmctld has not told the job's partition"));
  unknown.asked = false;
  EXPECT_EQ(refusal("[policy]\nenabled = off\n", unknown), off + " (monarch.conf: [policy] enabled = off)")
      << "nobody had to ask";
}

TEST_F(PolicyTest, UsersAndGroupsAreAllowedAndDenied) {
  struct Case {
    const char *keys, *why;
  };
  for (const Case& c :
       {Case{"deny_users = bob, alice", "user alice may not use it"},
        {"deny_users = bob, 21010, ali", ""},
        {"deny_users = 2101", "user alice"},
        {"deny_users = bob\ndeny_users = alice", "user alice"},  // several lines add up
        {"deny_groups = students, staff", "user alice is in group staff, which may not use it"},
        {"deny_groups = 7", "user alice is in group 7"},  // one of the others
        {"deny_groups = 100", "user alice is in group 100"},
        {"deny_groups = 8", ""},
        {"allow_users = bob", "user alice is not among those who may use it"},
        {"allow_groups = students", "user alice is not among"},
        {"allow_users = bob, alice", ""},
        {"allow_users = bob\nallow_groups = staff", ""},  // one of the two is enough
        {"allow_users = alice\ndeny_groups = staff", "user alice is in group staff"},
        {"allow_users =", ""},  // an empty list is none
        {"allow_users = bob\n[policy.qos.high]\nallow_users =", ""}}) {
    const std::string why = refusal(std::string("[policy]\n") + c.keys + "\n", job_);
    EXPECT_TRUE(why.starts_with(c.why) && why.empty() == !*c.why) << c.keys << ": " << why;
  }
}

TEST_F(PolicyTest, WhoseNameIsNotKnownHasNoneWhereNamesDecide) {
  JobFacts nameless = job_;
  nameless.named = false;
  nameless.user_name = "";
  nameless.groups.clear();
  for (const char* keys :
       {"deny_users = bob", "deny_groups = bob", "allow_users = bob", "allow_groups = bob"})
    EXPECT_TRUE(has(refusal(std::string("[policy]\n") + keys + "\n", nameless), "could not be looked up"))
        << keys;
  EXPECT_EQ(refusal("[policy]\ndeny_users = 1\nallow_users = 2101\n", nameless), "") << "numbers are known";
  EXPECT_EQ(refusal("[policy]\nallow_groups = staff, 7\n", nameless), "");
}

TEST_F(PolicyTest, DeniedDatasetsAreToldBeforeAnythingIsLookedAt) {
  const std::string policy = "[policy]\ndeny_datasets = /secret:/x/y/\n";
  for (const auto& [datasets, why] : {std::pair("/data:/secretly:/x/yy", ""),
                                      {"/data:/secret//a", "dataset /secret/a is in /secret, which"},
                                      {"/secret/", "dataset /secret is excluded by the administrator"},
                                      {"/x", "dataset /x holds /x/y, which the administrator excludes"},
                                      {":/data::/secret", "dataset /secret"},
                                      {"::/data:", ""}}) {
    const std::string told = refusal(policy, job_, datasets);
    EXPECT_TRUE(told.starts_with(why) && told.empty() == !*why) << datasets << ": " << told;
  }
  EXPECT_EQ(mine(policy, job_).datasets.deny, (std::vector<std::string>{"/secret", "/x/y"}));
}

TEST_F(PolicyTest, RulesAreForWhatAPathLeadsTo) {
  const std::string good = scratch_.dir("good/data"), bad = scratch_.dir("bad/data");
  std::filesystem::create_symlink(scratch_ / "good", scratch_ / "link");
  const auto verdict = [&](const DatasetRules& rules, const std::string& real) {
    const Status s = check_rules(rules, real, "/given");
    return s.ok() ? "" : s.error().text;
  };
  EXPECT_EQ(verdict({{scratch_ / "link"}, {}}, good), "") << "an allowed link allows what it leads to";
  EXPECT_NE(verdict({{}, {scratch_ / "link"}}, good), "") << "and a denied one denies it";
  EXPECT_EQ(verdict({{}, {scratch_ / "link", "/not/there"}}, bad), "");
  EXPECT_EQ(verdict({{"/not/there", scratch_ / "good"}, {}}, bad),
            "dataset /given, which is " + bad +
                ", is in none of the directories that the administrator allows: /not/there, " +
                (scratch_ / "good") + " (monarch.conf: allow_datasets); name one below them");
  EXPECT_NE(verdict({{scratch_ / "good"}, {scratch_ / "good/data"}}, good), "") << "a denial wins";
}

TEST_F(PolicyTest, TiersAreChosenAndOrdered) {
  const Config both = mine("[policy]\ntiers = b, a\njob_capacity = 25%\n", job_);
  ASSERT_EQ(both.tiers.size(), 2u);
  EXPECT_EQ(both.tiers[0].name, "b");
  EXPECT_EQ(both.tiers[1].name, "a");
  for (const TierConfig& tier : both.tiers) EXPECT_EQ(tier.job_capacity.percent, 25);
  const Config one = mine("[policy]\ntiers = a\n[policy.qos.high]\ntiers = b\n", job_);
  ASSERT_EQ(one.tiers.size(), 1u);
  EXPECT_EQ(one.tiers[0].name, "b");
  EXPECT_EQ(one.tiers[0].job_capacity.percent, 10);
  Config without = config("[policy]\ntiers = a\n");
  without.tiers.erase(without.tiers.begin());  // it does not answer
  const Result<Config> none = apply_policy(without, job_, "/data");
  ASSERT_FALSE(none.ok());
  EXPECT_EQ(none.error().text,
            "of the tiers that it may use none answers on this node: a (monarch.conf: [policy] tiers)");
}

// ---- what is asked

class FactsTest : public NodeTest {
 protected:
  JobFacts ask(const std::string& policy, const std::string& run = "0 boot\n") const {
    (void)state_.lock_job(record(1).job, true, 0).ok();  // makes its directory
    const Result<Config> config = load_config(scratch_.file("policy.conf", policy));
    EXPECT_TRUE(config.ok()) << config.error().text;
    JobFacts facts;
    {
      JobQuestion question(state_, record(1).job, run, user_, *config, {"", "", program_});
      facts = question.answer();
      EXPECT_EQ(question.answer().partition, facts.partition) << "once more";
      change(record(1).job, [&](JobRecord* r) { question.note(&r->notes); });
    }
    EXPECT_TRUE(no_child_is_left());
    return facts;
  }
  std::string asked() const {
    return std::filesystem::exists(scratch_ / "asked") ? contents(scratch_ / "asked") : "";
  }
  User user_{2101, 2101, {}};
};

constexpr char kPartition[] = "[policy.partition.gpu]\nenabled = off\n";

TEST_F(FactsTest, NothingIsAskedThatNoSectionNeeds) {
  says("echo gpu; echo physics; echo high");
  JobFacts none;
  const char policy[] = "[policy]\nenabled = off\ndeny_users = 1, 2\nallow_groups = 3\n";
  EXPECT_EQ(logged([&] { none = ask(policy); }), "");
  EXPECT_FALSE(none.asked || none.known || none.named);
  EXPECT_EQ(asked(), "");
}

TEST_F(FactsTest, SlurmctldIsAskedOnceInARun) {
  says("echo gpu; echo; echo high");
  for (int i = 0; i < 2; ++i) {
    JobFacts facts;
    EXPECT_EQ(logged([&] { facts = ask(kPartition); }), "");
    EXPECT_TRUE(facts.asked && facts.known);
    EXPECT_EQ(facts.partition + "/" + facts.account + "/" + facts.qos, "gpu//high");
    EXPECT_EQ(asked(), "--facts --job 1 --uid 2101\n");
  }
  says("echo cpu; echo a; echo b");
  EXPECT_EQ(ask(kPartition, "1 boot\n").partition, "cpu") << "requeued, maybe to another";
}

TEST_F(FactsTest, WhatIsNotToldIsNotKnown) {
  for (const char* body : {"exit 1", "echo gpu; echo physics; echo high; exit 1", "echo gpu; echo physics",
                           "true", "echo gpu; echo physics; echo high; echo more", "kill -9 $$"}) {
    says(body);
    JobFacts facts;
    const std::string log = logged([&] { facts = ask(kPartition); });
    EXPECT_TRUE(facts.asked && !facts.known) << body;
    EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << "it is said once: " << log;
  }
  for (const std::string& program : {scratch_ / "missing", std::string()}) {
    program_ = program;
    EXPECT_FALSE(ask(kPartition).known);
  }
  says("exec sleep 60");
  const int64_t begin = clock_.now_ms();
  clock_.pass_once([] { return true; });
  EXPECT_FALSE(ask(kPartition).known);
  EXPECT_GE(clock_.now_ms() - begin, patience::kHookWaitMs);
  EXPECT_LT(clock_.now_ms() - begin, patience::kHookWaitMs + patience::kDeathMs)
      << "nor longer than it takes to die";
}

TEST_F(FactsTest, NamesAreLookedUp) {
  user_ = {0, 0, {}};
  const JobFacts root = ask("[policy]\ndeny_users = nobody\ndeny_groups = root, no-such-group, root\n");
  EXPECT_TRUE(root.named);
  EXPECT_EQ(root.user_name, "root");
  EXPECT_EQ(root.groups, std::vector<std::string>{"root"});
  user_ = {4294967290u, 4294967290u, {}};
  const JobFacts nobody = ask("[policy]\nallow_groups = root\n");
  EXPECT_TRUE(nobody.named) << "that it has none is known";
  EXPECT_EQ(nobody.user_name, "");
  EXPECT_TRUE(nobody.groups.empty());
}

TEST_F(FactsTest, WhatCannotBeLookedUpIsNotKnown) {
  user_ = {0, 0, {}};
  const char policy[] = "[policy]\ndeny_groups = root\n";
  for (int* error : {&users_error, &groups_error}) {
    for (const int none : {ENOENT, ESRCH, EBADF, EPERM}) {
      *error = none;
      EXPECT_TRUE(ask(policy).named) << none;
    }
    for (const int fails : {EIO, EMFILE, kHangs}) {
      clock_.pass_once([=] { return fails == kHangs; });
      *error = fails;
      EXPECT_FALSE(ask(policy).named) << fails;
    }
    *error = 0;
    clock_.pass_once({});
  }
}

TEST_F(PolicyTest, TheUsersOptionsGoBeforeTheDefaultsAsFarAsTheyMay) {
  struct Case {
    const char *policy, *asked, *prefetch, *consistency;
    int wait_percent, wait_seconds;
    const char* remark;  // its beginning
  };
  const char defaults[] = "default_options = prefetch=off consistency=open wait=50%\n";
  const char no_prefetch[] = "--monarch-prefetch is at most ",
             no_wait[] = "--monarch-wait has no effect here (";
  const Case cases[] = {
      {"", "prefetch=all consistency=open", "all", "open", 0, 1800, ""},
      {defaults, "", "off", "open", 50, 1800, ""},
      {defaults, "prefetch=auto wait=none", "auto", "open", 0, 1800, ""},
      {"deny_options = prefetch, wait_timeout\ndefault_options = prefetch=off\n",
       "prefetch=all wait_timeout=5 consistency=open", "off", "open", 0, 1800,
       "--monarch-prefetch has no effect here (monarch.conf: [policy.qos.high] deny_options); "
       "--monarch-wait-timeout has no effect here (monarch.conf: [policy.qos.high] deny_options)"},
      {"max_prefetch = auto\n", "prefetch=all", "auto", "", 0, 1800, no_prefetch},
      {"max_prefetch = auto\n", "prefetch=off", "off", "", 0, 1800, ""},
      {"max_prefetch = auto\n", "", "", "", 0, 1800, ""},
      {"max_prefetch = auto\n", "wait=full", "auto", "", 0, 1800, no_wait},
      {"max_prefetch = off\n", "", "off", "", 0, 1800, ""},
      {"max_prefetch = off\n", "prefetch=auto", "off", "", 0, 1800, no_prefetch},
      {"max_prefetch = all\n", "wait=full", "", "", 100, 1800, ""},
      {"max_prefetch = auto\n[agent]\nprefetch = on\n", "", "auto", "", 0, 1800, ""},
      {"max_prefetch = auto\n[agent]\nprefetch = off\n", "", "", "", 0, 1800, ""},
      {"max_wait = 600\n", "wait=full", "", "", 100, 600, "--monarch-wait ends after 600 s ("},
      {"max_wait = 600\n", "wait=full wait_timeout=60", "", "", 100, 60, ""},
      {"max_wait = 0\n", "wait=10%", "", "", 0, 0, no_wait},
  };
  std::string remark;
  for (const Case& c : cases) {
    SCOPED_TRACE(std::string(c.policy) + c.asked);
    const Result<JobOptions> options =
        bound_options(config("[policy.qos.high]\n" + std::string(c.policy)), job_, c.asked, &remark);
    ASSERT_TRUE(options.ok()) << options.error().text;
    EXPECT_EQ(
        std::tuple(options->prefetch, options->consistency, options->wait_percent, options->wait_seconds),
        std::tuple(c.prefetch, c.consistency, c.wait_percent, c.wait_seconds));
    EXPECT_TRUE(remark.starts_with(c.remark) && remark.empty() == !*c.remark) << remark;
    remark.clear();
  }
  EXPECT_FALSE(bound_options(config("[policy]\ndeny_options = tiers\n"), job_, "tiers=", &remark).ok());
}

TEST_F(PolicyTest, AJobThatNamesNoDatasetMayHaveOneByDefault) {
  const std::string text =
      "[policy]\ndefault_dataset = /all\n[policy.partition.gpu]\ndefault_dataset = /a:/b\n"
      "default_dataset = /c\n[policy.account.none]\ndefault_dataset =\n";
  EXPECT_EQ(default_dataset(config(text), job_), "/a:/b:/c");
  EXPECT_EQ(default_dataset(config(text), facts_of("cpu", "", "")), "/all");
  EXPECT_EQ(default_dataset(config(text), facts_of("gpu", "none", "")), "") << "none, for these";
  EXPECT_TRUE(has_default_dataset(config(text)));
  EXPECT_FALSE(has_default_dataset(config("[policy]\ndefault_dataset =\n")));
  EXPECT_EQ(default_dataset(config(""), job_), "");
}

}  // namespace
}  // namespace monarch
