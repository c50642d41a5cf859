// SPDX-License-Identifier: Apache-2.0
// Simulated runs as bars, with the parts of the time.
#pragma once

#include <string>
#include <vector>

#include "simulate/run.h"

namespace monarch::admin {

struct Bar {
  std::string label;
  simulate::Outcome outcome;
};

// An SVG file. `sources` are those of the outcomes, in their order. Whatever stands in the texts is shown,
// and does nothing.
std::string chart_of(const std::string& title, const std::vector<std::string>& sources,
                     const std::vector<Bar>& bars);

}  // namespace monarch::admin
