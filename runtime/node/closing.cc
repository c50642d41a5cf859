// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/closing.h"

#include <memory>

#include "runtime/base/log.h"
#include "runtime/base/patience.h"
#include "runtime/base/size.h"
#include "runtime/config/config.h"
#include "runtime/metadata/board.h"
#include "runtime/node/identity.h"
#include "runtime/node/owners_files.h"

namespace monarch {
namespace {

// Of all tasks together.
std::string waited_text(uint64_t ns) {
  constexpr uint64_t kMinute = 60, kHour = 60 * kMinute;
  const uint64_t seconds = ns / 1'000'000'000;
  if (seconds < 2 * kMinute) return fmt::format("{} s", seconds);
  return seconds < 2 * kHour ? fmt::format("{} min", seconds / kMinute)
                             : fmt::format("{} h", seconds / kHour);
}

std::string files_text(uint64_t n) { return fmt::format("{} file{}", n, n == 1 ? "" : "s"); }

std::string read_text(const NodeCounts& c) {
  const uint64_t read = c.read_bytes_tier + c[TaskCounter::read_bytes_pfs], pfs = bytes_from_pfs(c),
                 mapped = c[TaskCounter::mmap_bytes];
  // What no call showed was read by programs of which only the opens are seen.
  std::string text = read + mapped > 0 ? "read " + format_size(read)
                                       : "opened " + files_text(c.opens_tier + c[TaskCounter::opens_pfs]);
  if (mapped > 0) text += " and mapped " + format_size(mapped);
  return text + (pfs <= read && mapped == 0 && read > 0
                     ? fmt::format(", {} of it from the PFS", format_size(pfs))
                     : fmt::format("; {} came from the PFS", format_size(pfs)));
}

// Why the PFS was spared less than it could be; "": it was not.
std::string why_not(const NodeCounts& c, AgentEnd agent) {
  if (agent == AgentEnd::kBefore) return "the agent ended early, and the rest came from the PFS";
  if (agent == AgentEnd::kResumed) return "the agent ended early, and another one went on";
  if (c[AgentCounter::tier_errors] + c[TaskCounter::fallback_tier_error] > 0)
    return "a tier failed, tell the administrator";
  if (const uint64_t files = c[AgentCounter::no_fit_files]; files > 0)
    return "the tiers had no room for " + files_text(files);
  const uint64_t read = c.read_bytes_tier + c[TaskCounter::read_bytes_pfs];
  return read > 0 && bytes_from_pfs(c) >= read && c[TaskCounter::mmap_bytes] == 0
             ? "each file was read about once"
             : "";
}

}  // namespace

std::string closing_text(const JobCounters& counters, const Closing& of) {
  const NodeCounts c = own_counts(counters);
  const bool is_late = c[AgentCounter::late_nodes] > 0;
  std::string text = of.nodes > 1 ? fmt::format("on {}, one of {} nodes: ", of.node, of.nodes) : "";
  if (!has_used(c) && is_late)
    return text + "the agent was not ready in time, and what the job read is not counted";
  if (!has_used(c))
    return text +
           "no program has used the dataset through Monarch: programs that are statically linked, and "
           "containers without what monarchctl container-args prints, read the file system itself" +
           (has_died(of.agent) ? "; the agent ended early" : "");
  text += read_text(c);
  const std::string late = is_late ? "more is not counted, as the agent was not ready in time" : "";
  if (is_late) text += "; " + late;
  if (const std::string why = why_not(c, of.agent); !why.empty()) text += "; " + why;
  if (const uint64_t ns = c[TaskCounter::wait_ns]; ns >= 1'000'000'000)
    text += "; " + waited_text(ns) + " of waiting for files";
  return of.report.empty() ? text : text + "; " + of.report;
}

std::string closing_of_job(const StateDir& state, const JobOnNode& job, const std::string& config) {
  Result<JobRecord> record = state.read_record(job.key());
  if (!record.ok() || record->agent.pid == 0) return "";
  const auto account = std::make_unique<JobAccount>();
  const bool known = read_account_as(&state, &*record, patience::kHookStepMs, account.get());
  // A job that has not asked for Monarch hears of it only if it has used it.
  if (record->notes.by_default && !(known && has_used(own_counts(account->counters)))) return "";
  if (!known)
    return "what the job read is not known: the counters of its agent on " + job.node +
           " cannot be read; the log of root's helpers there has more";
  Closing of = {job.node, record->nodes};
  if (record->resumed) of.agent = AgentEnd::kResumed;
  if (!is_running(record->agent) || is_ending(record->agent)) of.agent = AgentEnd::kBefore;
  if (load_config_or_defaults(config).reports.report_size > 0)
    of.report = fmt::format("report on {}: monarchctl report {}", job.node, job.job);
  return closing_text(account->counters, of);
}

}  // namespace monarch
