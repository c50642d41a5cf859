// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/job_options.h"

#include <gtest/gtest.h>

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
    EXPECT_EQ(config.agent.prefetch, Prefetch::kAuto) << "nodes that do not know of each other do without";
    EXPECT_EQ(config.agent.prefetch_burst, uint64_t{AgentConfig::kBurstAll});
    config.agent.divide_rates(8);
    EXPECT_EQ(config.agent.prefetch_burst, uint64_t{AgentConfig::kBurstAll}) << "no bound is none for each";
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

TEST(JobOptions, ConsistencyIsTheUsers) {
  Config config = config_with({"nvme"});
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
  for (const char* text : {"prefetch", "prefetch=", "prefetch=on", "prefetch=all consistency=never",
                           "tiers=", "colour=red", "=", "prefetch==all"})
    EXPECT_TRUE(outcome_of(text, &config).starts_with("parse: the job's options hold '")) << text;
  EXPECT_EQ(outcome_of("tiers=" + std::string(65, ','), &config).substr(0, 6), "parse:");
}

}  // namespace
}  // namespace monarch
