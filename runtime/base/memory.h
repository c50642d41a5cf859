// SPDX-License-Identifier: Apache-2.0
// How much memory the node and our control group have to spare, and whether they are short of it.
#pragma once

#include <cstdint>
#include <string>

namespace monarch {

struct MemoryState {
  uint64_t spare = UINT64_MAX;  // bytes that may be taken: of MemAvailable and of the control group's limit,
                                // less a reserve; the least of all
  double stalled = 0;           // percent of the last 10 s in which some task waited for memory (PSI)
};

// Reads proc_pressure(5) ("<proc>/pressure/memory"), "<proc>/meminfo" and the memory controller of
// "<proc>/self/cgroup" below `cgroups`. What is not there does not limit.
MemoryState read_memory(const std::string& proc = "/proc", const std::string& cgroups = "/sys/fs/cgroup");

// All of the node's memory, in bytes; 0 if it is not known.
uint64_t total_memory();

// read_memory().spare, at most 100 ms old. Any thread.
uint64_t spare_memory();

// Whether background work had better pause: the node is short of memory. At most 100 ms old. Any thread.
bool memory_is_short();

}  // namespace monarch
