// SPDX-License-Identifier: Apache-2.0
// The environment that makes a task use its job's agent, or not.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <initializer_list>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr size_t kListBytes = 65536;
char list[kListBytes], rest[kListBytes + 4096];  // of a task, which has one thread
const char* hidden = "";                         // what it does not see of its job's agent
char unseen[kPathBytes];  // a directory of the dataset's or of copies that it does not see

// Whether so many bytes of LD_PRELOAD are the path of our library, wherever that is installed.
bool is_library(const char* path, size_t len) {
  constexpr char kName[] = "/libmonarch_preload.so";
  constexpr size_t kNameLen = sizeof kName - 1;
  return len > kNameLen && strncmp(path + len - kNameLen, kName, kNameLen) == 0;
}

// `from` (separated by colons or spaces) without our library.
void without_library(const char* from, char* out) {
  size_t n = 0;
  while (*from) {
    const size_t len = strcspn(from, ": ");
    if (len > 0 && !is_library(from, len)) {
      if (n > 0) out[n++] = ':';
      memcpy(out + n, from, len);
      n += len;
    }
    from += len + (from[len] != '\0');
  }
  out[n] = '\0';
}

// PYTHONPATH without our directory, which stands first.
const char* without_package(const char* path) {
  constexpr char kName[] = "/monarch/python";
  const size_t len = strcspn(path, ":"), name_len = sizeof kName - 1;
  if (len < name_len || strncmp(path + len - name_len, kName, name_len) != 0) return path;
  return path + len + (path[len] != '\0');
}

// As far as the task sees the package; in a container it may be elsewhere.
void set_hints(spank_t sp) {
  const char* directory = hints_directory();
  if (!*directory || access(directory, X_OK) != 0) return;
  list[0] = '\0';
  spank_getenv(sp, "PYTHONPATH", list, sizeof list);
  const char* own = without_package(list);
  snprintf(rest, sizeof rest, "%s%s%s", directory, *own ? ":" : "", own);
  spank_setenv(sp, "PYTHONPATH", rest, 1);
  spank_setenv(sp, "MONARCH_IO_HINTS", "torch", 1);
}

void unset_hints(spank_t sp) {
  spank_unsetenv(sp, "MONARCH_IO_HINTS");
  if (spank_getenv(sp, "PYTHONPATH", list, sizeof list) != ESPANK_SUCCESS || without_package(list) == list)
    return;
  if (const char* own = without_package(list); *own)
    spank_setenv(sp, "PYTHONPATH", own, 1);
  else
    spank_unsetenv(sp, "PYTHONPATH");
}

// What a task is to load, and the run directory, as it sees them.
struct Seen {
  const char *library, *run_dir;
  bool in_container;
};

// Where a plugin before us, such as pyxis, has entered a container, enroot's hook has shown both there
// elsewhere, and named them in the task's environment.
Seen seen_by_task(spank_t sp) {
  static char library[kPathBytes], run_dir[kPathBytes];
  const Seen on_node = {preload_library(), started_run_dir(), false};
  if (access(on_node.library, R_OK) == 0 ||
      spank_getenv(sp, "MONARCH_IO_RUN_DIR", run_dir, sizeof run_dir) != ESPANK_SUCCESS ||
      spank_getenv(sp, "LD_PRELOAD", list, sizeof list) != ESPANK_SUCCESS)
    return on_node;
  for (const char* at = list; *at; at += *at == ':' || *at == ' ') {
    const size_t len = strcspn(at, ": ");
    if (is_library(at, len) && len < sizeof library) {
      memcpy(library, at, len);
      library[len] = '\0';
      if (access(library, R_OK) == 0) return {library, run_dir, true};
    }
    at += len;
  }
  return on_node;
}

