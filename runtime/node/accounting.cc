// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/accounting.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include "runtime/base/log.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/run_file.h"
#include "runtime/metadata/series.h"

namespace monarch {
namespace {

constexpr size_t kLineMax = 255;

uint64_t value(const std::atomic<uint64_t>& counter) { return counter.load(std::memory_order_relaxed); }

// "-66%": how much less than `native` the PFS had to do.
std::string change(uint64_t with_monarch, uint64_t native) {
  if (native == 0) return "0%";
  const double percent = 100.0 * (static_cast<double>(with_monarch) / static_cast<double>(native) - 1);
  return fmt::format("{:+.0f}%", std::min(percent, 99999.0));
}

double share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : 100.0 * static_cast<double>(std::min(part, whole)) / static_cast<double>(whole);
}

// In the order of this node's tiers; then what other nodes have besides.
std::vector<std::pair<std::string, uint64_t>> placed_by_medium(const JobRecord& record,
                                                               const JobCounters& counters) {
  std::vector<std::pair<std::string, uint64_t>> media;
  const auto bytes_of = [&](const std::string& medium) -> uint64_t& {
    auto at = std::find_if(media.begin(), media.end(), [&](const auto& m) { return m.first == medium; });
    if (at == media.end()) at = media.insert(media.end(), {medium, 0});
    return at->second;
  };
  for (size_t i = 0; i < record.tiers.size() && i < kMaxTiers; ++i)
    bytes_of(record.tiers[i].medium) += counters.placed_bytes[i];
  for (uint32_t i = 0; i < kMedia; ++i)
    if (const uint64_t bytes = counters.others.placed_bytes[i]; bytes > 0)
      bytes_of(name_of(static_cast<Medium>(i))) += bytes;
  return media;
}

// All nodes'; what is placed is told by medium.
NodeCounts all_nodes(const JobCounters& counters) {
  NodeCounts all = own_counts(counters);
  add(&all, counters.others);
  return all;
}

// What is to be said only if there is any of it.
std::string if_any(const char* name, uint64_t n) { return n == 0 ? "" : fmt::format(" {}={}", name, n); }

}  // namespace

Result<std::unique_ptr<Board>> read_board(const std::string& run_dir) {
  const std::string path = run_dir + "/board";
  auto board = std::make_unique<Board>();
  const Result<size_t> size = read_run_file(path, board.get(), offsetof(Board, parking));
  if (!size.ok()) return size.error();
  if (*size == 0 || (*size == sizeof(Board) && board->header.magic.load() == 0))
    return Error{ENOENT, path + ": its agent begins"};
  if (*size != sizeof(Board)) return Error{EINVAL, path + ": not a board"};
  if (!is_this_board(*board)) return Error{EPROTO, path + ": made by another version of Monarch"};
  return board;
}

JobCounters counters_of(const Board& board) {
  JobCounters c{};
  c.magic = kJobCountersMagic;
  for (uint32_t i = 0; i < kAgentCounters; ++i) c.agent[i] = value(board.agent[i]);
  for (uint32_t i = 0; i < kMaxTiers; ++i) c.placed_bytes[i] = value(board.placed_bytes[i]);
  c.nodes = value(board.nodes);
  const OthersTotals others = others_of(board);
  c.ended = others.ended;
  c.others = others.counts;
  c.open_times = open_times(board);
  for (const CounterShard& s : board.shards) {
    for (uint32_t i = 0; i < kTaskCounters; ++i) c.task[i] += value(s.task[i]);
    for (uint32_t i = 0; i < kMaxTiers; ++i) {
      c.opens_tier[i] += value(s.opens_tier[i]);
      c.read_calls_tier[i] += value(s.read_calls_tier[i]);
      c.read_bytes_tier[i] += value(s.read_bytes_tier[i]);
    }
  }
  return c;
}

NodeCounts own_counts(const JobCounters& counters) {
  NodeCounts own;
  std::copy(std::begin(counters.task), std::end(counters.task), own.task);
  std::copy(std::begin(counters.agent), std::end(counters.agent), own.agent);
  for (uint32_t i = 0; i < kMaxTiers; ++i) {
    own.opens_tier += counters.opens_tier[i];
    own.read_calls_tier += counters.read_calls_tier[i];
    own.read_bytes_tier += counters.read_bytes_tier[i];
  }
  own.open_times = counters.open_times;
  return own;
}

uint64_t staged_once(const NodeCounts& c) {
  const uint64_t staged = c[AgentCounter::staged_files];
  return staged - std::min(c[AgentCounter::staged_again], staged);
}

