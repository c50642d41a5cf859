// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_options.h"

#include <gtest/gtest.h>

#include <tuple>

namespace monarch {
namespace {

using Prefetch = AgentConfig::Prefetch;

Config config_with(const std::vector<std::string>& tiers, Prefetch prefetch = Prefetch::kAuto) {
  Config config;
  config.agent.prefetch = prefetch;
  for (const std::string& name : tiers) {
    TierConfig tier;
    tier.name = name;
    config.tiers.push_back(tier);
  }
  return config;
}

std::string names_of(const Config& config) {
  std::string names;
  for (const TierConfig& t : config.tiers) names += t.name + " ";
  return names;
}

// What the user is told, or the error.
std::string outcome_of(const std::string& text, Config* config) {
  const Result<JobOptions> options = parse_job_options(text);
  if (!options.ok()) return "parse: " + options.error().text;
  const Result<std::string> applied = apply_options(*options, "n1", config);
  return applied.ok() ? *applied : "error: " + applied.error().text;
}

TEST(JobOptions, PrefetchIsTheUsersWhereTheAdminHasNotSwitchedItOff) {
  const std::string no_effect = " has no effect on n1, whose configuration says prefetch = off";
  struct Case {
    Prefetch configured;
    const char* options;
    Prefetch prefetch;
    uint64_t burst;
    std::string remark;
  };
  constexpr uint64_t kFew = AgentConfig::kBurstAuto, kAll = AgentConfig::kBurstAll;
  for (const Case& c :
       {Case{Prefetch::kOn, "", Prefetch::kOn, kFew, ""},
        {Prefetch::kAuto, "prefetch=off", Prefetch::kOff, kFew, ""},
        {Prefetch::kOn, "prefetch=off", Prefetch::kOff, kFew, ""},
        {Prefetch::kAuto, "prefetch=auto", Prefetch::kAuto, kFew, ""},
        {Prefetch::kOn, "prefetch=auto", Prefetch::kAuto, kFew, ""},
        {Prefetch::kAuto, "prefetch=all", Prefetch::kAuto, kAll, ""},
        {Prefetch::kOff, "prefetch=all", Prefetch::kOff, kFew, "--monarch-prefetch=all" + no_effect},
        {Prefetch::kOff, "prefetch=auto", Prefetch::kOff, kFew, ""},
        {Prefetch::kAuto, "wait=80% prefetch=auto", Prefetch::kAuto, kAll, ""},
        {Prefetch::kAuto, "wait=none wait_timeout=5", Prefetch::kAuto, kFew, ""},
        {Prefetch::kOff, "wait=full", Prefetch::kOff, kFew, "--monarch-wait" + no_effect}}) {
    Config config = config_with({"nvme"}, c.configured);
    EXPECT_EQ(outcome_of(c.options, &config), c.remark) << c.options;
    EXPECT_EQ(config.agent.prefetch, c.prefetch) << c.options;
    EXPECT_EQ(config.agent.prefetch_burst, c.burst) << c.options;
    config.agent.divide_rates(8);
    EXPECT_EQ(config.agent.prefetch_burst, c.burst) << "no bound is none for each";
  }
  Config config = config_with({"nvme"}, Prefetch::kOn);
  EXPECT_EQ(outcome_of("prefetch=all", &config), "");
  EXPECT_EQ(config.agent.prefetch, Prefetch::kOn) << "it has no bound anyway";
}

TEST(JobOptions, NodesThatDoNotKnowOfEachOtherStageNothingAheadUnlessTheAdminHasItOn) {
  for (const Prefetch configured : {Prefetch::kAuto, Prefetch::kOn})
    for (const char* options : {"prefetch=all", "wait=full", ""})
      for (const bool together : {false, true})
        for (const uint32_t nodes : {1u, 2u}) {
          Config config = config_with({"nvme"}, configured);
          config.peer.enabled = together;
          const Result<std::string> remark = apply_options(*parse_job_options(options), "n1", &config, nodes);
          ASSERT_TRUE(remark.ok());
          EXPECT_EQ(config.agent.prefetch, configured);
          const bool has_effect = together || nodes == 1 || configured == Prefetch::kOn || !*options;
          EXPECT_EQ(remark->find(" has no effect on n1: the job has 2 nodes, ") == std::string::npos,
                    has_effect)
              << options << ": " << *remark;
        }
}

TEST(JobOptions, WaitAndCapacityHaveBounds) {
  using Bounds = std::tuple<int, int, uint64_t, uint64_t, bool>;
  const std::pair<const char*, Bounds> cases[] = {
      {"", {0, 1800, 0, UINT64_MAX, false}},
      {"wait=full", {100, 1800, 0, UINT64_MAX, false}},
      {"wait=7% wait_timeout=604800", {7, 604800, 0, UINT64_MAX, false}},
      {"wait=full wait=none", {0, 1800, 0, UINT64_MAX, false}},
      {"capacity=1K", {0, 1800, 1024, UINT64_MAX, false}},
      {"capacity=1K:2K", {0, 1800, 1024, 2048, false}},
      {"capacity=0:2K,require", {0, 1800, 0, 2048, true}},
      {"capacity=1K:2K:require", {0, 1800, 1024, 2048, true}},
  };
  for (const auto& [text, bounds] : cases) {
    const Result<JobOptions> o = parse_job_options(text);
    ASSERT_TRUE(o.ok()) << text;
    EXPECT_EQ(Bounds(o->wait_percent, o->wait_seconds, o->least, o->most, o->require), bounds) << text;
  }
}

TEST(JobOptions, NoMoreThanTheMostIsTakenOfTheFirstTiersFirst) {
  constexpr uint64_t kBlock = 4096;
  NodePart part;  // not known
  const auto left = [&](uint64_t most, Quota of_first) {
    Config config = config_with({"a", "b", "c"});
    for (TierConfig& t : config.tiers) t.quota = Quota{1000 * kBlock, -1};
    config.tiers[0].job_capacity = of_first;
    limit_capacity(most, part, &config.tiers);
    std::string text;
    for (const TierConfig& t : config.tiers)
      text += t.name + std::to_string(share_of(t, part) / kBlock) + " ";
    return text;
  };
  const Quota all{0, 100};
  EXPECT_EQ(left(UINT64_MAX, all), "a1000 b1000 c1000 ");
  EXPECT_EQ(left(5000 * kBlock, all), "a1000 b1000 c1000 ");
  EXPECT_EQ(left(3000 * kBlock, all), "a1000 b1000 c1000 ");
  EXPECT_EQ(left(2999 * kBlock, all), "a1000 b1000 c999 ");
  EXPECT_EQ(left(2000 * kBlock, all), "a1000 b1000 ");
  EXPECT_EQ(left(700 * kBlock, all), "a700 ");
  EXPECT_EQ(left(700 * kBlock, Quota{0, 50}), "a500 b200 ");
  EXPECT_EQ(left(700 * kBlock, Quota{5000 * kBlock, -1}), "a700 ");
  part = {1, 2, 0, 0};
  EXPECT_EQ(left(700 * kBlock, all), "a500 b200 ") << "of its shares";
  std::vector<TierConfig> tiers = config_with({"a", "empty"}).tiers;
  tiers[0].quota = Quota{1000 * kBlock, -1};
  limit_capacity(UINT64_MAX, part, &tiers);
  EXPECT_EQ(tiers.size(), 2u) << "without a limit all is as configured";
  limit_capacity(1000 * kBlock, part, &tiers);
  ASSERT_EQ(tiers.size(), 1u);
  EXPECT_EQ(tiers[0].job_capacity.percent, 100) << "that is no limit of it";
}

TEST(JobOptions, ConsistencyAndWhatIsExcludedAreTheUsers) {
  using Consistency = AgentConfig::Consistency;
  Config config = config_with({"nvme"});
  config.agent.consistency = Consistency::kOpen;
  for (const auto& [options, consistency] : {std::pair("exclude=*.log:a=b/*", Consistency::kOpen),
                                             {"consistency=open", Consistency::kOpen},
                                             {"consistency=job", Consistency::kJob}}) {
    EXPECT_EQ(outcome_of(options, &config), "");
    EXPECT_EQ(config.agent.consistency, consistency) << options;
    EXPECT_EQ(config.agent.exclude, std::string(options).starts_with("exclude") ? "*.log:a=b/*" : "");
  }
}

TEST(JobOptions, TiersAreThoseNamedInThatOrder) {
  const std::string off =
      "--monarch-prefetch=all has no effect on n1, whose configuration says prefetch = off";
  struct Case {
    Prefetch configured;
    const char* options;
    std::string outcome, tiers;
  };
  for (const Case& c :
       {Case{Prefetch::kAuto, "tiers=ram,nvme,ram", "", "ram nvme "},
        {Prefetch::kAuto, "tiers=tape,ssd,dvd prefetch=off", "n1 has no tier tape,dvd; it has nvme,ssd,ram",
         "ssd "},
        {Prefetch::kOff, "tiers=tape,ssd prefetch=all", off + "; n1 has no tier tape; it has nvme,ssd,ram",
         "ssd "},
        {Prefetch::kAuto, "tiers=tape",
         "error: n1 has no tier tape; it has nvme,ssd,ram: name one of these in --monarch-tiers, or leave it "
         "out",
         "nvme ssd ram "}}) {
    Config config = config_with({"nvme", "ssd", "ram"}, c.configured);
    EXPECT_EQ(outcome_of(c.options, &config), c.outcome);
    EXPECT_EQ(names_of(config), c.tiers) << "an error changes nothing: " << c.options;
  }
}

TEST(JobOptions, WhatIsNotKnownIsAnError) {
  const std::pair<std::string, std::vector<const char*>> cases[] = {
      {"prefetch", {"", "=", "=on", "==all", "=all consistency=never"}},
      {"wait=", {"", "0%", "101%", "80", "%", "-1%", "1%%"}},
      {"wait_timeout=", {"0", "604801", "x"}},
      {"hints=", {"", "on", "torch,off"}},
      {"capacity=", {"", "2K:1K", "0:0", "1K,", "1K,required", ":1K"}},
      {"", {"tiers=", "exclude=", "report=", "report=r", "report=/r/", "colour=red", "="}},
  };
  Config config = config_with({"nvme"});
  for (const auto& [key, values] : cases)
    for (const char* value : values)
      EXPECT_TRUE(outcome_of(key + value, &config).starts_with("parse: option '")) << key << value;
  EXPECT_EQ(outcome_of("tiers=" + std::string(65, ','), &config).substr(0, 6), "parse:");
}

}  // namespace
}  // namespace monarch
