// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/no_memory.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <syslog.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>

namespace monarch {
namespace {

std::atomic<const char*> who{"monarch"}, what_then{"the process ends"};
std::atomic_flag ends = ATOMIC_FLAG_INIT;  // one thread says so, and ends the others

// A file is opened anew, since it may have been rotated; a descriptor counts as long as it is the same
// file's: a child may have closed it.
enum class Log { kNone, kOff, kStderr, kSyslog, kFile, kDescriptor };
Log log_is = Log::kNone;
char log_file[PATH_MAX];
int log_descriptor;
struct stat log_stat;

int open_log_file() {
  struct stat st;
  if (log_is == Log::kFile) return ::open(log_file, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOCTTY);
  const bool same = log_is == Log::kDescriptor && ::fstat(log_descriptor, &st) == 0 &&
                    st.st_dev == log_stat.st_dev && st.st_ino == log_stat.st_ino;
  return same ? log_descriptor : -1;
}

// A line as the log's others. Neither localtime_r(3) nor syslog(3) needs memory.
void write_line(const char* text) {
  if (log_is == Log::kOff) return;
  if (log_is == Log::kSyslog) return ::syslog(LOG_ERR, "%s", text);
  char line[512], when[32] = "";
  int bytes;
  if (log_is == Log::kNone) {
    bytes = std::snprintf(line, sizeof line, "%s: %s\n", who.load(), text);
  } else {
    timespec now;
    tm local;
    ::clock_gettime(CLOCK_REALTIME, &now);
    if (::localtime_r(&now.tv_sec, &local)) (void)::strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%S", &local);
    bytes = std::snprintf(line, sizeof line, "%s.%03ld monarchd[%d]: error: %s\n", when,
                          now.tv_nsec / 1'000'000, static_cast<int>(::getpid()), text);
  }
  const int fd = open_log_file();
  (void)!::write(fd >= 0 ? fd : STDERR_FILENO, line, std::min(static_cast<size_t>(bytes), sizeof line - 1));
}

}  // namespace

void no_memory_is_left() {
  while (ends.test_and_set()) ::pause();
  char text[256];
  std::snprintf(text, sizeof text, "no memory is left: %s", what_then.load());
  write_line(text);
  ::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);  // a core would take long, and has files of the dataset
  std::abort();
}

void end_without_memory(const char* program, const char* then) {
  who = program;
  what_then = then;
  std::set_new_handler(&no_memory_is_left);
}

void tell_lack_of_memory_in(const std::string& log) {
  log_is = Log::kStderr;
  if (log == "off") {
    log_is = Log::kOff;
  } else if (log == "syslog") {
    log_is = Log::kSyslog;
  } else if (!log.empty() && log != "stderr" && log.size() < sizeof log_file) {
    std::memcpy(log_file, log.c_str(), log.size() + 1);
    log_is = Log::kFile;
  }
}

void tell_lack_of_memory_in(int log) {
  log_is = Log::kStderr;
  if (::fstat(log, &log_stat) != 0) return;
  log_descriptor = log;
  log_is = Log::kDescriptor;
}

}  // namespace monarch
