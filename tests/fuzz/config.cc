// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/config.h"

#include <set>

#include "runtime/config/show.h"
#include "tests/fuzz/targets.h"

namespace monarch::fuzz {

void config(const uint8_t* data, size_t size) {
  static const Directory at;
  at.write("monarch.conf", data, size);
  ConfigTrace trace;
  const Result<Config> config = load_config(at.path() + "/monarch.conf", &trace);
  FUZZ_CHECK(config.ok() == trace.errors.empty());
  if (!config.ok()) {
    FUZZ_CHECK(config.error().text.find(at.path()) != std::string::npos);
    return;
  }
  FUZZ_CHECK(config->agent.threads >= 1 && config->agent.walk_threads >= 1);
  std::set<std::string> names;
  for (const TierConfig& tier : config->tiers) {
    FUZZ_CHECK(!tier.name.empty() && names.insert(tier.name).second);
    FUZZ_CHECK(!tier.path.empty() && tier.path[0] == '/' && tier.path.find("/../") == std::string::npos);
    for (const Quota& quota : {tier.quota, tier.min_free}) {
      FUZZ_CHECK(quota.percent <= 100);
      for (const uint64_t total : {uint64_t{0}, uint64_t{1} << 20, uint64_t{1} << 50})
        FUZZ_CHECK(quota.percent < 0 || quota.of(total) <= total);
    }
  }
}

}  // namespace monarch::fuzz
