// SPDX-License-Identifier: Apache-2.0
// In sbatch, salloc and srun, as the user: can the dataset be read at all? A path on a file system that
// hangs must not hang the submission, so a child looks, and is waited for two seconds.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr int kPatienceMs = 2000;

// What the child found out of the first path that is not right.
struct Finding {
  int error;  // errno; 0: all can be read
  char path[4096];
};

int look_at(const char* path) {
  struct stat st;
  if (stat(path, &st) != 0) return errno;
  if (!S_ISDIR(st.st_mode)) return ENOTDIR;
  return access(path, R_OK | X_OK) == 0 ? 0 : errno;
}

[[noreturn]] void child(int fd) {
  // It may hang for as long as the file system does: nobody is to wait for the end of its output.
  const int null = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3; ++i) dup2(null, i);
  Finding finding = {};
  for (const char* at = request().datasets; *at && finding.error == 0;) {
    const char* end = strchr(at, ':');
    if (!end) end = at + strlen(at);
    const size_t n = static_cast<size_t>(end - at);
    if (n >= sizeof finding.path) {
      finding.error = ENAMETOOLONG;
      break;
    }
    memcpy(finding.path, at, n);
    finding.path[n] = '\0';
    finding.error = n == 0 ? 0 : look_at(finding.path);
    at = *end ? end + 1 : end;
  }
  const ssize_t written = write(fd, &finding, sizeof finding);
  _exit(written == sizeof finding ? 0 : 1);
}

const char* remedy(int error) {
  switch (error) {
    case ENOENT:
      return "is it spelled right? If an earlier job or another file system makes it later, add "
             "--monarch-check=off";
    case EACCES:
      return "you need permission to list it (chmod, or ask its owner)";
    case ENOTDIR:
      return "name the directory that the files are in";
    default:
      return "add --monarch-check=off to submit without this check";
  }
}

}  // namespace

void check_at_submit() {
  // Inside a job the option has come from the job, which was checked.
  if (request().check == Check::kOff || (spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID"))) return;
  int ends[2];
  if (pipe(ends) != 0) return;
  const pid_t pid = fork();
  if (pid == 0) child(ends[1]);
  close(ends[1]);
  if (pid < 0) {  // no process to be had: the check is left out, not the job
    close(ends[0]);
    return;
  }
  Finding finding = {};
  finding.error = ETIMEDOUT;
  struct pollfd p = {ends[0], POLLIN, 0};
  int ready;
  do {
    ready = poll(&p, 1, kPatienceMs);
  } while (ready < 0 && errno == EINTR);
  const bool answered = ready == 1 && read(ends[0], &finding, sizeof finding) == sizeof finding;
  close(ends[0]);
  if (!answered) kill(pid, SIGKILL);
  waitpid(pid, nullptr, answered ? 0 : WNOHANG);  // one that hangs in the kernel is left to init
  if (!answered) {
    slurm_info("--monarch-dataset=%s: its file system did not answer within 2 s; not checked",
               request().datasets);
    return;
  }
  if (finding.error == 0) return;
  if (request().check == Check::kWarn) {
    slurm_info("warning: --monarch-dataset: %s: %s; %s", finding.path, strerror(finding.error),
               remedy(finding.error));
    return;
  }
  slurm_error("--monarch-dataset: %s: %s; %s", finding.path, strerror(finding.error), remedy(finding.error));
  // Slurm ignores what an optional plugin's hook returns here, and a job that cannot read its dataset is not
  // to wait in the queue for it. This is the user's own command, before anything was submitted.
  exit(1);
}

}  // namespace monarch::spank
