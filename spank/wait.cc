// SPDX-License-Identifier: Apache-2.0
// --monarch-wait: a task of the job's first step on a node waits, as the user and before it executes, until
// enough of the dataset is staged there. It sleeps and reads a small file that the job's agent writes
// (MONARCH_IO_STATE): a signal ends it as it ends any task, and its time is bounded whatever that file says.
// And what the agent is told of tasks by such files, and what the job's output ends with.
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr int64_t kLookMs = 200;
constexpr int64_t kNoAnswerMs = 60000;  // for the agent to tell anything at all
constexpr int64_t kRoomMs = 5000;       // for other jobs' space to become free, where some lacks
constexpr int64_t kFirstLineMs = 2000, kMostBetweenLinesMs = 60000;

struct State {
  char name[16];
  unsigned long long percent, staged_files, staged_bytes, all_bytes, rate, no_room, failed;
};

// The value of a line KEY=VALUE; 0 if there is none.
unsigned long long number_of(const char* text, const char* key) {
  const size_t n = strlen(key);
  for (const char* line = text; line; line = strchr(line, '\n')) {
    line += *line == '\n';
    if (strncmp(line, key, n) == 0 && line[n] == '=') return strtoull(line + n + 1, nullptr, 10);
  }
  return 0;
}

// False: the agent has not told anything yet.
bool read_state(const char* run_dir, State* state) {
  constexpr char kFirst[] = "state=";
  static char path[kPathBytes + 8];
  char text[1024], again[1024];
  snprintf(path, sizeof path, "%s/state", run_dir);
  const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  ssize_t n = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : -1;
  // It may be written just now.
  if (n != (n < 0 ? n : pread(fd, again, sizeof again - 1, 0)) ||
      (n > 0 && memcmp(text, again, static_cast<size_t>(n)) != 0))
    n = -1;
  if (fd >= 0) close(fd);
  text[n > 0 ? n : 0] = '\0';
  if (strncmp(text, kFirst, sizeof kFirst - 1) != 0) return false;
  const char* name = text + sizeof kFirst - 1;
  snprintf(state->name, sizeof state->name, "%.*s", static_cast<int>(strcspn(name, "\n")), name);
  state->percent = number_of(text, "percent");
  state->staged_files = number_of(text, "staged_files");
  state->staged_bytes = number_of(text, "staged_bytes");
  state->all_bytes = number_of(text, "all_bytes");
  state->rate = number_of(text, "rate");
  state->no_room = number_of(text, "no_room");
  state->failed = number_of(text, "failed");
  return true;
}

// The agent keeps a lock on its board from before it tells anything.
bool is_gone(const char* run_dir) {
  static char path[kPathBytes + 8];
  snprintf(path, sizeof path, "%s/board", run_dir);
  const int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return true;
  const bool gone = flock(fd, LOCK_EX | LOCK_NB) == 0;
  close(fd);
  return gone;
}

const char* size_text(unsigned long long bytes, char* out, size_t room) {
  constexpr char kUnits[] = " KMGTPE";
  double size = static_cast<double>(bytes);
  int unit = 0;
  for (; size >= 1000 && kUnits[unit + 1]; ++unit) size /= 1024;
  if (unit == 0)
    snprintf(out, room, "%llu bytes", bytes);
  else
    snprintf(out, room, "%.1f%c", size, kUnits[unit]);
  return out;
}

// Nothing is written that would have to be waited for.
void say(const char* text) {
  struct pollfd p = {STDERR_FILENO, POLLOUT, 0};
  if (poll(&p, 1, 0) == 1 && p.revents == POLLOUT) dprintf(STDERR_FILENO, "monarch: %s\n", text);
}

// A signal that ends a job ends who waits at once: slurmstepd has the task block it or handle it until it
// executes, and proctrack/linuxproc sends none to what is called slurmstepd. Afterwards all is as it was.
class Ending {
 public:
  Ending() {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < kCount; ++i) {
      struct sigaction by_default = {};
      by_default.sa_handler = SIG_DFL;
      sigaction(kSignals[i], &by_default, &before_[i]);
      sigaddset(&set, kSignals[i]);
    }
    sigprocmask(SIG_UNBLOCK, &set, &mask_);
    prctl(PR_GET_NAME, name_);
    prctl(PR_SET_NAME, "monarch-wait");
  }
  Ending(const Ending&) = delete;
  ~Ending() {
    prctl(PR_SET_NAME, name_);
    sigprocmask(SIG_SETMASK, &mask_, nullptr);
    for (int i = 0; i < kCount; ++i) sigaction(kSignals[i], &before_[i], nullptr);
  }

 private:
  static constexpr int kSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT};
  static constexpr int kCount = sizeof kSignals / sizeof *kSignals;
  struct sigaction before_[kCount];
  sigset_t mask_;
  char name_[16] = "";
};

