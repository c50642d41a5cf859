// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/nearest.h"

#include <algorithm>

namespace monarch {
namespace {

// How many letters have to be changed, added, left out, or swapped with the next one.
size_t distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<size_t>> of(a.size() + 1,
                                      std::vector<size_t>(b.size() + 1));  // what they begin with
  for (size_t i = 0; i <= a.size(); ++i)
    for (size_t k = 0; k <= b.size(); ++k) {
      if (i == 0 || k == 0) {
        of[i][k] = i + k;
        continue;
      }
      const size_t changed = of[i - 1][k - 1] + (a[i - 1] == b[k - 1] ? 0 : 1);
      of[i][k] = std::min({changed, of[i - 1][k] + 1, of[i][k - 1] + 1});
      if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
        of[i][k] = std::min(of[i][k], of[i - 2][k - 2] + 1);
    }
  return of[a.size()][b.size()];
}

}  // namespace

std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  size_t most = word.size() > 4 ? 2 : 1;  // with two, [tier] would be [peer]
  std::string meant;
  for (const std::string& other : known) {
    if (std::max(word.size(), other.size()) - std::min(word.size(), other.size()) > most) continue;
    const size_t errors = distance(word, other);
    if (errors == 0 || errors > most) continue;
    most = errors - 1;
    meant = other;
  }
  return meant;
}

}  // namespace monarch
