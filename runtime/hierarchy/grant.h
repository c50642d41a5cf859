// SPDX-License-Identifier: Apache-2.0
// What root tells the agent of a running job when space of other jobs has become free, or other jobs are to
// have some of this one's: its quotas. One that is smaller than what the agent uses is a demand to remove
// copies; Board::granted says when that is done. A file of root's, STATE/grants/NAME, one line "TIER BYTES"
// for each tier, replaced as a whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace monarch {

struct Grant {
  std::string tier;    // its name
  uint64_t quota = 0;  // bytes
};

std::string grant_text(const std::vector<Grant>& grants);

// Lines that are none are left out.
std::vector<Grant> parse_grants(const std::string& text);

}  // namespace monarch