uint64_t settled_files(const NodeCounts& c) {
  return staged_once(c) + c[AgentCounter::no_fit_files] + c[AgentCounter::pass_files] +
         c[AgentCounter::source_errors] + c[AgentCounter::tier_errors] + c[AgentCounter::dropped_files];
}

Staged staged_of(const NodeCounts& c, uint64_t placed_bytes) {
  Staged s{placed_files(c), placed_bytes, {}, {}};
  const uint64_t all = std::max(c[AgentCounter::walk_files], s.files), known = c[AgentCounter::dataset_bytes],
                 sized = c[AgentCounter::sized_files];
  s.all_files = all;
  s.estimated = sized < all && settled_files(c) < all;
  if (!s.estimated || sized > 0)
    s.all_bytes = std::max(placed_bytes, s.estimated ? bytes_of_all(known, sized, all) : known);
  return s;
}

std::optional<double> staged_percent(const Staged& s) {
  if (!s.all_files || !s.all_bytes || *s.all_files == 0) return {};
  const double part = *s.all_bytes > 0 ? share(s.bytes, *s.all_bytes) : share(s.files, *s.all_files);
  return s.files < *s.all_files ? std::min(part, 99.0) : part;
}

std::string whole_percent(double percent) {
  return fmt::format("{:.0f}%", percent < 100 ? std::min(percent, 99.0) : 100);
}

bool plausible(const JobCounters& c) {
  static_assert(sizeof(JobCounters) % sizeof(uint64_t) == 0);
  if (c.magic != kJobCountersMagic) return false;
  uint64_t all[sizeof(JobCounters) / sizeof(uint64_t)];
  std::memcpy(all, &c, sizeof all);
  return std::all_of(std::begin(all) + 1, std::end(all), [](uint64_t n) { return n <= kMostCount; });
}

std::string comment_line(const JobRecord& record, const JobCounters* counters, AgentEnd agent) {
  const uint64_t reported = counters ? std::min<uint64_t>(1 + counters->ended, record.nodes) : 1;
  const std::string nodes = fmt::format("nodes={}/{}", reported, record.nodes);
  const char* died = has_died(agent) ? " agent=died" : "";
  if (!counters) return "monarch=1 counters=lost " + nodes + " err=1" + died + (record.late ? " late=1" : "");
  const NodeCounts c = all_nodes(*counters);
  const uint64_t opens = c.opens_tier + c[TaskCounter::opens_pfs];
  const uint64_t calls = c.read_calls_tier + c[TaskCounter::read_calls_pfs];
  const uint64_t bytes = c.read_bytes_tier + c[TaskCounter::read_bytes_pfs];
  const uint64_t pfs_bytes = c[AgentCounter::agent_bytes_pfs] + c[TaskCounter::read_bytes_pfs];
  const uint64_t pfs_calls = c[AgentCounter::agent_reads_pfs] + c[TaskCounter::read_calls_pfs];
  const uint64_t pfs_meta =
      c[AgentCounter::agent_opens_pfs] + c[AgentCounter::walk_dirs] + c[TaskCounter::opens_pfs];
  const uint64_t hits = c.opens_tier - std::min(c.opens_tier, c[TaskCounter::waited_hits]);
  const uint64_t errors = c[AgentCounter::source_errors] + c[AgentCounter::tier_errors] +
                          c[AgentCounter::dropped_files] + c[TaskCounter::fallback_tier_error] +
                          has_died(agent);
  std::string line = fmt::format("monarch=1 hit={:.1f}% pfs={}/{} ops={} meta={}", share(hits, opens),
                                 format_size(pfs_bytes), format_size(bytes), change(pfs_calls, calls),
                                 change(pfs_meta, opens));
  uint64_t bytes_placed = 0;
  for (const auto& [medium, placed] : placed_by_medium(record, *counters)) {
    line += " " + medium + "=" + format_size(placed);
    bytes_placed += placed;
  }
  const Staged staged = staged_of(c, bytes_placed);
  const double percent = staged_percent(staged).value_or(0);
  line += " staged=" + whole_percent(percent);
  if (percent < 100) line += fmt::format(" files={}/{}", staged.files, *staged.all_files);
  if (counters->nodes > 1) line += " peer=" + format_size(c[AgentCounter::peer_bytes]);
  line += fmt::format(" {} err={}{}", nodes, errors, died);
  line += if_any("late", c[AgentCounter::late_nodes]);
  line += if_any("evicted", c[AgentCounter::evicted_files]);
  line += if_any("dup", c[AgentCounter::dup_files]);
  const uint64_t failures =
      c[AgentCounter::peer_errors] + c[AgentCounter::peer_timeouts] + c[AgentCounter::peer_bad];
  line += if_any("peererr", failures);
  return line.substr(0, kLineMax);
}

}  // namespace monarch
