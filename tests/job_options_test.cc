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

TEST(JobOptions, WithoutAnyAllIsAsConfigured) {
  Config config = config_with({"nvme", "ram"}, Prefetch::kOn);
  EXPECT_EQ(outcome_of("", &config), "");
  EXPECT_EQ(config.agent.prefetch, Prefetch::kOn);
  EXPECT_EQ(config.agent.prefetch_burst, uint64_t{AgentConfig::kBurstAuto});
  EXPECT_EQ(config.agent.consistency, AgentConfig::Consistency::kJob);
  EXPECT_EQ(names_of(config), "nvme ram ");
}

TEST(JobOptions, PrefetchIsTheUsers) {
  for (const Prefetch configured : {Prefetch::kAuto, Prefetch::kOn}) {
    Config config = config_with({"nvme"}, configured);
    EXPECT_EQ(outcome_of("prefetch=off", &config), "");
    EXPECT_EQ(config.agent.prefetch, Prefetch::kOff);
    config = config_with({"nvme"}, configured);
    EXPECT_EQ(outcome_of("prefetch=auto", &config), "");
    EXPECT_EQ(config.agent.prefetch, Prefetch::kAuto);
    EXPECT_EQ(config.agent.prefetch_burst, uint64_t{AgentConfig::kBurstAuto});
    config = config_with({"nvme"}, configured);
    EXPECT_EQ(outcome_of("prefetch=all", &config), "");
    EXPECT_EQ(config.agent.prefetch, configured) << "on has no bound anyway";
    if (configured == Prefetch::kOn) continue;
    EXPECT_EQ(config.agent.prefetch_burst, uint64_t{AgentConfig::kBurstAll});
    config.agent.divide_rates(8);
    EXPECT_EQ(config.agent.prefetch_burst, uint64_t{AgentConfig::kBurstAll}) << "no bound is none for each";
  }
}

TEST(JobOptions, WhatTheAdminHasOnStaysOnForNodesThatDoNotKnowOfEachOther) {
  const Result<JobOptions> all = parse_job_options("prefetch=all");
  ASSERT_TRUE(all.ok());
  for (const Prefetch configured : {Prefetch::kAuto, Prefetch::kOn}) {
    Config config = config_with({"nvme"}, configured);
    config.peer.enabled = false;
    const Result<std::string> applied = apply_options(*all, "n1", &config, 2);
    ASSERT_TRUE(applied.ok());
    EXPECT_EQ(config.agent.prefetch, configured);
    EXPECT_EQ(applied->empty(), configured == Prefetch::kOn) << *applied;
  }
}

TEST(JobOptions, WhatTheAdminSwitchedOffStaysOff) {
  Config config = config_with({"nvme"}, Prefetch::kOff);
  EXPECT_EQ(outcome_of("prefetch=all", &config),
            "--monarch-prefetch=all has no effect on n1, whose configuration says prefetch = off");
  EXPECT_EQ(config.agent.prefetch, Prefetch::kOff);
  EXPECT_EQ(outcome_of("prefetch=auto", &config), "");
  EXPECT_EQ(config.agent.prefetch, Prefetch::kOff);
}

TEST(JobOptions, WhoWaitsWantsAllThatIsThere) {
  Config config = config_with({"nvme"});
  EXPECT_EQ(outcome_of("wait=80% prefetch=auto", &config), "");
  EXPECT_EQ(config.agent.prefetch, Prefetch::kAuto);
  EXPECT_EQ(config.agent.prefetch_burst, uint64_t{AgentConfig::kBurstAll});
  config = config_with({"nvme"});
  EXPECT_EQ(outcome_of("wait=none wait_timeout=5", &config), "");
  EXPECT_EQ(config.agent.prefetch_burst, uint64_t{AgentConfig::kBurstAuto});
  config = config_with({"nvme"}, Prefetch::kOff);
  EXPECT_EQ(outcome_of("wait=full", &config),
            "--monarch-wait has no effect on n1, whose configuration says prefetch = off");
  EXPECT_EQ(config.agent.prefetch, Prefetch::kOff);
  const auto waits = [](const char* text) {
    const Result<JobOptions> options = parse_job_options(text);
    return options.ok() ? std::make_pair(options->wait_percent, options->wait_seconds)
                        : std::make_pair(-1, -1);
  };
  EXPECT_EQ(waits(""), std::make_pair(0, 1800));
  EXPECT_EQ(waits("wait=full"), std::make_pair(100, 1800));
  EXPECT_EQ(waits("wait=7% wait_timeout=604800"), std::make_pair(7, 604800));
  EXPECT_EQ(waits("wait=full wait=none"), std::make_pair(0, 1800));
}

TEST(JobOptions, NodesThatDoNotKnowOfEachOtherStageNothingAhead) {
  for (const bool together : {false, true})
    for (const uint32_t nodes : {1u, 2u}) {
      Config config = config_with({"nvme"});
      config.peer.enabled = together;
      const Result<std::string> remark = apply_options(*parse_job_options("wait=full"), "n1", &config, nodes);
      ASSERT_TRUE(remark.ok());
      EXPECT_EQ(*remark, together || nodes == 1
                             ? ""
                             : "--monarch-wait has no effect on n1: the job has 2 nodes, which "
                               "get no files from each other here (monarch.conf: [peer])");
      EXPECT_EQ(*apply_options({}, "n1", &config, nodes), "") << "nobody asked for it";
    }
}

