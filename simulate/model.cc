// SPDX-License-Identifier: Apache-2.0
#include "simulate/model.h"

#include <algorithm>

namespace monarch::simulate {

double Curve::at(double n) const {
  const auto above = std::lower_bound(points_.begin(), points_.end(), std::pair(n, 0.0));
  if (above == points_.end()) return points_.empty() ? 0 : points_.back().second;
  if (above == points_.begin() || above->first == n) return above->second;
  const auto below = above - 1;
  return below->second + (above->second - below->second) * (n - below->first) / (above->first - below->first);
}

}  // namespace monarch::simulate