// The first of the directories that the agent has listed in its run directory which the task does not see, as
// in a job's own /tmp, in `unseen`. The list is the user's own file, and only the user is told.
void look_for_directories(const char* run_dir) {
  snprintf(rest, sizeof rest, "%s/directories", run_dir);
  const int fd = open(rest, O_RDONLY | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC);
  const ssize_t n = fd >= 0 ? read(fd, list, sizeof list - 1) : -1;
  if (fd >= 0) close(fd);
  if (n > 0) list[n] = '\0';
  char* line = list;
  for (char* end; n > 0 && !unseen[0] && (end = strchr(line, '\n')); line = end + 1) {
    *end = '\0';
    if (access(line, F_OK) != 0 && errno == ENOENT)
      snprintf(unseen, sizeof unseen, "%.*s", kPathBytes - 1, line);
  }
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
  spank_unsetenv(sp, "MONARCH_IO_PRELOAD");
  unset_hints(sp);
}

// The run directory, as the node has it; -1: not there.
int node_run_dir = -1;

// Whether nobody has told this job so on this node.
bool is_first_to_tell(spank_t sp) {
  if (node_run_dir < 0) return is_jobs_first_step(sp);
  const int fd = openat(node_run_dir, "told", O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  struct stat st;
  const bool first = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &st) == 0 && st.st_size == 0 &&
                     write(fd, "1", 1) == 1;
  if (fd >= 0) close(fd);
  return first;
}

}  // namespace

void keep_run_dir() {
  if (!*started_run_dir()) return;
  attach_run_dir_mount(started_run_dir());
  node_run_dir = open(started_run_dir(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

void tell_containers(spank_t sp) {
  if (request().refused || (wanted() && !started_run_dir()[0])) return unset_environment(sp);
  if (!started_run_dir()[0]) return;
  spank_setenv(sp, "MONARCH_IO_RUN_DIR", started_run_dir(), 1);
  rest[0] = '\0';
  if (spank_getenv(sp, "LD_PRELOAD", list, sizeof list) == ESPANK_SUCCESS) without_library(list, rest);
  if (rest[0])
    spank_setenv(sp, "MONARCH_IO_PRELOAD", rest, 1);
  else
    spank_unsetenv(sp, "MONARCH_IO_PRELOAD");
}

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
  if (hidden[0] && is_first_to_tell(sp))
    dprintf(STDERR_FILENO,
            "monarch: the job runs without Monarch on %s: its programs do not see %s (a private /tmp or a "
            "container?)\n",
            trusted("SLURMD_NODENAME"), hidden);
  if (unseen[0] && is_jobs_first_step(sp))
    dprintf(STDERR_FILENO,
            "monarch: the job's programs on %s do not see %s (a private /tmp or /dev/shm?): files there "
            "are not served; the administrator can choose a tier, or you a dataset, elsewhere\n",
            trusted("SLURMD_NODENAME"), unseen);
  // In a heterogeneous job each step has the first component's option from the environment: nobody asked for
  // it.
  if (agents_remark()[0] && !has("SLURM_HET_SIZE")) dprintf(STDERR_FILENO, "monarch: %s\n", agents_remark());
}

const char* set_task_environment(spank_t sp) {
  hide_options(sp);
  hide_job_key(sp);
  const Seen seen = seen_by_task(sp);
  const char *library = seen.library, *run_dir = seen.run_dir;
  // A job's private /tmp, or a container, may hide either from its tasks.
  const bool sees_library = access(library, R_OK) == 0, sees_run_dir = access(run_dir, X_OK) == 0;
  const bool started = *started_run_dir() && sees_library && sees_run_dir;
  if (*started_run_dir() && !request().refused) hidden = started ? "" : sees_run_dir ? library : run_dir;
  // srun hands on the environment of the batch script, which may have an agent where this task has none.
  if (request().refused || (wanted() && !started)) unset_environment(sp);
  if (request().refused || !started) return nullptr;
  // In a container they may be elsewhere.
  if (jobs_have_own_mounts() && !seen.in_container) look_for_directories(run_dir);
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
  set_hints(sp);
  return run_dir;
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
  unsetenv("MONARCH_IO_HINTS");
  const char* path = getenv("PYTHONPATH");
  const char* without = path ? without_package(path) : path;
  if (without != path && *without)
    setenv("PYTHONPATH", without, 1);
  else if (without != path)
    unsetenv("PYTHONPATH");
}

}  // namespace monarch::spank
