// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/account_for.h"

#include <algorithm>
#include <memory>
#include <string>

#include "runtime/base/log.h"
#include "runtime/config/config.h"
#include "runtime/node/job_report.h"
#include "runtime/node/life.h"
#include "runtime/node/metrics.h"
#include "runtime/node/owners_files.h"
#include "runtime/node/owners_report.h"
#include "runtime/node/reports.h"
#include "runtime/node/spool.h"

namespace monarch {
namespace {

// For the log alone: sacct's line has no room for what is rare.
std::string rarities(const JobCounters& counters) {
  const uint64_t timeouts = counters[TaskCounter::fallback_timeout];
  return timeouts == 0 ? "" : fmt::format(" timeouts={}", timeouts);
}

Status keep_line(const StateDir& state, const JobRecord& record, const JobCounters* counters,
                 Accounting accounting, AgentEnd agent) {
  const std::string line = comment_line(record, counters, agent);
  if (has_died(agent))
    spdlog::error(
        "JobId={} node={} its agent had died: {}; "
        "the kernel's log says whether memory was short; a job that kills its user's processes ends "
        "it, too",
        record.job.job, record.job.node,
        agent == AgentEnd::kResumed ? "another one went on for it"
                                    : "files that were not placed by then came from the PFS");
  if (accounting != Accounting::kOff)
    spdlog::info("JobId={} node={} {}{}", record.job.job, record.job.node, line,
                 counters ? rarities(*counters) : "");
  const bool wanted = !record.of_cluster.account_program.empty() && record.first_node;
  return wanted ? spool(state, record, line, accounting) : Status();
}

Child start_report(const StateDir& state, JobRecord* of, const JobAccount& account,
                   const ReportsConfig& config, const AccountPatience& patience, AgentEnd agent) {
  const JobRecord& record = *of;
  const std::unique_ptr<NodesTold> nodes =
      is_first_of_several(record) ? read_nodes_told_as(&state, of, patience.read_ms) : nullptr;
  const std::string report = ended_report(record, account, nodes.get(), agent, record.serves);
  write_owners_report(state, record, report);
  // Users can read the directories of their reports, and so lock them for as long as they like.
  return Child([&](int) {
    if (const Status s = keep_report(state, record, report, config); !s.ok())
      spdlog::warn("JobId={} no report is kept: {}", record.job.job, s.error().text);
    return true;
  });
}

}  // namespace

Accounted account_for(const StateDir& state, JobRecord* of, const AccountPatience& patience, AgentEnd agent) {
  const JobRecord& record = *of;
  Accounted done;
  if (record.accounted) return done;
  const auto account = std::make_unique<JobAccount>();
  const bool counted = read_account_as(&state, of, patience.read_ms, account.get());
  const JobCounters* counters = counted ? &account->counters : nullptr;
  const Config config = load_config_or_defaults(record.of_cluster.config);
  // Before all that can wait: whatever happens to this process, the line is kept.
  done.line = keep_line(state, record, counters, config.accounting, agent);
  if (counted)
    done.report.emplace(start_report(state, of, *account, config.reports, patience, agent));
  else
    write_owners_report(state, record, {});
  done.report_until_ms = state.clock().now_ms() + patience.report_ms;
  if (const Status s = note_end(state, record, counters, agent); !s.ok())
    spdlog::warn("JobId={} its last counts are not in the metrics: {}", record.job.job, s.error().text);
  // Without it the run may be accounted for twice, which is less than not at all.
  of->accounted = done.line.ok();
  if (of->accounted) (void)state.write_record(record).ok();
  return done;
}

Status finish(const StateDir& state, const JobRecord& record, Accounted accounted) {
  if (!accounted.report) return accounted.line;
  const int64_t left_ms = accounted.report_until_ms - state.clock().now_ms();
  const Result<std::string> kept =
      said_by(state, &*accounted.report, static_cast<int>(std::max<int64_t>(left_ms, 0)));
  if (!kept.ok()) spdlog::warn("JobId={} no report is kept: {}", record.job.job, kept.error().text);
  return accounted.line;
}

}  // namespace monarch