class Waiting {
 public:
  Waiting(const char* run_dir, Wait wait) : run_dir_(run_dir), wait_(wait) {}

  // Looks once. False: there is nothing more to wait for, for the reason in `why_`.
  bool goes_on() {
    const int64_t now = now_ms();
    if (read_state(run_dir_, &state_)) {
      told_ = true;
      if (state_.percent >= static_cast<unsigned long long>(wait_.percent)) return false;
      if (strcmp(state_.name, "staging-in") == 0)
        over_since_ms_ = now;
      else if (strcmp(state_.name, "staged-in") != 0 || state_.no_room == 0 ||
               now - over_since_ms_ >= kRoomMs)
        return end_by_itself();
      if (now - looked_ms_ >= 1000) {
        looked_ms_ = now;
        if (is_gone(run_dir_)) return end("its agent has ended");
      }
    } else if (now - begin_ms_ >= kNoAnswerMs) {
      return end("its agent has told nothing for 60 s");
    }
    if (now - begin_ms_ < wait_.seconds * int64_t{1000}) return true;
    return end(told_ ? "the time of --monarch-wait-timeout is over; staging goes on"
                     : "the time of --monarch-wait-timeout is over, and the agent has told nothing");
  }

  bool has_enough() const { return !why_[0]; }
  bool is_line_due() {
    if (now_ms() - begin_ms_ < next_line_ms_) return false;
    next_line_ms_ += next_line_ms_ < kMostBetweenLinesMs ? next_line_ms_ : kMostBetweenLinesMs;
    return true;
  }
  void tell() const {
    char size[32], text[512], end[128];
    const int64_t ms = now_ms() - begin_ms_;
    if (has_enough())
      snprintf(end, sizeof end, "the job begins");
    else
      snprintf(end, sizeof end, "%s", why_);
    snprintf(text, sizeof text, "%s: %llu%% of the dataset is staged after %lld s (%llu files, %s): %s",
             trusted("SLURMD_NODENAME"), state_.percent, static_cast<long long>(ms / 1000),
             state_.staged_files, size_text(state_.staged_bytes, size, sizeof size), end);
    say(text);
  }
  void tell_progress() const {
    char size[32], all[48] = "", speed[96] = "", text[512];
    const int64_t left = wait_.seconds - (now_ms() - begin_ms_) / 1000;
    if (state_.all_bytes > 0)
      snprintf(all, sizeof all, " of %s", size_text(state_.all_bytes, size, sizeof size));
    if (state_.rate > 0) tell_speed(speed, sizeof speed);
    snprintf(text, sizeof text, "%s: %s%s staged%s; the job begins at %d%%, or in %lld s",
             trusted("SLURMD_NODENAME"), size_text(state_.staged_bytes, size, sizeof size), all, speed,
             wait_.percent, static_cast<long long>(left));
    say(text);
  }

 private:
  void tell_speed(char* out, size_t room) const {
    char size[32];
    const int n = snprintf(out, room, ", %s/s", size_text(state_.rate, size, sizeof size));
    if (state_.all_bytes <= state_.staged_bytes) return;
    const unsigned long long s = (state_.all_bytes - state_.staged_bytes) / state_.rate;
    snprintf(out + n, room - static_cast<size_t>(n), ", about %llu:%02llu:%02llu left", s / 3600, s / 60 % 60,
             s % 60);
  }
  bool end(const char* why) {
    snprintf(why_, sizeof why_, "%s", why);
    return false;
  }
  bool end_by_itself() {
    if (strcmp(state_.name, "staged-in") == 0)
      snprintf(why_, sizeof why_, "no more can be: %llu files have no room, %llu cannot be staged",
               state_.no_room, state_.failed);
    else if (strcmp(state_.name, "teardown") == 0)
      return end("its agent has ended");
    else
      return end("no more is staged ahead, see --monarch-prefetch in monarch(7)");
    return false;
  }

