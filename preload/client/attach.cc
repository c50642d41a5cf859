// SPDX-License-Identifier: Apache-2.0
#include "preload/client/client.h"

#include <errno.h>
#include <string.h>

#include "preload/client/environment.h"
#include "preload/client/exclude.h"
#include "preload/client/log.h"

namespace monarch::preload {

std::atomic<Phase> phase{Phase::kNew};
Client the_client;

namespace {

char run_dir[kPathBytes];

// The agent may still be waiting for the PFS to show it the dataset's roots: then there is a run directory
// without a catalog, and it is looked for again, at most every kRetryNs.
constexpr int64_t kRetryNs = 100 * 1000000ll;
std::atomic<int64_t> retry_at{0};  // monotonic; 0: at once

void log_process(const char* log, const char* what) {
  Line line;
  line.add(what);
  line.write_to(log);
}

// A process that is not redirected says so once, if it has a log.
Phase off(const char* why) {
  const char* log = saved_variable("MONARCH_IO_LOG");
  if (log && *log) log_process(log, why);
  return Phase::kOff;
}

void set_policy() {
  const char* exclude = saved_variable("MONARCH_IO_EXCLUDE");
  const char* log = saved_variable("MONARCH_IO_LOG");
  if (log && *log) the_client.log = log;
  if (!exclude || !*exclude) return;
  the_client.exclude = exclude;
  the_client.program_excluded = excludes_program(exclude);
}

Phase connect() {
  const char* dir = saved_variable("MONARCH_IO_RUN_DIR");
  if (is_disabled()) return off("not redirected: MONARCH_IO_DISABLE is set");
  if (!dir || dir[0] != '/' || strlen(dir) >= sizeof run_dir)
    return off("not redirected: MONARCH_IO_RUN_DIR names no run directory");
  memcpy(run_dir, dir, strlen(dir) + 1);
  auto* board = static_cast<Board*>(map_shared(run_dir, "board", sizeof(Board), true));
  if (!board)
    return syscall(SYS_faccessat, AT_FDCWD, run_dir, R_OK | X_OK) == 0
               ? Phase::kNew
               : off("not redirected: the run directory is not there, or not to be read");
  if (!is_made(*board)) {
    syscall(SYS_munmap, board, sizeof(Board));
    return Phase::kNew;
  }
  const bool same = memcmp(board->header.magic, kBoardMagic, sizeof kBoardMagic) == 0;
  if (!same || board->header.version != kBoardVersion || !the_client.catalog.open(run_dir)) {
    const bool wait = same && board->header.version == kBoardVersion && agent_lives(*board);
    syscall(SYS_munmap, board, sizeof(Board));
    return wait ? Phase::kNew : off("not redirected: the run directory is of another version, or not usable");
  }
  the_client.board = board;
  set_policy();
  return Phase::kOn;
}

// Another thread maps the files, which takes some 50 us: threads that open their first files at the same time
// shall all be served. Bounded, since it may be the code that a signal interrupted: then this call goes to
// the PFS.
constexpr int kStartSlices = 40;
constexpr timespec kStartSlice{0, 50000};
Phase wait_for_start() {
  const int saved = errno;
  Phase seen = phase.load(std::memory_order_acquire);
  for (int i = 0; i < kStartSlices && seen == Phase::kStarting; ++i) {
    syscall(SYS_nanosleep, &kStartSlice, nullptr);
    seen = phase.load(std::memory_order_acquire);
  }
  errno = saved;
  return seen;
}

// Before the program can change it.
__attribute__((constructor)) void save() { save_environment(); }

}  // namespace

bool is_attached() { return client() != nullptr || phase.load(std::memory_order_acquire) != Phase::kOff; }

__attribute__((noinline, cold)) Client* start_client() {
  if (!save_environment()) return nullptr;
  if (const int64_t at = retry_at.load(std::memory_order_relaxed); at != 0 && monotonic_ns() < at)
    return nullptr;
  Phase seen = Phase::kNew;
  if (!phase.compare_exchange_strong(seen, Phase::kStarting)) {
    if (seen == Phase::kStarting) seen = wait_for_start();
    return seen == Phase::kOn ? &the_client : nullptr;
  }
  const int saved = errno;
  const Phase now = connect();
  errno = saved;
  if (now == Phase::kNew) retry_at.store(monotonic_ns() + kRetryNs, std::memory_order_relaxed);
  phase.store(now, std::memory_order_release);
  return now == Phase::kOn ? &the_client : nullptr;
}

}  // namespace monarch::preload
