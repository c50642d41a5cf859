// SPDX-License-Identifier: Apache-2.0
// What a job's counters say in one line that its owner can act on.
#pragma once

#include <cstdint>
#include <iterator>
#include <numeric>
#include <string>

#include "runtime/metadata/board.h"

namespace monarch::admin {

// Of a node, or of a job's nodes together.
struct Counts : NodeCounts {
  uint64_t opens = 0, nodes = 1;

  // As the formulas of monarch(7).
  uint64_t bytes_read() const { return read_bytes_tier + (*this)[TaskCounter::read_bytes_pfs]; }
  uint64_t bytes_pfs() const { return bytes_from_pfs(*this); }
  uint64_t calls() const { return read_calls_tier + (*this)[TaskCounter::read_calls_pfs]; }
  uint64_t calls_pfs() const {
    return (*this)[AgentCounter::agent_reads_pfs] + (*this)[TaskCounter::read_calls_pfs];
  }
  uint64_t opens_pfs() const {
    return (*this)[AgentCounter::agent_opens_pfs] + (*this)[AgentCounter::walk_dirs] +
           (*this)[TaskCounter::opens_pfs];
  }
  uint64_t placed() const {
    return std::accumulate(std::begin(placed_bytes), std::end(placed_bytes), uint64_t{0});
  }
  bool of_run = false;      // of `monarchctl run`, without Slurm
  bool agent_died = false;  // of the node whose report it is; before the job ended
  bool running = false;     // the job may read the rest later
  bool partial = false;     // of some of the job's nodes only: others may have done what these did not
  // What the dataset holds, as far as known, and files for which no tier had room. Once the tiers are full,
  // prefetch opens no more files: those that are left are taken for as large as the others.
  struct Dataset {
    uint64_t bytes = 0, no_room = 0;
    bool estimated = false;
  };
  Dataset dataset() const;
};

struct Advice {
  const char* rule;  // its name in monarchctl(1)
  std::string text;  // "": nothing is to be done
};
inline constexpr char kLateText[] =
    "the job's programs began before the agent was ready, and what they read until then is not counted: "
    "--monarch-wait has them wait";
inline constexpr char kAgentDiedText[] =
    "the agent had died: the kernel's log tells whether memory was short, then raise memory_max; or the "
    "job's script ended its user's processes";
// By the first rule that holds.
Advice advise(const Counts& counts);

}  // namespace monarch::admin
