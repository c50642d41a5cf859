// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/grant.h"

#include <charconv>

namespace monarch {

std::string grant_text(const std::vector<Grant>& grants) {
  std::string text;
  for (const Grant& g : grants) text += g.tier + " " + std::to_string(g.quota) + "\n";
  return text;
}

std::vector<Grant> parse_grants(const std::string& text) {
  std::vector<Grant> grants;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string::npos; at = end + 1) {
    const size_t blank = text.find(' ', at);
    if (blank == at || blank >= end) continue;
    Grant g{text.substr(at, blank - at), 0};
    const auto [rest, ec] = std::from_chars(text.data() + blank + 1, text.data() + end, g.quota);
    if (ec == std::errc() && rest == text.data() + end) grants.push_back(std::move(g));
  }
  return grants;
}

}  // namespace monarch