  const char* const run_dir_;
  const Wait wait_;
  const int64_t begin_ms_ = now_ms();
  int64_t over_since_ms_ = begin_ms_, looked_ms_ = begin_ms_, next_line_ms_ = kFirstLineMs;
  State state_ = {};
  bool told_ = false;
  char why_[120] = "";  // "": enough is staged
};

enum class Begin { kFirst, kNow };

// `kFirst`: what is there stays.
void write_begin(const char* run_dir, int64_t ms, Begin begin) {
  static char path[kPathBytes + 8];
  char text[24];
  snprintf(path, sizeof path, "%s/began", run_dir);
  const int how = begin == Begin::kFirst ? 0 : O_TRUNC;
  const int fd = open(path, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | how);
  struct stat st;
  if (fd < 0) return;
  decimal(static_cast<uint64_t>(ms), text);
  if (fstat(fd, &st) == 0 && st.st_size == 0) (void)!write(fd, text, strlen(text));
  close(fd);
}

// A child below that hangs in the kernel though it was killed; -1: none does.
pid_t hanging = -1;

// What is in the run directory is the user's, and may be made to hang who asks for it; so may the job's
// output be. A child does `work`, with no descriptor of slurmstepd's from `first` on, and is waited for half
// a second.
template <typename Work>
void in_child(int first, const Work& work) {
  constexpr int kLooks = 500, kLooksWhenKilled = 50;
  const pid_t pid = fork();
  if (pid == 0) {
    close_from(first);
    work();
    _exit(0);
  }
  if (pid < 0) return;
  pid_t gone = 0;
  for (int i = 0; i < kLooks + kLooksWhenKilled; ++i) {
    if (i == kLooks) kill(pid, SIGKILL);
    if ((gone = waitpid(pid, nullptr, WNOHANG)) != 0) break;
    usleep(1000);
  }
  if (gone == 0) hanging = pid;
}

}  // namespace

void note_begin(const char* run_dir, int seconds) {
  const int64_t ms = now_ms() + seconds * int64_t{1000};
  in_child(0, [&] { write_begin(run_dir, ms, Begin::kFirst); });
}

void leave_hanging_behind() {
  if (hanging > 0) leave_behind(hanging);
  hanging = -1;
}

void tell_at_end(spank_t sp) {
  constexpr int kPatienceMs = 1000;
  static uint32_t ended;
  uint32_t tasks = 1, node = 0, job = 0;
  char job_text[24], value[8], line[1024] = "";
  (void)spank_get_item(sp, S_JOB_LOCAL_TASK_COUNT, &tasks);  // not known: one
  (void)spank_get_item(sp, S_JOB_NODEID, &node);             // not known: the first
  if (++ended < tasks || node != 0 || !is_jobs_first_step(sp) ||
      spank_getenv(sp, "MONARCH_IO_QUIET", value, sizeof value) != ESPANK_ENV_NOEXIST ||
      spank_get_item(sp, S_JOB_ID, &job) != ESPANK_SUCCESS ||
      !is_noted(decimal(job, job_text), "closing_line"))
    return;
  Arguments arguments("--close", job_text);
  arguments.add("--reply-fd");  // its number follows
  run_monarchd(arguments, kPatienceMs, line, sizeof line);
  if (!line[0]) return;
  in_child(STDERR_FILENO + 1, [&] { say(line); });  // slurmstepd's is the job's
  leave_hanging_behind();
}

void wait_until_staged(spank_t sp, const char* run_dir, Wait wait) {
  uint32_t task = 0, node = 0;
  char value[8];
  const bool talks = spank_get_item(sp, S_TASK_ID, &task) == ESPANK_SUCCESS && task == 0 &&
                     spank_getenv(sp, "MONARCH_IO_QUIET", value, sizeof value) == ESPANK_ENV_NOEXIST;
  // Progress is told by one node; that less is staged than was wanted, by each.
  const bool is_first = spank_get_item(sp, S_JOB_NODEID, &node) != ESPANK_SUCCESS || node == 0;
  const Ending by_signals;
  Waiting waiting(run_dir, wait);
  while (waiting.goes_on()) {
    if (talks && is_first && waiting.is_line_due()) waiting.tell_progress();
    const struct timespec nap = {0, kLookMs * 1000000};
    nanosleep(&nap, nullptr);
  }
  if (talks && (is_first || !waiting.has_enough())) waiting.tell();
  write_begin(run_dir, now_ms(), Begin::kNow);
}

}  // namespace monarch::spank
