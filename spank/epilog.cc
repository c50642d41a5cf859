// SPDX-License-Identifier: Apache-2.0
// As root, the job's end on this node: in slurmd's epilog, or in the extern step's slurmstepd.
#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr int kPatienceMs = 5000;  // the node is given to the next job only afterwards

// Without a word where nothing of Monarch's was in the job on this node.
void end_job(const char* job) {
  if (!*job || !*trusted("SLURMD_NODENAME") || !is_known(job)) return;
  run_monarchd(Arguments("--epilog", job), kPatienceMs, nullptr, 0);
}

}  // namespace

void end_in_epilog() { end_job(trusted("SLURM_JOB_ID")); }

void end_with_extern_step(spank_t sp) {
  uint32_t job = 0, step = 0;
  char job_text[24];
  if (runs_prolog_in_job() && spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
      step == kExternStep && spank_get_item(sp, S_JOB_ID, &job) == ESPANK_SUCCESS)
    end_job(decimal(job, job_text));
}

}  // namespace monarch::spank
