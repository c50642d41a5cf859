// SPDX-License-Identifier: Apache-2.0
// What jobs do on this node, for Prometheus (monarchctl metrics).
//
//   STATE/metrics   0600, root's, under the lock metrics.lock: sums over the jobs that have ended, and the
//                   counts of each other job that were believed last
//
// A counter must not go back, or Prometheus takes all that it has for new. So the counts of a job outlive the
// job, and where its owner lowers or spoils them, what was believed before stays. A job's counts are moved to
// the sums by whoever finds that its record is gone from jobs/: whether it was the epilog that ended it, one
// that was killed half way, or a sweep, each job counts once.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/result.h"
#include "runtime/node/accounting.h"
#include "runtime/node/state.h"

namespace monarch {

using MetricLabels = std::map<std::string, std::string>;
struct MetricSample {
  MetricLabels labels;
  uint64_t value = 0;
};
struct Metric {
  enum class Type { kCounter, kGauge };
  enum class Unit { kOne, kNanoseconds };  // the latter are to be told in seconds
  std::string name, help;
  Type type = Type::kGauge;
  Unit unit = Unit::kOne;
  std::vector<MetricSample> samples;
};

// All metrics, of the jobs that are here and of those that have ended. Every counter has a value from the
// beginning, also for each of `tiers`, by name: Prometheus sees no growth in a first value. Looks at the
// state directory and at the jobs' boards, as their owners, within about 3 s: of who keeps it waiting the
// last counts are told. `state` nullptr: there never was a job. ETIMEDOUT if the sums are locked for long.
Result<std::vector<Metric>> node_metrics(const StateDir* state, const std::vector<std::string>& tiers);

// Keeps what a job that ends has counted; again is as good as once. `counters` is nullptr if they are lost:
// of such a job counts what was believed last. Its record is in jobs/ still, and its lock is held. Waits at
// most 0.3 s.
Status note_end(const StateDir& state, const JobRecord& record, const JobCounters* counters,
                AgentEnd agent = AgentEnd::kWithJob);

}  // namespace monarch
