// SPDX-License-Identifier: Apache-2.0
// The lock family: locks on a file that the job changed, and its end, are those of the file on the PFS;
// flock(2) of a copy and of its file exclude each other.
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

#include "preload/decide/large.h"
#include "preload/decide/locks.h"
#include "preload/decide/returns.h"
#include "preload/next/next.h"

namespace monarch::preload {
namespace {

bool locks(int command) {
  return command == F_GETLK || command == F_SETLK || command == F_SETLKW || command == F_OFD_GETLK ||
         command == F_OFD_SETLK || command == F_OFD_SETLKW;
}

// A large file's descriptor does not move while its lock is taken; another call may take long.
int may_move(int fd) { return class_of(fd) == kLarge ? fd : -1; }

bool waits(int command) { return command == F_SETLKW || command == F_OFD_SETLKW; }

void will_lock_range(int fd) {
  follow_changes(fd);
  follow_changes_to_lock(fd);
  if (class_of(fd) == kLarge) stop_moves();
}

// A lease is broken by who opens the file on the PFS. Seals are a tmpfs's, which a tier may be.
bool is_of_file_system(int command) {
  return command == F_SETLEASE || command == F_GET_SEALS || command == F_ADD_SEALS;
}

int control(Hook hook, int fd, int command, void* argument) {
  if (locks(command)) will_lock_range(fd);
  if (is_of_file_system(command)) give_back(fd);
  const UsesDescriptor now(waits(command) ? may_move(fd) : fd);
  const int result = next<int(int, int, ...)>(hook)(fd, command, argument);
  if (result >= 0 && (command == F_DUPFD || command == F_DUPFD_CLOEXEC)) duplicated(fd, result);
  return result;
}

int lock_file(Hook hook, int fd, int operation) {
  will_lock(fd, operation);
  follow_changes(fd);
  const bool again = has_locked(fd, operation);
  const auto lock = [&](int what) {
    const UsesDescriptor now(may_move(fd));
    return call_next<int>(hook, fd, what);
  };
  for (int result;;) {
    result = lock(operation);
    if (result != 0 || again || !is_locked_beside(fd, operation)) return result;
    lock(LOCK_UN);  // else two that wait for each other's would do so for ever
    if ((operation & LOCK_NB) != 0) return errno = EWOULDBLOCK, -1;
    if (!wait_for_lock_beside(fd, operation)) return -1;
  }
}

int lock_from_position(Hook hook, int fd, int command, off_t bytes) {
  will_lock_range(fd);
  const UsesDescriptor now(may_move(fd));
  return call_next<int>(hook, fd, command, bytes);
}

off_t seek(Hook hook, int fd, off_t offset, int from) {
  if (from != SEEK_SET && from != SEEK_CUR) follow_changes(fd);
  const UsesDescriptor now(fd);
  return call_next<off_t>(hook, fd, offset, from);
}

}  // namespace

#define CONTROL_HOOK(name)                             \
  EXPORT int name(int fd, int command, ...) {          \
    va_list list;                                      \
    va_start(list, command);                           \
    void* argument = va_arg(list, void*);              \
    va_end(list);                                      \
    return control(Hook::name, fd, command, argument); \
  }
CONTROL_HOOK(fcntl)
CONTROL_HOOK(fcntl64)

HOOK(int, flock, (int fd, int operation) noexcept, lock_file, fd, operation)
HOOK(int, lockf, (int fd, int command, off_t bytes), lock_from_position, fd, command, bytes)
HOOK(int, lockf64, (int fd, int command, off64_t bytes), lock_from_position, fd, command, bytes)
HOOK(off_t, lseek, (int fd, off_t offset, int from) noexcept, seek, fd, offset, from)
HOOK(off64_t, lseek64, (int fd, off64_t offset, int from) noexcept, seek, fd, offset, from)

// A stream that is read again from elsewhere.
HOOK_AFTER(move_stream(stream), int, fseek, (FILE * stream, long offset, int from), stream, offset, from)
HOOK_AFTER(move_stream(stream), int, fseeko, (FILE * stream, off_t offset, int from), stream, offset, from)
HOOK_AFTER(move_stream(stream), int, fseeko64, (FILE * stream, off64_t offset, int from), stream, offset,
           from)
HOOK_AFTER(move_stream(stream), void, rewind, (FILE * stream), stream)
HOOK_AFTER(move_stream(stream), int, fsetpos, (FILE * stream, const fpos_t* position), stream, position)
HOOK_AFTER(move_stream(stream), int, fsetpos64, (FILE * stream, const fpos64_t* position), stream, position)

}  // namespace monarch::preload
