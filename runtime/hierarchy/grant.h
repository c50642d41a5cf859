// SPDX-License-Identifier: Apache-2.0
// What root tells the agent of a running job: how much it may use of each tier, which only grows, and where
// the job's memory is counted. A file of root's, STATE/grants/NAME, one line "TIER BYTES" for each tier and,
// if one is charged to the job, "memory BYTES GROUP"; replaced as a whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace monarch {

struct Grant {
  std::string tier;    // its name
  uint64_t quota = 0;  // bytes
};

struct Grants {
  std::vector<Grant> tiers;
  uint64_t memory = 0;       // bytes that Slurm allocated to the job on this node
  std::string memory_group;  // the directory of the control group that counts them; empty: not told
};

std::string grants_text(const Grants& grants);

// Lines that are none are left out.
Grants parse_grants(const std::string& text);

// What the file says now; nothing, if it cannot be read.
Grants read_grants(const std::string& file);

// What the file grants of a tier; 0: nothing, or the file cannot be read.
uint64_t granted_by(const std::string& file, const std::string& tier);

}  // namespace monarch
