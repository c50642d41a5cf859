// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/grant.h"

#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "runtime/base/number.h"

namespace monarch {
namespace {

constexpr std::string_view kMemory = "memory ";

}  // namespace

std::string grants_text(const Grants& grants) {
  std::string text;
  for (const Grant& g : grants.tiers) text += g.tier + " " + std::to_string(g.quota) + "\n";
  if (!grants.memory_group.empty())
    text += std::string(kMemory) + std::to_string(grants.memory) + " " + grants.memory_group + "\n";
  return text;
}

Grants parse_grants(const std::string& text) {
  Grants grants;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const std::string_view line = std::string_view(text).substr(at, end - at);
    const size_t first = line.find(' '), second = line.find(" /", first + 1);
    if (first == 0 || first == std::string_view::npos) continue;
    const std::optional<uint64_t> number = to_number<uint64_t>(line.substr(first + 1, second - first - 1));
    if (!number) continue;
    if (second == std::string_view::npos) {
      grants.tiers.push_back({std::string(line.substr(0, first)), *number});
    } else if (line.starts_with(kMemory)) {
      grants.memory = *number;
      grants.memory_group = line.substr(second + 1);
    }
  }
  return grants;
}

Grants read_grants(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return parse_grants({std::istreambuf_iterator<char>(in), {}});
}

uint64_t granted_by(const std::string& file, const std::string& tier) {
  for (const Grant& grant : read_grants(file).tiers)
    if (grant.tier == tier) return grant.quota;
  return 0;
}

}  // namespace monarch
