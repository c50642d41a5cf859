// SPDX-License-Identifier: Apache-2.0
// On a node, as root: slurmd's prolog notes what the job wants, and the first of the extern, batch and
// ordinary steps starts the agent. All of it may happen twice, or in part: monarchd --start is idempotent.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr int kStartPatienceMs = 7500;  // a lock, and an agent that is late
constexpr int kNotePatienceMs = 2000;
constexpr uint32_t kBatchStep = 0xfffffffb;  // SLURM_BATCH_SCRIPT

// What the agent's start told, for the tasks of this step.
char run_dir[4096], preload[4096], hints[4096], remark[4096], without[16384];
Wait wait_here;
bool required;
bool tried;

// "PERCENT SECONDS"; what else stands there is nothing to wait for.
Wait wait_in(const char* text) {
  constexpr int kMostSeconds = 604800;
  Wait wait = {0, 0};
  const bool whole = sscanf(text, "%d %d", &wait.percent, &wait.seconds) == 2;
  if (!whole || wait.percent < 1 || wait.percent > 100 || wait.seconds < 0 || wait.seconds > kMostSeconds)
    return {0, 0};
  return wait;
}

// The relative number of a node of the job; 0 for the first.
uint32_t node_id(spank_t sp) {
  uint32_t id = 0;
  return spank_get_item(sp, S_JOB_NODEID, &id) == ESPANK_SUCCESS ? id : 0;
}

// Slurm does not tell the batch step: what slurmctld told the job's environment is only for display here.
uint32_t node_count(spank_t sp) {
  uint32_t nodes = 0;
  spank_get_item(sp, S_JOB_NNODES, &nodes);
  char text[16];
  if (nodes == 0 && spank_getenv(sp, "SLURM_JOB_NUM_NODES", text, sizeof text) == ESPANK_SUCCESS)
    nodes = static_cast<uint32_t>(strtoul(text, nullptr, 10));
  return nodes > 0 && nodes < 1000000 ? nodes : 1;
}

// The supplementary groups by number, with commas.
void list_groups(spank_t sp, char* out, size_t room) {
  gid_t* groups = nullptr;
  int count = 0;
  size_t n = 0;
  out[0] = '\0';
  spank_get_item(sp, S_JOB_SUPPLEMENTARY_GIDS, &groups, &count);  // none, if it fails
  for (int i = 0; i < count && n + 12 < room; ++i)
    n += static_cast<size_t>(
        snprintf(out + n, room - n, "%s%u", i ? "," : "", static_cast<unsigned>(groups[i])));
}

// How many cores of this node the job has, by the list that slurmstepd made of the job's credential: "0-3,7".
uint32_t core_count(spank_t sp) {
  char* list = nullptr;
  if (spank_get_item(sp, S_JOB_ALLOC_CORES, &list) != ESPANK_SUCCESS || !list) return 0;
  unsigned long count = 0;
  for (char* at = list; *at >= '0' && *at <= '9';) {
    const unsigned long first = strtoul(at, &at, 10), last = *at == '-' ? strtoul(at + 1, &at, 10) : first;
    if (last < first || last > 1000000) return 0;
    count += last - first + 1;
    if (*at == ',') ++at;
  }
  return static_cast<uint32_t>(count);
}

uint64_t memory_mib(spank_t sp) {
  uint64_t mib = 0;
  return spank_get_item(sp, S_JOB_ALLOC_MEM, &mib) == ESPANK_SUCCESS ? mib : 0;
}

