// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/root_log.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <filesystem>

#include "runtime/base/log.h"
#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/node/removal.h"
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

// ---- its answer: errno, and the descriptor if there is one

union Room {
  cmsghdr head;
  char bytes[CMSG_SPACE(sizeof(int))];
};

bool hand_over(int to, const Result<Fd>& log) {
  int code = log.ok() ? 0 : log.error().code;
  iovec text = {&code, sizeof code};
  Room room = {};
  msghdr message = {};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  if (log.ok()) {
    message.msg_control = &room;
    message.msg_controllen = sizeof room;
    room.head = {CMSG_LEN(sizeof(int)), SOL_SOCKET, SCM_RIGHTS};
    const int fd = log->get();
    std::memcpy(CMSG_DATA(&room.head), &fd, sizeof fd);
  }
  return ::sendmsg(to, &message, MSG_NOSIGNAL) == sizeof code;
}

Result<Fd> take_over(int from, const std::string& file) {
  int code = 0;
  iovec text = {&code, sizeof code};
  Room room = {};
  msghdr message = {};
  message.msg_iov = &text;
  message.msg_iovlen = 1;
  message.msg_control = &room;
  message.msg_controllen = sizeof room;
  if (::recvmsg(from, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) != sizeof code)
    return errno_error("log " + file);
  if (code != 0) return errno_error("log " + file, code);
  if (message.msg_controllen < CMSG_LEN(sizeof(int)) || room.head.cmsg_type != SCM_RIGHTS)
    return Error{EMFILE, "log " + file + ": no descriptor is left"};
  int fd = -1;
  std::memcpy(&fd, CMSG_DATA(&room.head), sizeof fd);
  return Fd(fd);
}

// A child that hangs keeps `lock`, so that there is no second one.
Result<Fd> open_in_time(const StateDir& state, const Fd& lock, const std::string& file) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return errno_error("log " + file);
  const Fd in(ends[0]), out(ends[1]);
  const InTime child = start_in_time(state, patience::kHookStepMs, {lock.get(), out.get()},
                                     [&] { return hand_over(out.get(), open_or_make(file)); });
  if (ends_in_time(state, child)) return take_over(in.get(), file);
  return Error{ETIMEDOUT, "log " + file + ": not opened within " + std::to_string(patience::kHookStepMs) +
                              " ms: a process may keep its directory locked"};
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
