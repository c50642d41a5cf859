// SPDX-License-Identifier: Apache-2.0
// The SPANK plugin's entry points: this file only dispatches, by hook and context. What each hook may do,
// and what its failure costs, is in doc/slurm.md. Every hook returns ESPANK_SUCCESS: a job never fails and
// a node never drains because of Monarch.
#include <stdlib.h>
#include <unistd.h>

#include "spank/plugin.h"

extern "C" {
#define MONARCH_PUBLIC __attribute__((visibility("default")))
// const at namespace scope is internal in C++: declared first, or SPANK_PLUGIN would export nothing.
extern MONARCH_PUBLIC const char plugin_name[];
extern MONARCH_PUBLIC const char plugin_type[];
extern MONARCH_PUBLIC const unsigned int plugin_version;
extern MONARCH_PUBLIC const unsigned int spank_plugin_version;
SPANK_PLUGIN(monarch, 1)

using namespace monarch::spank;

// sbatch, salloc, srun; slurmstepd for each step; slurmd. Not before prolog and epilog.
MONARCH_PUBLIC int slurm_spank_init(spank_t sp, int argc, char** argv) {
  const spank_context_t context = spank_context();
  if (context == S_CTX_SLURMD) note_namespace();
  if (context != S_CTX_ALLOCATOR && context != S_CTX_LOCAL && context != S_CTX_REMOTE) return ESPANK_SUCCESS;
  read_settings(argc, argv);
  register_options(sp);
  if (context != S_CTX_REMOTE) take_options_from_environment();
  if (context == S_CTX_ALLOCATOR && getenv("SLURM_JOB_ID")) drop_task_environment();
  return ESPANK_SUCCESS;
}

MONARCH_PUBLIC int slurm_spank_init_post_opt(spank_t sp, int, char**) {
  const spank_context_t context = spank_context();
  if (context == S_CTX_ALLOCATOR || context == S_CTX_LOCAL) {
    drop_options_from_environment();
    if (wanted()) {
      check_at_submit();
      make_job_key(sp);
    } else {
      warn_of_no_dataset();
    }
  } else if (context == S_CTX_REMOTE) {
    if (wanted())
      start_in_step(sp);
    else if (!request().refused)
      start_without_option(sp);
    tell_containers(sp);
  }
  return ESPANK_SUCCESS;
}

// slurmd, as root, before anything of the job runs on the node.
MONARCH_PUBLIC int slurm_spank_job_prolog(spank_t sp, int argc, char** argv) {
  read_settings(argc, argv);
  ask_options(sp);
  if (wanted()) note_in_prolog();
  return ESPANK_SUCCESS;
}

// slurmstepd, as root; in the extern step too, which is there before all others.
MONARCH_PUBLIC int slurm_spank_task_post_fork(spank_t sp, int, char**) {
  if (spank_context() != S_CTX_REMOTE) return ESPANK_SUCCESS;
  leave_hanging_behind();
  start_in_extern_step(sp);
  return ESPANK_SUCCESS;
}

// The task itself, as root; before other plugins' task_init.
MONARCH_PUBLIC int slurm_spank_task_init_privileged(spank_t, int, char**) {
  if (spank_context() == S_CTX_REMOTE) keep_run_dir();
  return ESPANK_SUCCESS;
}

// slurmstepd, as the user, once for each step but the extern one, before its tasks.
MONARCH_PUBLIC int slurm_spank_user_init(spank_t, int, char**) {
  if (spank_context() == S_CTX_REMOTE && started_run_dir()[0] && !request().refused)
    note_begin(started_run_dir(), wait_of_step().percent > 0 ? wait_of_step().seconds : 0);
  return ESPANK_SUCCESS;
}

// The task itself, as the user, before it executes.
MONARCH_PUBLIC int slurm_spank_task_init(spank_t sp, int, char**) {
  if (spank_context() == S_CTX_REMOTE) {
    const char* run_dir = set_task_environment(sp);
    tell_user(sp);
    if (is_required()) _exit(1);  // the task's own process: the user has asked for that
    if (run_dir && wait_of_step().percent > 0) wait_until_staged(sp, run_dir, wait_of_step());
  }
  return ESPANK_SUCCESS;
}

// slurmstepd, as root, when a task has ended.
MONARCH_PUBLIC int slurm_spank_task_exit(spank_t sp, int, char**) {
  if (spank_context() == S_CTX_REMOTE && !request().refused) tell_at_end(sp);
  return ESPANK_SUCCESS;
}

// slurmstepd, as root, after all tasks of its step; where it runs the epilog, after all other steps.
MONARCH_PUBLIC int slurm_spank_exit(spank_t sp, int, char**) {
  if (spank_context() == S_CTX_REMOTE) end_with_extern_step(sp);
  return ESPANK_SUCCESS;
}

// slurmd, as root, after all that the job ran on the node. Acts on what it finds, not on the options.
MONARCH_PUBLIC int slurm_spank_job_epilog(spank_t, int argc, char** argv) {
  read_settings(argc, argv);
  end_in_epilog();
  return ESPANK_SUCCESS;
}
}
