// SPDX-License-Identifier: Apache-2.0
// Where Slurm's releases, 20.11 to 26.05, differ in what the plugin and monarch_account use: both are built
// anew for each, and only here is there a difference. Header only, since the two are linked with different
// libraries.
#pragma once

#include <string.h>

#include <type_traits>

extern "C" {
#include <slurm/slurm.h>
}

namespace monarch::slurm_release {

// JobContainerType of slurm.conf, which later releases (25.11 at the latest) call NamespaceType; nullptr: not
// set.
template <class Conf>
const char* namespace_type(const Conf& conf) {
  if constexpr (requires { conf.namespace_plugin; })
    return conf.namespace_plugin;
  else
    return conf.job_container_plugin;
}

// Whether slurm.conf has PrologFlags=RunInJob, which 22.05 does not know, and 24.11 does.
inline bool has_run_in_job(const slurm_conf_t& conf) {
#ifdef PROLOG_FLAG_RUN_IN_JOB
  return conf.prolog_flags & PROLOG_FLAG_RUN_IN_JOB;
#else
  (void)conf;
  return false;
#endif
}

// slurm_load_job(), with its errors. `load` is that function, which takes a step's id from 26.05 on. The
// caller frees *jobs by slurm_free_job_info_msg().
template <typename Id>
int load_job(int (*load)(job_info_msg_t**, Id, uint16_t), uint32_t job, job_info_msg_t** jobs) {
  if constexpr (std::is_integral_v<Id>) {
    return load(jobs, job, SHOW_DETAIL | SHOW_ALL);
  } else {
    Id id;
    memset(&id, 0, sizeof id);
    id.job_id = job;
    id.step_id = id.step_het_comp = NO_VAL;
    return load(jobs, id, SHOW_DETAIL | SHOW_ALL);
  }
}

}  // namespace monarch::slurm_release
