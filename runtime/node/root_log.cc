// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/root_log.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "runtime/base/log.h"
#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/node/life.h"
#include "runtime/node/state.h"

namespace monarch {
namespace {

constexpr int kFlags = O_WRONLY | O_APPEND | O_CLOEXEC;
constexpr int kAttempts = 4;  // others rotate it meanwhile
constexpr char kLock[] = "log.lock";

bool is_full(const Fd& log) {
  struct stat st;
  return ::fstat(log.get(), &st) == 0 && st.st_size >= kFullLog;
}

// By what the kernel has in its cache of names alone, without any lock on a directory. None if that does not
// have it.
Fd open_at_once(const std::string& file) {
  struct open_how how {};
  how.flags = kFlags;
  how.resolve = RESOLVE_CACHED;
  return Fd(static_cast<int>(::syscall(SYS_openat2, AT_FDCWD, file.c_str(), &how, sizeof how)));
}

// ---- in the child, which may hang

// It names datasets, which are not for all to see; an admin's choice for a file that is there stays.
Fd create(const std::string& file) {
  const auto make = [&] { return Fd(::open(file.c_str(), kFlags | O_CREAT, 0640)); };
  Fd log = make();
  if (log || errno != ENOENT) return log;
  ::mkdir(std::filesystem::path(file).parent_path().c_str(), 0711);  // users cannot list it
  return make();
}

bool is_called(const Fd& log, const std::string& file) {
  struct stat mine, there;
  return ::fstat(log.get(), &mine) == 0 && ::stat(file.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
         mine.st_ino == there.st_ino;
}

// Renames it, unless somebody has done so. False: it is being done, or cannot be. The lock is the file's own,
// since there may be other state directories.
bool rotate(const Fd& log, const std::string& file) {
  if (::flock(log.get(), LOCK_EX | LOCK_NB) != 0) return false;
  const bool rotated = !is_called(log, file) || ::rename(file.c_str(), older_log(file).c_str()) == 0;
  ::flock(log.get(), LOCK_UN);
  return rotated;
}

Result<Fd> open_or_make(const std::string& file) {
  for (int i = 0;; ++i) {
    Fd log(::open(file.c_str(), kFlags));
    if (!log && errno == ENOENT) log = create(file);
    if (!log) return errno_error("open " + file);
    if (i == kAttempts || !is_full(log) || !rotate(log, file)) return log;
  }
}

// A child that hangs keeps `lock`, so that there is no second one. What it has made is in the kernel's cache
// of names: who opens that waits for no directory.
Result<Fd> open_in_time(const StateDir& state, const Fd& lock, const std::string& file) {
  const Result<std::string> why =
      said_in_time(state, patience::kHookStepMs, {lock.get()}, [&]() -> std::string {
        const Result<Fd> log = open_or_make(file);
        return log.ok() ? "" : log.error().text;
      });
  if (!why.ok())
    return Error{ETIMEDOUT, "log " + file + ": not opened within " + std::to_string(patience::kHookStepMs) +
                                " ms: a process may keep its directory locked"};
  Fd log(why->empty() ? ::open(file.c_str(), kFlags) : -1);
  if (log) return log;
  return why->empty() ? errno_error("open log " + file) : Error{EIO, "log: " + *why};
}

Result<Fd> open_one_by_one(const std::string& state_dir, const std::string& file, int lock_patience_ms,
                           Clock& clock) {
  const Result<StateDir> state = StateDir::open(state_dir, clock);
  if (!state.ok()) return Error{state.error().code, "log " + file + ": " + state.error().text};
  const Result<Fd> lock = state->lock_file(kLock, lock_patience_ms);
  if (!lock.ok()) return Error{EBUSY, "log " + file + ": " + lock.error().text};
  return open_in_time(*state, *lock, file);
}

// What can be had. `why_not`: the error if there is none, or a full one that should have been rotated; not
// where another helper rotates it, or has told that it hangs.
Fd open_file(const std::string& state_dir, const std::string& file, Clock& clock, Status* why_not) {
  Fd log = open_at_once(file);
  if (log && !is_full(log)) return log;
  Result<Fd> anew = open_one_by_one(state_dir, file, log ? 0 : patience::kBriefMs, clock);
  if (anew.ok()) return anew.take();
  if (!log || anew.error().code != EBUSY) *why_not = anew.error();
  return log;
}

bool is_no_file(const std::string& file) { return file.empty() || file == "stderr" || file == "syslog"; }

}  // namespace

RootLog::RootLog(std::string state_dir, std::string file, Clock& clock)
    : state_dir_(std::move(state_dir)), file_(std::move(file)), clock_(clock) {
  if (is_no_file(file_)) {
    (void)open_log(file_, "info").ok();  // none is refused
    return;
  }
  Status why_not;
  Fd log = open_file(state_dir_, file_, clock_, &why_not);
  if (log) {
    note(log);
    (void)open_log(std::move(log), "info").ok();
    if (!why_not.ok()) spdlog::warn("{}; it is full, and is written on", why_not.error().text);
    return;
  }
  const char* instead = ::access("/dev/log", W_OK) == 0 ? "syslog" : "stderr";
  (void)open_log(instead, "info").ok();
  spdlog::error("{}; to {} instead", why_not.error().text, instead);
}

void RootLog::note(const Fd& log) {
  struct stat st {};
  (void)!::fstat(log.get(), &st);
  device_ = st.st_dev;
  inode_ = st.st_ino;
}

void RootLog::follow() {
  if (is_no_file(file_)) return;
  Status why_not;
  Fd log = open_file(state_dir_, file_, clock_, &why_not);
  struct stat st;
  if (!log || ::fstat(log.get(), &st) != 0 || (st.st_dev == device_ && st.st_ino == inode_)) return;
  note(log);
  (void)open_log(std::move(log), "info").ok();
}

}  // namespace monarch
