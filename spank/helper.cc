// SPDX-License-Identifier: Apache-2.0
// Starting monarchd from inside Slurm's daemons.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spank/plugin.h"
#include "spank/slurm_release.h"

// What slurmstepd itself reads. Slurm loads a plugin only into the release that it was built for, so the type
// is right; weak, so that a program without it loads the plugin, too.
extern "C" {
extern slurm_conf_t slurm_conf __attribute__((weak));
}

namespace monarch::spank {
namespace {

constexpr int kAnswerFd = 3;

// In the child of a program with threads: async-signal-safe calls only.
[[noreturn]] void child(char** argv, char** environment, int answer) {
  setsid();
  const int null = open("/dev/null", O_RDWR);
  if (answer >= 0) answer = fcntl(answer, F_DUPFD, kAnswerFd + 1);  // out of the way of what follows
  for (int fd = 0; fd < 3; ++fd) dup2(null, fd);
  int first = kAnswerFd;
  if (answer >= 0) {
    dup2(answer, kAnswerFd);
    ++first;
  }
  close_from(first);
  for (int s = 1; s < NSIG; ++s) signal(s, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  if (chdir("/") == 0) execve(argv[0], argv, environment);
  _exit(127);
}

// One line from `fd`; empty if it did not come until `end`.
void read_line(int fd, int64_t end, char* line, size_t room) {
  size_t n = 0;
  while (n + 1 < room) {
    struct pollfd p = {fd, POLLIN, 0};
    const int64_t left = end - now_ms();
    const int ready = left > 0 ? poll(&p, 1, static_cast<int>(left)) : 0;
    if (ready < 0) continue;  // by a signal: a read would wait without an end
    if (ready == 0) {
      n = 0;
      break;
    }
    if (read(fd, line + n, 1) <= 0 || line[n] == '\n') break;
    ++n;
  }
  line[n] = '\0';
}

// One write(2): the kernel takes the text as a whole.
void put(const char* path, const char* text, size_t bytes) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC);
  if (fd < 0) return;
  (void)!write(fd, text, bytes);
  close(fd);
}

constexpr size_t kPathRoom = 8192;
constexpr int kMostLeft = 32;

// The process and its children, as far as the kernel lists them.
int with_children(pid_t process, pid_t* all) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/task/%d/children", process, process);
  int n = 0;
  all[n++] = process;
  FILE* in = fopen(path, "re");
  while (in && n < kMostLeft && fscanf(in, "%d", &all[n]) == 1) ++n;
  if (in) fclose(in);
  return n;
}

const char* path_of(char (&out)[kPathRoom], const char* job, const char* below) {
  snprintf(out, sizeof out, "%s/jobs/%s.%s.%s%s", settings().state_dir, cluster_name(), job,
           trusted("SLURMD_NODENAME"), below);
  return out;
}

bool join(char (&out)[kPathRoom], const char* directory, const char* name) {
  return static_cast<size_t>(snprintf(out, sizeof out, "%s/%s", directory, name)) < sizeof out;
}

// A process in a cpuset of version 1 needs both, and a new one has neither.
void share_cpuset(const char* parent, const char* group) {
  static constexpr const char* kFiles[] = {"cpuset.cpus", "cpuset.mems"};
  for (const char* file : kFiles) {
    char path[kPathRoom], text[1024];
    const int from = join(path, parent, file) ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const ssize_t n = from >= 0 ? read(from, text, sizeof text) : -1;
    if (from >= 0) close(from);
    if (n > 0 && join(path, group, file)) put(path, text, static_cast<size_t>(n));
  }
}

}  // namespace

void leave_behind(pid_t process) {
  struct stat state;
  FILE* in = stat(settings().state_dir, &state) == 0 ? fopen("/proc/self/mountinfo", "re") : nullptr;
  char line[kPathRoom], root[8], mount[4096], parent[kPathRoom], group[kPathRoom], procs[kPathRoom],
      number[24], name[64];
  if (in)
    snprintf(name, sizeof name, "%lx.%lx.helpers", static_cast<unsigned long>(state.st_dev),
             static_cast<unsigned long>(state.st_ino));
  while (in && fgets(line, sizeof line, in)) {
    if (!strstr(line, " - cgroup") || sscanf(line, "%*s %*s %*s %7s %4095s", root, mount) != 2 ||
        strcmp(root, "/") != 0 || !join(parent, mount, "monarch") || !join(group, parent, name) ||
        !join(procs, group, "cgroup.procs"))
      continue;
    if (access(group, F_OK) != 0 && mkdir(group, 0711) == 0) share_cpuset(parent, group);
    put(procs, decimal(static_cast<uint64_t>(process), number), strlen(number));
  }
  if (in) fclose(in);
}

int64_t now_ms() {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<int64_t>(t.tv_sec) * 1000 + t.tv_nsec / 1000000;
}

void close_from(int first) { syscall(SYS_close_range, first, ~0u, 0u); }

