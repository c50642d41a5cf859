// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/epilog.h"

#include <signal.h>

#include "runtime/base/log.h"
#include "runtime/base/patience.h"
#include "runtime/config/config.h"
#include "runtime/node/account_for.h"
#include "runtime/node/identity.h"
#include "runtime/node/ledger.h"
#include "runtime/node/life.h"
#include "runtime/node/removal.h"
#include "runtime/node/slurmstepds.h"
#include "runtime/node/sweep.h"

namespace monarch {
namespace {

// False: it hangs. Its death goes on while the job's end does.
bool stop_agent_of(const StateDir& state, const JobRecord& record) {
  int patience_ms = patience::kHookWaitMs;
  // One that has peers tells them first what it has counted, or hears it of them. That it needs so long is
  // rare enough: then it is not waited for as long once it is killed.
  if (record.peers && !signal_and_wait(record.agent, SIGTERM, patience::kAskMs, state.clock()))
    patience_ms = patience::kLeastMs;
  return stop_agent(state, record, patience_ms);
}

// The job's record cannot be read: its agent is the group's that no record names, and its directories have
// its name.
Status end_spoilt(const StateDir& state, const EpilogRequest& request, const Error& error) {
  spdlog::warn("JobId={} node={}: {}: its files are removed by its name", request.job.job, request.job.node,
               error.text);
  Status removed = state.remove_job(request.job.key());
  sweep_cgroups(state);
  const Config config = load_config_or_defaults(request.config);
  find_and_remove(state, [&] {
    std::vector<std::string> tiers;
    for (const TierConfig& t : tiers_for(request.job, config)) tiers.push_back(t.path);
    return take_unrecorded(state, request.job, tiers, request.job.job);
  });
  return removed;
}

}  // namespace

Status end_job(const EpilogRequest& request) {
  Result<StateDir> state = StateDir::open(request.state_dir, *request.clock);
  if (!state.ok()) return state.error();
  Result<Fd> lock = state->lock_job(request.job, false, patience::kHookWaitMs);
  if (!lock.ok()) return lock.error().code == ENOENT ? Status() : Status(lock.error());
  Result<JobRecord> record = state->read_record(request.job.key());
  if (!record.ok() && record.error().code == EINVAL) return end_spoilt(*state, request, record.error());
  if (!record.ok() && record.error().code != ENOENT) return record.error();
  if (!record.ok()) return state->remove_job(request.job.key());  // wanted, but never started
  if (request.serial != 0 && (record->serial != request.serial || has_slurmstepd(request.job.job))) return {};

  const AgentEnd agent = look_at_agent(*state, &*record);
  const bool stopped = stop_agent_of(*state, *record);
  record->of_cluster.account_program = request.account_program;
  record->of_cluster.config = request.config;
  Accounted accounted = account_for(*state, &*record, {patience::kAnswersMs, patience::kHookStepMs}, agent);
  std::vector<Removal> removals;
  removals.push_back({*record, lock.take()});
  removals = set_aside(*state, std::move(removals));
  // Memory is given back once nobody has it open.
  if (!end_agent(*state, *record, stopped ? patience::kHookWaitMs : 0))
    spdlog::warn("JobId={} the agent (pid {}) does not end: it waits for the PFS", record->job.job,
                 record->agent.pid);
  if (!remove_in_background(*state, std::move(removals), patience::kMomentMs))
    spdlog::info("JobId={} clean up goes on in the background", record->job.job);
  return finish(*state, *record, std::move(accounted));
}

}  // namespace monarch