TEST(JobOptions, CapacityHasBounds) {
  using Bounds = std::tuple<uint64_t, uint64_t, bool>;
  const auto bounds = [](const char* text) {
    const Result<JobOptions> o = parse_job_options(text);
    return o.ok() ? Bounds{o->least, o->most, o->require} : Bounds{1, 1, false};
  };
  EXPECT_EQ(bounds(""), Bounds(0, UINT64_MAX, false));
  EXPECT_EQ(bounds("capacity=1K"), Bounds(1024, UINT64_MAX, false));
  EXPECT_EQ(bounds("capacity=1K:2K"), Bounds(1024, 2048, false));
  EXPECT_EQ(bounds("capacity=0:2K,require"), Bounds(0, 2048, true));
  EXPECT_EQ(bounds("capacity=1K:2K:require"), Bounds(1024, 2048, true));
}

TEST(JobOptions, NoMoreThanTheMostIsTakenOfTheFirstTiersFirst) {
  const auto left = [](uint64_t most, Quota of_first) {
    Config config = config_with({"a", "b", "c"});
    for (TierConfig& t : config.tiers) t.quota = Quota{1000, -1};
    config.tiers[0].job_capacity = of_first;
    limit_capacity(most, &config.tiers);
    std::string text;
    for (const TierConfig& t : config.tiers)
      text += t.name + std::to_string(t.job_capacity.of(t.quota.bytes)) + " ";
    return text;
  };
  const Quota all{0, 100};
  EXPECT_EQ(left(UINT64_MAX, all), "a1000 b1000 c1000 ");
  EXPECT_EQ(left(5000, all), "a1000 b1000 c1000 ");
  EXPECT_EQ(left(3000, all), "a1000 b1000 c1000 ");
  EXPECT_EQ(left(2999, all), "a1000 b1000 c999 ");
  EXPECT_EQ(left(2000, all), "a1000 b1000 ");
  EXPECT_EQ(left(700, all), "a700 ");
  EXPECT_EQ(left(700, Quota{0, 50}), "a500 b200 ");
  EXPECT_EQ(left(700, Quota{5000, -1}), "a700 ");
  std::vector<TierConfig> tiers = config_with({"a", "empty"}).tiers;
  tiers[0].quota = Quota{1000, -1};
  limit_capacity(UINT64_MAX, &tiers);
  EXPECT_EQ(tiers.size(), 2u) << "without a limit all is as configured";
  limit_capacity(1000, &tiers);
  ASSERT_EQ(tiers.size(), 1u);
  EXPECT_EQ(tiers[0].job_capacity.percent, 100) << "that is no limit of it";
}

TEST(JobOptions, WhatIsExcludedIsTheAgentsToKnow) {
  Config config = config_with({"nvme"});
  EXPECT_EQ(outcome_of("exclude=*.log:a=b/*", &config), "");
  EXPECT_EQ(config.agent.exclude, "*.log:a=b/*");
}

TEST(JobOptions, ConsistencyIsTheUsers) {
  Config config = config_with({"nvme"});
  config.agent.consistency = AgentConfig::Consistency::kOpen;
  EXPECT_EQ(outcome_of("prefetch=off", &config), "");
  EXPECT_EQ(config.agent.consistency, AgentConfig::Consistency::kOpen) << "or as configured";
  EXPECT_EQ(outcome_of("consistency=open", &config), "");
  EXPECT_EQ(config.agent.consistency, AgentConfig::Consistency::kOpen);
  EXPECT_EQ(outcome_of("consistency=job", &config), "");
  EXPECT_EQ(config.agent.consistency, AgentConfig::Consistency::kJob);
}

TEST(JobOptions, TiersAreThoseNamedInThatOrder) {
  Config config = config_with({"nvme", "ssd", "ram"});
  EXPECT_EQ(outcome_of("tiers=ram,nvme,ram", &config), "");
  EXPECT_EQ(names_of(config), "ram nvme ");
  config = config_with({"nvme", "ssd"});
  EXPECT_EQ(outcome_of("tiers=ram,ssd,tape prefetch=off", &config),
            "n1 has no tier ram,tape; it has nvme,ssd");
  EXPECT_EQ(names_of(config), "ssd ");
  EXPECT_EQ(config.agent.prefetch, Prefetch::kOff);
  config = config_with({"nvme", "ssd"}, Prefetch::kOff);
  EXPECT_EQ(
      outcome_of("tiers=ram,ssd prefetch=all", &config),
      "--monarch-prefetch=all has no effect on n1, whose configuration says prefetch = off; n1 has no tier "
      "ram; it has nvme,ssd");
  config = config_with({"nvme", "ssd"});
  EXPECT_EQ(
      outcome_of("tiers=ram", &config),
      "error: n1 has no tier ram; it has nvme,ssd: name one of these in --monarch-tiers, or leave it out");
  EXPECT_EQ(names_of(config), "nvme ssd ") << "an error changes nothing";
}

TEST(JobOptions, WhatIsNotKnownIsAnError) {
  Config config = config_with({"nvme"});
  for (const char* text : {"prefetch",
                           "prefetch=",
                           "prefetch=on",
                           "prefetch=all consistency=never",
                           "tiers=",
                           "colour=red",
                           "=",
                           "prefetch==all",
                           "wait=",
                           "wait=0%",
                           "wait=101%",
                           "wait=80",
                           "wait=%",
                           "wait=-1%",
                           "wait=1%%",
                           "wait_timeout=0",
                           "capacity=",
                           "capacity=2K:1K",
                           "capacity=0:0",
                           "capacity=1K,",
                           "capacity=1K,required",
                           "capacity=:1K",
                           "exclude=",
                           "wait_timeout=604801",
                           "wait_timeout=x"})
    EXPECT_TRUE(outcome_of(text, &config).starts_with("parse: option '")) << text;
  EXPECT_EQ(outcome_of("tiers=" + std::string(65, ','), &config).substr(0, 6), "parse:");
}

}  // namespace
}  // namespace monarch
