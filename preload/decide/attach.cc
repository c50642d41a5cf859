// SPDX-License-Identifier: Apache-2.0
#include "preload/client/client.h"

#include "preload/client/environment.h"
#include "preload/decide/changes.h"
#include "preload/decide/returns.h"
#include "preload/next/kernel.h"
#include "preload/resolve/roots.h"

namespace monarch::preload {

std::atomic<Phase> phase{Phase::kNew};
constinit Client the_client;

namespace {

// The agent may still be waiting for the PFS to show it the dataset's roots: then there is a run directory
// without a catalog, and it is looked for again, at most every kRetryNs.
constexpr int64_t kRetryNs = 100 * 1000000ll;
std::atomic<int64_t> retry_at{0};  // monotonic; 0: at once

struct Outcome {
  Phase phase;
  const char* why = nullptr;  // not kOn for good: for the log
};
constexpr Outcome kLater = {Phase::kNew};

// Whether Landlock refuses what every program may read, and none that restricts itself has to: no call tells
// that otherwise.
bool is_restricted() {
  const auto refused = [](const char* path) {
    return Own(open_own(AT_FDCWD, path, O_RDONLY)).fd < 0 && errno == EACCES;
  };
  return refused("/") || refused("/sys/kernel/fscaps");
}

void set_policy() {
  const char* exclude = saved_variable("MONARCH_IO_EXCLUDE");
  the_client.log = saved_variable("MONARCH_IO_LOG");
  the_client.exclude = exclude;
  if (exclude && excludes_program(exclude)) the_client.program = Program::kExcluded;
  if (is_restricted()) restrict_program();
}

// What cannot be opened or mapped may be so a moment later; only what is proven is for good.
Outcome without_board(RunDirectory* run) {
  int fd = -1;
  switch (open_run_directory(run, &fd)) {
    case RunDirectoryIs::kOwn:
      syscall(SYS_close, fd);
      return kLater;
    case RunDirectoryIs::kForeign:
      return {Phase::kOff,
              "not redirected: the run directory is another user's, or others have access to it"};
    case RunDirectoryIs::kUnknown:
      break;
  }
  if (errno != ENOENT && errno != ENOTDIR && errno != EACCES && errno != ELOOP) return kLater;
  return {Phase::kOff, "not redirected: the run directory is not there, or not to be read"};
}

void adapt(CatalogFacts* facts) {
  see_from_here(facts);
  if (!has_hooks()) facts->check_at_open = 1;
}

Outcome connect() {
  const char* dir = saved_variable("MONARCH_IO_RUN_DIR");
  if (is_disabled()) return {Phase::kOff, "not redirected: MONARCH_IO_DISABLE is set"};
  if (!dir || dir[0] != '/' || strlen(dir) >= kPathBytes)
    return {Phase::kOff, "not redirected: MONARCH_IO_RUN_DIR names no run directory"};
  RunDirectory run{dir};
  auto* board = static_cast<Board*>(map_shared(&run, "board", sizeof(Board), true));
  if (!board) return without_board(&run);
  Outcome outcome = {Phase::kOn};
  if (!is_made(*board))
    outcome = kLater;
  else if (!is_this_board(*board) || !the_client.catalog.open(run, &adapt))
    outcome =
        is_this_board(*board) && agent_lives(*board)
            ? kLater
            : Outcome{Phase::kOff, "not redirected: the run directory is of another version, or not usable"};
  Board* none = nullptr;
  if (outcome.phase != Phase::kOn || !__atomic_compare_exchange_n(&the_client.board, &none, board, false,
                                                                  __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
    syscall(SYS_munmap, board, sizeof(Board));
  if (outcome.phase == Phase::kOn) {
    set_policy();
    mark_what_is_open(&the_client);
  }
  return outcome;
}

void say(const char* why) {
  if (const char* log = saved_variable("MONARCH_IO_LOG")) write_line(log, {why});
}

// Before the program can change it. Of a file that it is to read as its standard input it may make no other
// call than read.
__attribute__((constructor)) void save() {
  struct statx st;
  if (save_environment() && has_hooks() && look_at(STDIN_FILENO, STATX_TYPE, &st) && S_ISREG(st.stx_mode) &&
      syscall(SYS_lseek, STDIN_FILENO, 0L, SEEK_CUR) == 0)
    (void)client();
}

}  // namespace

void restrict_program() {
  the_client.program = Program::kRestricted;
  if (const char* log = the_client.log.exchange(nullptr))
    write_line(log, {"not redirected: this program restricts itself"});
}

bool is_attached() { return client() != nullptr || phase.load(std::memory_order_acquire) != Phase::kOff; }

RARE Client* start_client(Retry retry) {
  if (!save_environment() || the_client.program == Program::kRestricted) return nullptr;
  const int64_t at = retry_at.load(std::memory_order_relaxed);
  if (retry == Retry::kInAWhile && at != 0 && monotonic_ns() < at) return nullptr;
  const KeepErrno errno_stays;
  const Outcome outcome = connect();
  Phase seen = Phase::kNew;
  if (outcome.phase == Phase::kNew) {
    retry_at.store(monotonic_ns() + kRetryNs, std::memory_order_relaxed);
  } else if (phase.compare_exchange_strong(seen, outcome.phase, std::memory_order_acq_rel)) {
    if (outcome.phase == Phase::kOn) find_open_files();
    if (outcome.why) say(outcome.why);
  }
  return phase.load(std::memory_order_acquire) == Phase::kOn ? &the_client : nullptr;
}

}  // namespace monarch::preload
