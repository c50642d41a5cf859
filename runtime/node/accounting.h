// SPDX-License-Identifier: Apache-2.0
// From a job's counters to its line in sacct.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/result.h"
#include "runtime/layout/board_layout.h"
#include "runtime/node/state.h"

namespace monarch {

// What the child that reads the job's board as the job's owner hands to root: numbers only.
struct JobCounters {
  uint64_t magic;
  uint64_t task[kTaskCounters];
  uint64_t agent[kAgentCounters];
  uint64_t opens_tier[kMaxTiers];
  uint64_t read_calls_tier[kMaxTiers];
  uint64_t read_bytes_tier[kMaxTiers];
  uint64_t placed_bytes[kMaxTiers];
  OpenTimes open_times;
  uint64_t nodes;  // of the job, if this one has peers
  uint64_t ended;  // other nodes of which all is in `others`
  NodeCounts others;

  uint64_t operator[](TaskCounter c) const { return task[static_cast<uint32_t>(c)]; }
  uint64_t operator[](AgentCounter c) const { return agent[static_cast<uint32_t>(c)]; }
};
inline constexpr uint64_t kJobCountersMagic = 0x31435f4843524e4d;

// Reads what the board of `run_dir` has before its parking words, without mapping it: O_NOFOLLOW, a regular
// file of the right size and version, pread(2). Run as the job's owner.
Result<std::unique_ptr<Board>> read_board(const std::string& run_dir);
JobCounters counters_of(const Board& board);
// This node's, without what is placed: who adds it knows of what medium the tiers are.
NodeCounts own_counts(const JobCounters& counters);
// Files that were placed; one that the job wrote meanwhile, and that was staged again, is one.
uint64_t staged_once(const NodeCounts& counts);

// Files of which is decided whether and where they are placed.
uint64_t settled_files(const NodeCounts& counts);

// What is placed now of what is to be placed, once the walk is through: of one node, or the sums of several.
struct Staged {
  uint64_t files = 0, bytes = 0;
  std::optional<uint64_t> all_files, all_bytes;
  bool estimated = false;  // all_bytes: from the mean size of the files opened so far
};
Staged staged_of(const NodeCounts& counts, uint64_t placed_bytes);
// Of the bytes, or of the files if they hold none; 100 only once all files are placed: of one that cannot be
// read nobody knows the size.
std::optional<double> staged_percent(const Staged& staged);
// "99%", also for 99.9.
std::string whole_percent(double percent);

// Whether all numbers are such as a job can have.
bool plausible(const JobCounters& counters);

// Why an open went to the PFS, in the words of the manual, without "fallback_".
struct Fallback {
  const char* name;
  TaskCounter counter;
};
inline constexpr Fallback kFallbacks[] = {
    {"no_agent", TaskCounter::fallback_no_agent},   {"timeout", TaskCounter::fallback_timeout},
    {"ring_full", TaskCounter::fallback_ring_full}, {"no_fit", TaskCounter::fallback_no_fit},
    {"pass", TaskCounter::fallback_pass},           {"large", TaskCounter::fallback_large},
    {"dropped", TaskCounter::fallback_dropped},     {"invalid", TaskCounter::fallback_invalid},
    {"absent", TaskCounter::fallback_absent},       {"excluded", TaskCounter::fallback_excluded},
    {"mount", TaskCounter::fallback_mount},         {"tier_error", TaskCounter::fallback_tier_error}};

// Whether the job's agent was there when the job ended; kResumed: another one, which went on for it.
enum class AgentEnd { kWithJob, kBefore, kResumed };
inline bool has_died(AgentEnd agent) { return agent != AgentEnd::kWithJob; }

// The line for sacct's SystemComment, at most 255 characters; monarch(7) documents each field.
// `counters` is nullptr if they were lost.
std::string comment_line(const JobRecord& record, const JobCounters* counters,
                         AgentEnd agent = AgentEnd::kWithJob);

}  // namespace monarch