// `datasets` empty: what the prolog noted, or what is default, with the options `by_default`.
void start(spank_t sp, const char* datasets, const char* by_default = "") {
  uint32_t job = 0, restart = 0;
  uid_t uid = 0;
  gid_t gid = 0;
  if (spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
      spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS ||
      spank_get_item(sp, S_JOB_GID, &gid) != ESPANK_SUCCESS)
    return;
  if (uid == 0) {
    slurm_info("monarch: JobId=%u is root's: it runs without Monarch", job);
    if (is_jobs_first_step(sp) && node_id(sp) == 0) strcpy(without, "it is root's");
    return;
  }
  spank_get_item(sp, S_SLURM_RESTART_COUNT, &restart);
  static char groups[65536];
  list_groups(sp, groups, sizeof groups);
  char job_text[24], restart_text[24], uid_text[24], gid_text[24], nodes_text[24], id_text[24];
  Arguments arguments("--start", decimal(job, job_text));
  arguments.add("--restart", decimal(restart, restart_text));
  arguments.add("--uid", decimal(uid, uid_text));
  arguments.add("--gid", decimal(gid, gid_text));
  if (groups[0]) arguments.add("--groups", groups);
  arguments.add("--nodes", decimal(node_count(sp), nodes_text));
  arguments.add("--node-id", decimal(node_id(sp), id_text));
  char cores_text[24], memory_text[24];
  if (const uint32_t cores = core_count(sp)) arguments.add("--cores", decimal(cores, cores_text));
  if (const uint64_t mib = memory_mib(sp)) arguments.add("--memory", decimal(mib, memory_text));
  arguments.tell(datasets, datasets[0] ? job_options() : by_default);
  uint32_t step = kExternStep;
  spank_get_item(sp, S_JOB_STEPID, &step);
  if (step != kExternStep) arguments.add("--tasks");
  if (step != kExternStep && node_id(sp) == 0) arguments.add("--tell");
  const bool hands_on = jobs_have_own_mounts() && can_hand_on_mounts();
  if (jobs_have_own_mounts() && !hands_on) arguments.add("--own-mounts");
  arguments.tell(nodes_in_step(sp));
  arguments.add("--reply-fd");  // its number follows
  char answer[sizeof without] = "";
  run_monarchd(arguments, kStartPatienceMs, answer, sizeof answer);
  const bool once = strncmp(answer, "once ", 5) == 0;
  if (strncmp(answer, "ready ", 6) == 0) {
    if (char* tab = strchr(answer, '\t')) {
      *tab = '\0';
      if (char* second = strchr(tab + 1, '\t')) {
        *second = '\0';
        wait_here = wait_in(second + 1);
        const char* third = strchr(second + 1, '\t');
        if (third && strlen(third + 1) < sizeof hints) strcpy(hints, third + 1);
      }
      snprintf(remark, sizeof remark, "%s", tab + 1);
    }
    const char* second = strrchr(answer, ' ');
    const size_t first_len = static_cast<size_t>(second - answer) - 6;
    if (first_len < sizeof run_dir && strlen(second + 1) < sizeof preload) {
      memcpy(run_dir, answer + 6, first_len);
      run_dir[first_len] = '\0';
      strcpy(preload, second + 1);
      if (hands_on && step != kExternStep) clone_run_dir_mount(run_dir);
    }
  } else if (strncmp(answer, "tell ", 5) == 0 || strncmp(answer, "fail ", 5) == 0 ||
             (once && is_jobs_first_step(sp))) {
    strcpy(without, answer + 5);  // its room is that of the answer
    required = *answer == 'f';
  } else if (!answer[0] && is_jobs_first_step(sp)) {
    snprintf(without, sizeof without, "its helper did not answer");
  }
  const char* why = without[0]                        ? without
                    : once                            ? answer + 5
                    : strncmp(answer, "off ", 4) == 0 ? answer + 4
                                                      : "";
  if (datasets[0] && *why) slurm_info("monarch: JobId=%u runs without Monarch on this node: %s", job, why);
}

// Starts what the prolog noted. Without a note there is nothing to do: not even a process.
void start_if_noted(spank_t sp) {
  uint32_t job = 0;
  if (tried || spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS) return;
  char job_text[24];
  if (!is_noted(decimal(job, job_text), "wanted")) return;
  tried = true;
  start(sp, "");
}

// Of root's jobs nobody asked for anything; nobody is told why there is no agent.
void start_default(spank_t sp) {
  uint32_t job = 0;
  uid_t uid = 0;
  if (tried || !may_have_default() || spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
      spank_get_item(sp, S_JOB_UID, &uid) != ESPANK_SUCCESS || uid == 0)
    return;
  char job_text[24];
  if (is_noted(decimal(job, job_text), "no_default")) return;
  tried = true;
  start(sp, "", job_options());
  without[0] = '\0';
}

}  // namespace

const char* started_run_dir() { return run_dir; }
const char* preload_library() { return preload; }
const char* hints_directory() { return hints; }
const char* agents_remark() { return remark; }
Wait wait_of_step() { return wait_here; }
const char* why_without() { return without; }
bool is_required() { return required; }

bool is_jobs_first_step(spank_t sp) {
  uint32_t step = 0;
  char kind[16] = "";
  if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS) return false;
  spank_getenv(sp, "ENVIRONMENT", kind, sizeof kind);
  return step == kBatchStep || (step == 0 && strcmp(kind, "BATCH") != 0);
}

void note_in_prolog() {
  const char* job = trusted("SLURM_JOB_ID");
  if (!*job || !*trusted("SLURMD_NODENAME")) return;
  Arguments arguments("--prolog", job);
  arguments.tell(request().datasets, job_options());
  arguments.tell(nodes_in_prolog());
  run_monarchd(arguments, kNotePatienceMs, nullptr, 0);
}

void start_in_extern_step(spank_t sp) {
  uint32_t step = 0;
  if (spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS && step == kExternStep) start_if_noted(sp);
}

void start_without_option(spank_t sp) {
  uint32_t step = 0;
  if (spank_get_item(sp, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step == kExternStep) return;
  start_if_noted(sp);
  start_default(sp);
}

void start_in_step(spank_t sp) {
  if (tried) return;  // srun's options arrive twice
  tried = true;
  start(sp, request().datasets);
}

}  // namespace monarch::spank
