// SPDX-License-Identifier: Apache-2.0
// In sbatch, salloc and srun, as the user: can the dataset be read at all? A path on a file system that
// hangs must not hang the submission, so a child looks, and is waited for two seconds.
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
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
  enum What { kError, kRoot, kHoldsTier, kInTier } what;
  int error;  // of kError: errno; 0: all is right
  char path[kPathBytes];
  char tier[kPathBytes];  // its directory
};

// Whether `path` is `dir` or below it, as text.
bool is_below(const char* path, const char* dir) {
  const size_t n = strlen(dir);
  return strncmp(path, dir, n) == 0 && (path[n] == '\0' || path[n] == '/');
}

// The value of a line "path = VALUE"; false if it is another.
bool path_in(const char* line, char* out) {
  line = value_in(line, "path");
  if (!line) return false;
  const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
  size_t n = 0;
  while (!strchr("\r\n", line[n]) && !(is_blank(line[n]) && strchr("#;", line[n + 1]))) ++n;
  while (n > 0 && is_blank(line[n - 1])) --n;
  while (n > 1 && line[n - 1] == '/') --n;
  if (*line != '/') return false;
  memcpy(out, line, n);
  out[n] = '\0';
  return true;
}

// Compares with the tiers of the configuration, where this host has it. Nodes compare again, with theirs.
void look_at_tiers(const char* path, Finding* finding) {
  static char real[kPathBytes], tier[kPathBytes], real_tier[kPathBytes], line[512];
  FILE* config = realpath(path, real) ? fopen(settings().config, "re") : nullptr;
  while (config && fgets(line, sizeof line, config)) {
    if (!path_in(line, tier)) continue;
    if (!realpath(tier, real_tier))
      memcpy(real_tier, tier, sizeof real_tier);  // nodes may have it, this host not
    const bool holds = is_below(real_tier, real);
    if (!holds && !is_below(real, real_tier)) continue;
    finding->what = holds ? Finding::kHoldsTier : Finding::kInTier;
    memcpy(finding->tier, tier, sizeof tier);
    break;
  }
  if (config) fclose(config);
}

// Why the user cannot read the directory; 0: nothing keeps the user from it.
int error_of(const char* path, struct stat* st) {
  if (stat(path, st) != 0) return errno;
  if (!S_ISDIR(st->st_mode)) return ENOTDIR;
  return access(path, R_OK | X_OK) == 0 ? 0 : errno;
}

void look_at(const char* path, Finding* finding) {
  struct stat st, root = {};
  finding->error = error_of(path, &st);
  if (finding->error != 0) return;
  stat("/", &root);
  if (st.st_dev == root.st_dev && st.st_ino == root.st_ino)
    finding->what = Finding::kRoot;
  else
    look_at_tiers(path, finding);
}

bool is_right(const Finding& finding) { return finding.what == Finding::kError && finding.error == 0; }

[[noreturn]] void child(int fd) {
  // It may hang for as long as the file system does: nobody is to wait for the end of its output.
  const int null = open("/dev/null", O_RDWR);
  for (int i = 0; i < 3; ++i) dup2(null, i);
  static Finding finding = {};
  for (const char* at = request().datasets; *at && is_right(finding);) {
    const char* end = strchr(at, ':');
    if (!end) end = at + strlen(at);
    const size_t n = static_cast<size_t>(end - at);
    memcpy(finding.path, at, n);
    finding.path[n] = '\0';
    look_at(finding.path, &finding);
    at = *end ? end + 1 : end;
  }
  const ssize_t written = write(fd, &finding, sizeof finding);
  _exit(written == sizeof finding ? 0 : 1);
}

const char* remedy(int error, const char* path) {
  switch (error) {
    case ENOENT:
      if (strstr(path, ",/") || strstr(path, " /")) return "separate several directories by ':'";
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

// What is wrong, and what to do.
void explain(const Finding& finding, char* out, size_t room) {
  switch (finding.what) {
    case Finding::kRoot:
      snprintf(out, room, "it is the root directory, which cannot be a dataset; name a directory below it");
      return;
    case Finding::kHoldsTier:
      snprintf(out, room, "it holds %s, where the nodes keep copies; name a directory that does not",
               finding.tier);
      return;
    case Finding::kInTier:
      snprintf(out, room,
               "it lies in %s, where the nodes keep copies: there is nothing to gain; leave it out",
               finding.tier);
      return;
    case Finding::kError:
      snprintf(out, room, "%s; %s", strerror(finding.error), remedy(finding.error, finding.path));
      return;
  }
}

// All of it: a pipe hands over more than a page in pieces.
bool read_finding(int fd, Finding* finding) {
  char* to = reinterpret_cast<char*>(finding);
  size_t got = 0;
  for (ssize_t n; got < sizeof *finding; got += static_cast<size_t>(n)) {
    n = read(fd, to + got, sizeof *finding - got);
    if (n < 0 && errno == EINTR)
      n = 0;
    else if (n <= 0)
      return false;
  }
  return true;
}

// What each option alone cannot tell.
bool check_together() {
  const bool waits = request().wait[0] && strcmp(request().wait, "none") != 0;
  if (!waits || strcmp(request().prefetch, "off") != 0) return true;
  slurm_error("--monarch-wait=%s waits for what --monarch-prefetch=off does not stage; leave out one of them",
              request().wait);
  return false;
}

}  // namespace

void check_at_submit() {
  const bool in_job = spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");
  if (!in_job && !check_together()) exit(1);  // as below
  // Inside a job the option has come from the job, which was checked.
  if (request().check == Check::kOff || in_job) return;
  int ends[2];
  if (pipe(ends) != 0) return;
  const pid_t pid = fork();
  if (pid == 0) child(ends[1]);
  close(ends[1]);
  if (pid < 0) {  // no process to be had: the check is left out, not the job
    close(ends[0]);
    return;
  }
  static Finding finding = {};
  struct pollfd p = {ends[0], POLLIN, 0};
  int ready;
  do {
    ready = poll(&p, 1, kPatienceMs);
  } while (ready < 0 && errno == EINTR);
  const bool answered = ready == 1 && read_finding(ends[0], &finding);
  close(ends[0]);
  if (!answered) kill(pid, SIGKILL);
  waitpid(pid, nullptr, answered ? 0 : WNOHANG);  // one that hangs in the kernel is left to init
  if (!answered) {
    slurm_info("--monarch-dataset=%s: its file system did not answer within 2 s; not checked",
               request().datasets);
    return;
  }
  if (is_right(finding)) return;
  static char why[kPathBytes + 256];
  explain(finding, why, sizeof why);
  if (request().check == Check::kWarn) {
    slurm_info("warning: --monarch-dataset: %s: %s", finding.path, why);
    return;
  }
  slurm_error("--monarch-dataset: %s: %s", finding.path, why);
  // Slurm ignores what an optional plugin's hook returns here, and a job that cannot read its dataset is not
  // to wait in the queue for it. This is the user's own command, before anything was submitted.
  exit(1);
}

// An environment that sets options for all jobs of a user is right, and steps have the options of their jobs.
void warn_of_no_dataset() {
  const bool in_job = spank_context() == S_CTX_LOCAL && getenv("SLURM_JOB_ID");
  if (request().refused || in_job || has_options_from_environment() || !job_options()[0]) return;
  slurm_info(
      "warning: monarch: options without --monarch-dataset=PATH have an effect only where the administrator "
      "has set a dataset for this job; name one");
}

}  // namespace monarch::spank
