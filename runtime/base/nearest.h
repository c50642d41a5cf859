// SPDX-License-Identifier: Apache-2.0
// What was meant by a word that is not known.
#pragma once

#include <string>
#include <vector>

namespace monarch {

// The one of `known` that differs from `word` by a typing error or two, the first of the nearest ones; empty:
// none does.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

// " (did you mean WORD?)", or nothing of an empty one.
inline std::string did_you_mean(const std::string& word) {
  return word.empty() ? "" : " (did you mean " + word + "?)";
}

}  // namespace monarch
