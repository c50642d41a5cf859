// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/boot.h"

#include <cerrno>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/base/patience.h"
#include "runtime/config/config.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/node/cgroup.h"
#include "runtime/node/life.h"
#include "runtime/node/probe.h"
#include "runtime/node/removal.h"
#include "runtime/node/state.h"
#include "runtime/node/sweep.h"

namespace monarch {
namespace {

// Discovery refuses what may be a network's, and touches none of it.
std::vector<TierConfig> local_tiers(const Config& config) {
  const Result<std::vector<Candidate>> found = discover({}, config.tiers);
  if (!found.ok()) {
    spdlog::warn("discovery of tiers: {}", found.error().text);
    return {};
  }
  return chosen(*found);
}

// Before users come, who can keep locked what the directories are made in.
void prepare_in_time(const StateDir& state, const Config& config) {
  Cgroups(state.clock()).prepare();
  const auto all = [&] {
    prepare(state, local_tiers(config), patience::kStuckMs);
    return std::string();
  };
  if (!said_in_time(state, 2 * patience::kStuckMs, {}, all).ok())
    spdlog::warn("the tiers are not prepared: they do not answer within {} ms", 2 * patience::kStuckMs);
}

}  // namespace

Status sweep_at_boot(const std::string& state_dir, const std::string& config) {
  const Result<Config> loaded = load_config(config);
  if (!loaded.ok()) return loaded.error().code == ENOENT ? Status() : Status(loaded.error());
  const Result<StateDir> state = StateDir::open(state_dir);
  if (!state.ok()) return state.error();
  prepare_in_time(*state, *loaded);
  sweep(*state, {});
  find_and_remove(*state, [&] { return take_of_earlier_boots(*state, paths_of(local_tiers(*loaded))); });
  return {};
}

}  // namespace monarch
