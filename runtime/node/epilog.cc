// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/epilog.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <memory>
#include <optional>

#include "runtime/config/config.h"
#include "runtime/node/accounting.h"
#include "runtime/node/identity.h"
#include "runtime/node/job_report.h"
#include "runtime/node/ledger.h"
#include "runtime/node/life.h"
#include "runtime/node/metrics.h"
#include "runtime/node/owners_files.h"
#include "runtime/node/removal.h"
#include "runtime/node/reports.h"
#include "runtime/node/slurmstepds.h"
#include "runtime/node/spool.h"
#include "runtime/node/sweep.h"

namespace monarch {
namespace {

constexpr int kLockPatienceMs = 1000;
constexpr int kKillPatienceMs = 1000;
// One that has peers tells them first what it has counted, or hears it of them. That it needs so long is rare
// enough: then it is not waited for as long once it is killed.
constexpr int kAskPatienceMs = 1300, kLeastKillPatienceMs = 200;
constexpr int kReadPatienceMs = 800;
constexpr int kReportPatienceMs = 600;
// What takes longer goes on in the background, while the node is free: the next job has what it frees later.
constexpr int kRemovePatienceMs = 100;

// False: it hangs. Its death goes on while the job's end does.
bool stop_agent_of(const StateDir& state, const JobRecord& record) {
  int patience_ms = kKillPatienceMs;
  if (record.peers && !ask_to_end(record.agent, kAskPatienceMs)) patience_ms = kLeastKillPatienceMs;
  return stop_agent(state, record, patience_ms);
}

// For the log alone: sacct's line has no room for what is rare.
std::string rarities(const JobCounters& counters) {
  const uint64_t timeouts = counters[TaskCounter::fallback_timeout];
  return timeouts == 0 ? "" : fmt::format(" timeouts={}", timeouts);
}

// The job's record cannot be read: its agent is the group's that no record names, and its directories have
// its name.
Status end_spoilt(const StateDir& state, const EpilogRequest& request, const Error& error) {
  spdlog::warn("JobId={} node={}: {}: what it had is removed by its name", request.job.job, request.job.node,
               error.text);
  Status removed = state.remove_job(request.job.key());
  sweep_cgroups(state);
  const Config config = load_config_or_defaults(request.config);
  find_and_remove(state, [&] {
    std::vector<std::string> tiers;
    for (const TierConfig& t : tiers_for(request.job, config)) tiers.push_back(t.path);
    return take_unrecorded(state, request.job, tiers);
  });
  return removed;
}

}  // namespace

Status end_job(const EpilogRequest& request) {
  Result<StateDir> state = StateDir::open(request.state_dir);
  if (!state.ok()) return state.error();
  Result<Fd> lock = state->lock_job(request.job, false, kLockPatienceMs);
  if (!lock.ok()) return lock.error().code == ENOENT ? Status() : Status(lock.error());
  Result<JobRecord> record = state->read_record(request.job.key());
  if (!record.ok() && record.error().code == EINVAL) return end_spoilt(*state, request, record.error());
  if (!record.ok() && record.error().code != ENOENT) return record.error();
  if (!record.ok()) return state->remove_job(request.job.key());  // wanted, but never started
  if (request.serial != 0 && (record->serial != request.serial || has_slurmstepd(request.job.job))) return {};

  const bool stopped = stop_agent_of(*state, *record);
  const auto account = std::make_unique<JobAccount>();
  const JobCounters& counters = account->counters;
  const bool counted = !hangs(*state, "jobs/" + request.job.key()) &&
                       read_account_as(record->user, kReadPatienceMs, record->run_dir, account.get());
  const std::string line = comment_line(*record, counted ? &counters : nullptr);
  const Config config = load_config_or_defaults(request.config);
  const Accounting accounting = config.accounting;
  if (accounting != Accounting::kOff)
    spdlog::info("JobId={} node={} {}{}", record->job.job, record->job.node, line,
                 counted ? rarities(counters) : "");
  // Before anything is removed: whatever happens to this process, the line is kept.
  record->of_cluster.account_program = request.account_program;
  Status kept = !request.account_program.empty() && record->first_node
                    ? spool(*state, *record, line, accounting)
                    : Status();
  std::optional<InTime> keeps;
  if (counted) {
    const std::unique_ptr<NodesTold> nodes =
        is_first_of_several(*record) ? read_nodes_told_as(record->user, kReadPatienceMs, record->run_dir)
                                     : nullptr;
    const std::string report = ended_report(*record, *account, nodes.get());
    const auto keep = [&] {
      if (const Status s = keep_report(*state, *record, report, config.reports); !s.ok())
        spdlog::warn("JobId={} no report is kept: {}", record->job.job, s.error().text);
      return true;
    };
    // Users can read the directories of their reports, and so lock them for as long as they like.
    keeps = start_in_time(kReportPatienceMs, {}, keep);
  }
  if (const Status s = note_end(*state, *record, counted ? &counters : nullptr); !s.ok())
    spdlog::warn("JobId={} its last counts are not in the metrics: {}", record->job.job, s.error().text);
  std::vector<Removal> removals;
  removals.push_back({*record, lock.take()});
  removals = set_aside(*state, std::move(removals));
  // Memory is given back once nobody has it open.
  if (!end_agent(*state, *record, stopped ? kKillPatienceMs : 0))
    spdlog::warn("JobId={} the agent (pid {}) does not end: it waits for the PFS", record->job.job,
                 record->agent.pid);
  if (!remove_in_background(*state, std::move(removals), kRemovePatienceMs))
    spdlog::info("JobId={} clean up goes on in the background", record->job.job);
  if (keeps && !ends_in_time(*state, *keeps))
    spdlog::warn("JobId={} no report is kept: it is not written within {} ms", record->job.job,
                 kReportPatienceMs);
  return kept;
}

}  // namespace monarch
