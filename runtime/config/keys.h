// SPDX-License-Identifier: Apache-2.0
// The keys of each kind of section of monarch.conf(5): how a value is read, and how it is written.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/config/show.h"
#include "runtime/config/values.h"

namespace monarch {

template <typename Section>
struct Key {
  const char* name;
  std::function<Status(const std::string& text, Section* section)> set;
  std::function<ConfigValue::Values(const Section& section)> values;
  ConfigValue::Kind kind = ConfigValue::Kind::kSingle;
};
template <typename Section>
using Keys = std::vector<Key<Section>>;

const Keys<AgentConfig>& agent_keys();
const Keys<PeerConfig>& peer_keys();
const Keys<Config>& accounting_keys();
const Keys<TierConfig>& tier_keys();
const Keys<PolicyKeys>& policy_keys();

// nullptr: there is none of that name.
template <typename Section>
const Key<Section>* find_key(const Keys<Section>& keys, const std::string& name) {
  for (const Key<Section>& key : keys)
    if (name == key.name) return &key;
  return nullptr;
}

// Sets a key of the section [`title`].
template <typename Section>
Status set_key(const Keys<Section>& keys, const std::string& title, const std::string& name,
               const std::string& text, Section* section) {
  if (const Key<Section>* key = find_key(keys, name)) return key->set(text, section);
  std::vector<std::string> known;
  for (const Key<Section>& key : keys) known.emplace_back(key.name);
  return unknown_key(name, title, known);
}

// A line for each of these keys that is set.
template <typename Section>
std::string lines_of(const Keys<Section>& keys, const std::vector<std::string>& names,
                     const Section& section) {
  std::string lines;
  for (const std::string& name : names)
    if (const ConfigValue::Values values = find_key(keys, name)->values(section))
      for (const std::string& value : *values) lines += name + " = " + value + "\n";
  return lines;
}

// A key whose value is at `place` of its section: a member, or what a function finds. `parse` makes it of a
// text; `text`, from which nothing may come if it is not set, the reverse.
template <typename Section, typename Place, typename Parse, typename Text>
Key<Section> key_of(const char* name, Place place, Parse parse, Text text) {
  const auto values = [=](const Section& section) -> ConfigValue::Values {
    std::optional<std::string> shown;
    const auto& value = std::invoke(place, section);
    if constexpr (std::is_invocable_v<Text, decltype(value)>)
      shown = text(value);
    else if (value)
      shown = text(*value);
    if (!shown) return {};
    return ConfigValue::Values({*shown});
  };
  const auto set = [=](const std::string& given, Section* section) {
    return assign(parse(given), &std::invoke(place, *section));
  };
  return {name, set, values};
}

}  // namespace monarch
