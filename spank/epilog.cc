// SPDX-License-Identifier: Apache-2.0
// In slurmd's epilog, as root: the job's end on this node.
#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr int kPatienceMs = 5000;  // slurmd waits for the epilog before it gives the node to the next job

}  // namespace

void end_in_epilog() {
  const char* job = trusted("SLURM_JOB_ID");
  const char* node = trusted("SLURMD_NODENAME");
  if (!*job || !*node) return;
  if (!is_known(job, "")) return;  // nothing of Monarch's was in this job on this node
  const char* arguments[] = {"--epilog",
                             "--config",
                             settings().config,
                             "--state-dir",
                             settings().state_dir,
                             "--log",
                             settings().log,
                             "--job",
                             job,
                             "--cluster",
                             cluster_name(),
                             "--node",
                             node,
                             nullptr};
  run_monarchd(arguments, kPatienceMs, nullptr, 0);
}

}  // namespace monarch::spank
