// SPDX-License-Identifier: Apache-2.0
// The key by which the agents of a job's nodes know each other. Slurm carries it from the submission to the
// nodes as it does a job's other data: to prologs as SPANK_MONARCH_KEY, and to the batch script's slurmstepd
// as SLURM_SPANK_MONARCH_KEY of the script's environment, out of which it is taken before the script runs.
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

#include <initializer_list>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr char kName[] = "MONARCH_KEY", kInProlog[] = "SPANK_MONARCH_KEY",
               kInStep[] = "SLURM_SPANK_MONARCH_KEY";
constexpr size_t kBytes = 32;

// Slurm's names of the job's node list, older ones last.
constexpr const char* kLists[] = {"SLURM_JOB_NODELIST", "SLURM_NODELIST"};

}  // namespace

void make_job_key(spank_t sp) {
  // Inside a job the key is the job's; an srun there has no prolog to take one to.
  if (spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID")) return;
  unsigned char key[kBytes];
  char text[2 * kBytes + 1];
  if (getrandom(key, sizeof key, 0) != sizeof key) return;  // the job's agents do without each other
  for (size_t i = 0; i < kBytes; ++i) snprintf(text + 2 * i, 3, "%02x", key[i]);
  spank_job_control_setenv(sp, kName, text, 1);
}

JobNodes nodes_in_prolog() {
  const char* list = "";
  for (const char* name : kLists)
    if (!*list) list = trusted(name);
  return {trusted(kInProlog), list};
}

JobNodes nodes_in_step(spank_t sp) {
  static char key[2 * kBytes + 1], list[65536];
  if (spank_getenv(sp, kInStep, key, sizeof key) != ESPANK_SUCCESS) key[0] = '\0';
  list[0] = '\0';
  for (const char* name : kLists)
    if (!list[0] && spank_getenv(sp, name, list, sizeof list) != ESPANK_SUCCESS) list[0] = '\0';
  return {key, list};
}

void hide_job_key(spank_t sp) {
  for (const char* name : {kInStep, kInProlog}) spank_unsetenv(sp, name);
}

}  // namespace monarch::spank
