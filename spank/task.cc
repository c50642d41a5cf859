// SPDX-License-Identifier: Apache-2.0
// The environment that makes a task use its job's agent, or not.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <initializer_list>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr size_t kListBytes = 65536;
char list[kListBytes], rest[kListBytes + 4096];  // of a task, which has one thread
const char* hidden = "";                         // what it does not see of its job's agent

// `from` (separated by colons or spaces) without our library, wherever it is installed.
void without_library(const char* from, char* out) {
  constexpr char kName[] = "/libmonarch_preload.so";
  constexpr size_t kNameLen = sizeof kName - 1;
  size_t n = 0;
  while (*from) {
    const size_t len = strcspn(from, ": ");
    const bool ours = len > kNameLen && strncmp(from + len - kNameLen, kName, kNameLen) == 0;
    if (len > 0 && !ours) {
      if (n > 0) out[n++] = ':';
      memcpy(out + n, from, len);
      n += len;
    }
    from += len + (from[len] != '\0');
  }
  out[n] = '\0';
}

// A step of a job with Monarch that is to go without.
void unset_environment(spank_t sp) {
  if (spank_getenv(sp, "LD_PRELOAD", list, sizeof list) == ESPANK_SUCCESS) {
    without_library(list, rest);
    if (rest[0])
      spank_setenv(sp, "LD_PRELOAD", rest, 1);
    else
      spank_unsetenv(sp, "LD_PRELOAD");
  }
  spank_unsetenv(sp, "MONARCH_IO_RUN_DIR");
  spank_unsetenv(sp, "MONARCH_IO_STATE");
}

}  // namespace

void tell_user(spank_t sp) {
  uint32_t task = 0;
  char value[16];
  const auto has = [&](const char* name) {
    return spank_getenv(sp, name, value, sizeof value) != ESPANK_ENV_NOEXIST;
  };
  if (spank_get_item(sp, S_TASK_ID, &task) != ESPANK_SUCCESS || task != 0 || has("MONARCH_IO_QUIET")) return;
  // Standard error is the task's own, by now.
  if (why_without()[0])
    dprintf(STDERR_FILENO, "monarch: the job %s on %s: %s\n",
            is_required() ? "fails, as --monarch-capacity has ,require," : "runs without Monarch",
            trusted("SLURMD_NODENAME"), why_without());
  if (hidden[0] && is_jobs_first_step())
    dprintf(STDERR_FILENO,
            "monarch: the job runs without Monarch on %s: its programs do not see %s (a private /tmp or a "
            "container?)\n",
            trusted("SLURMD_NODENAME"), hidden);
  // In a heterogeneous job each step has the first component's option from the environment: nobody asked for
  // it.
  if (agents_remark()[0] && !has("SLURM_HET_SIZE")) dprintf(STDERR_FILENO, "monarch: %s\n", agents_remark());
}

bool set_task_environment(spank_t sp) {
  hide_options(sp);
  hide_job_key(sp);
  const char* run_dir = started_run_dir();
  const char* library = preload_library();
  // A job's private /tmp, or a container, may hide either from its tasks.
  const bool sees_library = access(library, R_OK) == 0, sees_run_dir = access(run_dir, R_OK | X_OK) == 0;
  const bool started = sees_library && sees_run_dir;
  if (*run_dir && !request().refused) hidden = started ? "" : sees_run_dir ? library : run_dir;
  // srun hands on the environment of the batch script, which may have an agent where this task has none.
  if (request().refused || (wanted() && !started)) unset_environment(sp);
  if (request().refused || !started) return false;
  // After the user's own: a sanitizer's runtime must come first, and wrappers such as Darshan's see the
  // program's calls before they are redirected.
  rest[0] = '\0';
  if (spank_getenv(sp, "LD_PRELOAD", list, sizeof list) == ESPANK_SUCCESS) without_library(list, rest);
  const size_t n = strlen(rest);
  snprintf(rest + n, sizeof rest - n, "%s%s", n ? ":" : "", library);
  spank_setenv(sp, "LD_PRELOAD", rest, 1);
  spank_setenv(sp, "MONARCH_IO_RUN_DIR", run_dir, 1);
  static char state[kPathBytes + 8];
  snprintf(state, sizeof state, "%s/state", run_dir);
  spank_setenv(sp, "MONARCH_IO_STATE", state, 1);
  return true;
}

void drop_task_environment() {
  const char* now = getenv("LD_PRELOAD");
  char* own = now ? static_cast<char*>(malloc(strlen(now) + 1)) : nullptr;
  if (own) {
    without_library(now, own);
    if (own[0])
      setenv("LD_PRELOAD", own, 1);
    else
      unsetenv("LD_PRELOAD");
  }
  free(own);
  unsetenv("MONARCH_IO_RUN_DIR");
  unsetenv("MONARCH_IO_STATE");
}

}  // namespace monarch::spank
