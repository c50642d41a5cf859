// SPDX-License-Identifier: Apache-2.0
#include "runtime/config/show.h"

#include "runtime/config/keys.h"

namespace monarch {
namespace {

template <typename Section>
void list(const std::string& title, const Keys<Section>& keys, const Section& section,
          std::vector<ConfigValue>* out) {
  for (const Key<Section>& key : keys) out->push_back({title, key.name, key.kind, key.values(section)});
}

}  // namespace

std::vector<ConfigValue> values_of(const Config& config) {
  std::vector<ConfigValue> all;
  for (const TierConfig& tier : config.tiers) list("tier." + tier.name, tier_keys(), tier, &all);
  list("agent", agent_keys(), config.agent, &all);
  list("peer", peer_keys(), config.peer, &all);
  list("accounting", accounting_keys(), config, &all);
  bool general = false;
  for (const PolicySection& policy : config.policies) general |= policy.of == PolicySection::Of::kAll;
  if (!general) list(PolicySection().title(), policy_keys(), {}, &all);
  for (const PolicySection& policy : config.policies) list(policy.title(), policy_keys(), policy.keys, &all);
  return all;
}

}  // namespace monarch
