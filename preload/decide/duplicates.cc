// SPDX-License-Identifier: Apache-2.0
#include "preload/decide/duplicates.h"

#include <linux/kcmp.h>

#include "preload/next/kernel.h"
#include "preload/resolve/words.h"

namespace monarch::preload {
namespace {

long compare(int fd, int other) {
  const long self = syscall(SYS_getpid);
  return syscall(SYS_kcmp, self, self, KCMP_FILE, fd, other);
}

bool are_of_one_file(int fd, int other) {
  struct statx a, b;
  return look_at(fd, STATX_INO, &a) && look_at(other, STATX_INO, &b) && is_same_file(a, b);
}

constexpr uint64_t kByte = INT64_MAX - 1;

void lock_byte(int fd, short type) {
  struct flock range = {};
  range.l_type = type;
  range.l_whence = SEEK_SET;
  range.l_start = static_cast<off_t>(kByte);
  range.l_len = 1;
  syscall(SYS_fcntl, fd, F_OFD_SETLK, &range);
}

bool has_byte(int fd) {
  bool found = false;
  (void)each_lock(fd, [&](const Lock& lock) {
    found |= lock.kind == 'O' && lock.first <= kByte && (lock.last == 0 || lock.last >= kByte);
  });
  return found;
}

// It may have had a lock of all bytes before, of its own: that does not go with the other's.
bool share_locks(int fd, int other) {
  lock_byte(fd, F_RDLCK);
  const bool had = has_byte(other);
  lock_byte(fd, F_UNLCK);
  return had && !has_byte(other);
}

}  // namespace

bool is_unfiltered() {
  bool unfiltered = false;
  return each_word("/proc/self/status",
                   [&](int, const char* word) { unfiltered |= strcmp(word, "Seccomp:\t0") == 0; }) &&
         unfiltered;
}

Comparison comparison() {
  constexpr int kAny = 0;  // the error alone tells: EBADF, of a call that is to be had
  if (!is_unfiltered()) return Comparison::kLock;
  return compare(kAny, kAny) == 0 || errno == EBADF ? Comparison::kCall : Comparison::kLock;
}

bool may_be_duplicates(int fd, int other) {
  const long order = compare(fd, other);
  return order == 0 || (order < 0 && errno != EBADF);
}

bool may_be_parents(int fd) {
  if (comparison() != Comparison::kCall) return true;
  const long order = syscall(SYS_kcmp, syscall(SYS_getpid), syscall(SYS_getppid), KCMP_FILE, fd, fd);
  return order == 0 || (order < 0 && errno != EBADF);
}

bool are_duplicates(int fd, int other, Comparison how) {
  if (how == Comparison::kCall) return compare(fd, other) == 0;
  return are_of_one_file(fd, other) && share_locks(fd, other);
}

}  // namespace monarch::preload
