// SPDX-License-Identifier: Apache-2.0
#include "preload/decide/returns.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/kcmp.h>
#include <string.h>
#include <sys/file.h>

#include "preload/decide/changes.h"
#include "preload/resolve/paths.h"

namespace monarch::preload {
namespace {

// Puts what is open as `own` in the place of `fd` and of its duplicates here.
void replace(int fd, int own) {
  const unsigned char c = class_of(fd);
  const long self = syscall(SYS_getpid);
  const auto put = [own](int to) {
    const long flags = syscall(SYS_fcntl, to, F_GETFD);
    if (flags < 0 || syscall(SYS_dup3, own, to, (flags & FD_CLOEXEC) != 0 ? O_CLOEXEC : 0) < 0) return;
    opened_on_pfs(to, 0);
  };
  for (int other = 0; c != kNone && other < static_cast<int>(kDescriptors); ++other)
    if (other != fd && class_of(other) == c && syscall(SYS_kcmp, self, self, KCMP_FILE, fd, other) == 0)
      put(other);
  put(fd);
}

// A lock as /proc/locks tells it: "1: POSIX  ADVISORY  READ 1234 fd:01:5678 0 EOF".
struct Lock {
  bool flock = false, writes = false;
  uint64_t pid = 0, ino = 0, first = 0;
  uint64_t last = 0;  // 0: the end of the file, wherever that is
};

// Calls `use` with each lock on the node that is this process's and on an inode of that number.
template <typename Use>
void each_own_lock(uint64_t ino, Use use) {
  const long fd = syscall(SYS_openat, AT_FDCWD, "/proc/locks", O_RDONLY | O_CLOEXEC, 0);
  const auto self = static_cast<uint64_t>(syscall(SYS_getpid));
  constexpr int kType = 1, kKind = 3, kPid = 4, kInode = 5, kFirst = 6, kLast = 7;
  Lock lock;
  int field = 0;
  bool gap = true;  // before a field
  char text[256];
  for (long n; fd >= 0 && (n = syscall(SYS_read, fd, text, sizeof text)) > 0;)
    for (const char* p = text; p < text + n; ++p) {
      if (*p == '\n') {
        if (lock.pid == self && lock.ino == ino) use(lock);
        lock = {};
        field = 0;
        gap = true;
      } else if (*p == ' ') {
        if (!gap) ++field;
        gap = true;
      } else {
        const auto digit = [p](uint64_t* number) {
          *number = *number * 10 + static_cast<uint64_t>(*p - '0');
        };
        const bool is_digit = *p >= '0' && *p <= '9';
        if (field == kType && gap) lock.flock = *p == 'F';
        if (field == kType && gap && *p == 'O') lock.pid = ~uint64_t{0};  // of an open file: nobody's
        if (field == kKind && gap) lock.writes = *p == 'W';
        if (field == kPid && is_digit && lock.pid != ~uint64_t{0}) digit(&lock.pid);
        if (field == kInode && *p == ':') lock.ino = 0;  // it was a part of the device's number
        if (field == kInode && is_digit) digit(&lock.ino);
        if (field == kFirst && is_digit) digit(&lock.first);
        if (field == kLast && is_digit) digit(&lock.last);
        gap = false;
      }
    }
  if (fd >= 0) syscall(SYS_close, fd);
}

void take_lock(int fd, const Lock& lock) {
  if (lock.flock) {
    syscall(SYS_flock, fd, (lock.writes ? LOCK_EX : LOCK_SH) | LOCK_NB);
    return;
  }
  struct flock range = {};
  range.l_type = lock.writes ? F_WRLCK : F_RDLCK;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(lock.first);
  range.l_len = lock.last != 0 ? static_cast<off_t>(lock.last - lock.first + 1) : 0;
  syscall(SYS_fcntl, fd, F_SETLK, &range);
}

// Closing a descriptor gives up the process's locks on the file: so those that it has are taken last.
__attribute__((noinline)) bool go_back(const Client& c, int fd, const Original& original) {
  const long flags = syscall(SYS_fcntl, fd, F_GETFL);
  const long at = syscall(SYS_lseek, fd, 0, SEEK_CUR);
  if (flags < 0 || (flags & (O_PATH | O_ACCMODE)) != O_RDONLY) return false;
  const int own = open_original(original, O_RDONLY | O_NONBLOCK);
  if (own < 0) return false;
  syscall(SYS_fcntl, own, F_SETFL, flags);
  syscall(SYS_lseek, own, at, SEEK_SET);
  constexpr size_t kMostLocks = 16;
  Lock locks[kMostLocks];
  size_t count_of_locks = 0;
  each_own_lock(original.identity->tier_ino, [&](const Lock& lock) {
    if (count_of_locks < kMostLocks) locks[count_of_locks++] = lock;
  });
  replace(fd, own);
  syscall(SYS_close, own);
  for (size_t i = 0; i < count_of_locks; ++i) take_lock(fd, locks[i]);
  count(c.board, TaskCounter::returned);
  return true;
}

}  // namespace

bool follow_change(int fd, const Original& original) {
  const Client* c = client();
  if (!c || !is_changed_in_place(*c, *original.entry)) return false;
  const int saved = errno;
  const bool is_back = go_back(*c, fd, original);
  errno = saved;
  return is_back;
}

void look_for_change(int fd) {
  const uint32_t marks = the_client.board->header.marks.load(std::memory_order_acquire);
  Original original;
  if (original_of_descriptor(fd, &original) && follow_change(fd, original)) return;
  descriptor_marks[fd].store(marks, std::memory_order_relaxed);
}

// They may be a shell's redirections, or what a program keeps over exec.
__attribute__((noinline)) void find_open_copies() {
  each_descriptor([](int fd) {
    Original original;
    if (class_of(fd) == kNone && original_of_descriptor(fd, &original))
      opened_on_tier(fd, original.identity->tier.load(std::memory_order_relaxed), kNeverLooked);
  });
}

}  // namespace monarch::preload