const char* trusted(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

// In prolog and epilog slurmd says it in the environment. slurmstepd, whose environment for the job is in the
// user's hand, has what it read from slurm.conf, or slurmd, includes followed, unquoted and in lower case.
const char* cluster_name() {
  const char* read = &slurm_conf ? slurm_conf.cluster_name : nullptr;
  const char* said = trusted("SLURM_CLUSTER_NAME");
  return read && *read ? read : *said ? said : "cluster";
}

bool runs_prolog_in_job() { return &slurm_conf && slurm_release::has_run_in_job(slurm_conf); }

bool jobs_have_own_mounts() {
  if (!&slurm_conf) return true;  // not known: what is true of all jobs is done
  const char* type = slurm_release::namespace_type(slurm_conf);
  return type && *type && !strstr(type, "/none");
}

bool is_known(const char* job) {
  char path[kPathRoom];
  return access(path_of(path, job, ""), F_OK) == 0;
}

// JSON has a member on each line, and no quote in a text without a backslash before it.
bool is_noted(const char* job, const char* member) {
  char path[kPathRoom], quoted[32], *line = nullptr;
  size_t room = 0;
  snprintf(quoted, sizeof quoted, "\"%s\":", member);
  FILE* record = fopen(path_of(path, job, "/record.json"), "re");
  bool found = false;
  while (record && !found && getline(&line, &room, record) > 0) found = strstr(line, quoted) != nullptr;
  if (record) fclose(record);
  free(line);
  return found;
}

char* decimal(uint64_t n, char* out) {
  snprintf(out, 24, "%llu", static_cast<unsigned long long>(n));
  return out;
}

Arguments::Arguments(const char* hook, const char* job) {
  add(hook);
  add("--config", settings().config);
  for (int i = 0; i < settings().word_count; ++i) add("--set", settings().words[i]);
  add("--state-dir", settings().state_dir);
  add("--log", settings().log);
  add("--job", job);
  add("--cluster", cluster_name());
  add("--node", trusted("SLURMD_NODENAME"));
}

void Arguments::add(const char* word) {
  if (count_ < kMostArguments) words_[count_++] = word;
}

void run_monarchd(const Arguments& arguments, int patience_ms, char* answer, size_t room) {
  char* argv[kMostArguments + 4];
  char fd_text[] = "3";
  int n = 0;
  argv[n++] = const_cast<char*>(settings().monarchd);
  for (const char* const* word = arguments.words(); *word; ++word) argv[n++] = const_cast<char*>(*word);
  if (answer) argv[n++] = fd_text;
  argv[n] = nullptr;
  char path[] = "PATH=/usr/sbin:/usr/bin:/sbin:/bin";
  char conf[4096 + 16];
  snprintf(conf, sizeof conf, "SLURM_CONF=%s", trusted("SLURM_CONF"));
  static char key[256], nodes[65536 + 32], datasets[kDatasetBytes + 32], options[kOptionsBytes + 32];
  char* environment[7] = {path};
  int variables = 1;
  if (*trusted("SLURM_CONF")) environment[variables++] = conf;
  const auto tell = [&](char* variable, size_t size, const char* name, const char* value) {
    if (*value && static_cast<size_t>(snprintf(variable, size, "%s=%s", name, value)) < size)
      environment[variables++] = variable;
  };
  tell(key, sizeof key, "MONARCH_JOB_KEY", arguments.nodes().key);
  tell(nodes, sizeof nodes, "MONARCH_JOB_NODES", arguments.nodes().list);
  tell(datasets, sizeof datasets, "MONARCH_JOB_DATASETS", arguments.datasets());
  tell(options, sizeof options, "MONARCH_JOB_OPTIONS", arguments.options());
  int ends[2] = {-1, -1};
  if (answer && pipe2(ends, O_CLOEXEC) != 0) return;
  const pid_t pid = fork();
  if (pid == 0) child(argv, environment, ends[1]);
  if (ends[1] >= 0) close(ends[1]);
  const int64_t end = now_ms() + patience_ms;
  if (answer) read_line(ends[0], end, answer, room);
  if (ends[0] >= 0) close(ends[0]);
  if (pid < 0) return;
  int status = 0;
  pid_t gone = 0;
  while ((gone = waitpid(pid, &status, WNOHANG)) == 0 && now_ms() < end) usleep(1000);
  if (gone == 0) {
    pid_t left[kMostLeft];
    const int count = with_children(pid, left);
    kill(-pid, SIGKILL);  // its session: the child that it may have had
    kill(pid, SIGKILL);
    for (int i = 0; i < 100 && (gone = waitpid(pid, &status, WNOHANG)) == 0; ++i) usleep(1000);
    for (int i = 0; i < count; ++i)
      if (i == 0 ? gone == 0 : getsid(left[i]) == pid) leave_behind(left[i]);
    slurm_error("monarch: %s %s took longer than %d ms", settings().monarchd, argv[1], patience_ms);
  }
}

}  // namespace monarch::spank
