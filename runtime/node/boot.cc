// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/boot.h"

#include <spdlog/spdlog.h>

#include <cerrno>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/hierarchy/discovery.h"
#include "runtime/node/removal.h"
#include "runtime/node/state.h"
#include "runtime/node/sweep.h"

namespace monarch {
namespace {

// Discovery refuses what may be a network's, and touches none of it.
std::vector<std::string> local_tiers(const Config& config) {
  std::vector<std::string> paths;
  const Result<std::vector<Candidate>> found = discover({}, config.tiers);
  if (!found.ok()) {
    spdlog::warn("discovery of tiers: {}", found.error().text);
    return paths;
  }
  for (const TierConfig& tier : chosen(*found)) paths.push_back(tier.path);
  return paths;
}

}  // namespace

Status sweep_at_boot(const std::string& state_dir, const std::string& config) {
  const Result<Config> loaded = load_config(config);
  if (!loaded.ok()) return loaded.error().code == ENOENT ? Status() : Status(loaded.error());
  const Result<StateDir> state = StateDir::open(state_dir);
  if (!state.ok()) return state.error();
  sweep(*state, {});
  find_and_remove(*state, [&] { return take_of_earlier_boots(*state, local_tiers(*loaded)); });
  return {};
}

}  // namespace monarch
