// SPDX-License-Identifier: Apache-2.0
// What the library asks of the kernel by itself. By system calls, since functions of libc's may be hooks.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "runtime/layout/statx.h"

namespace monarch::preload {

// Not inlined, so that its buffers are on the stack only while it runs; nor is what RARE says ever hot.
#define APART __attribute__((noinline))
#define RARE __attribute__((noinline, cold))

// errno stays what it is here when the block ends.
struct KeepErrno {
  const int saved = errno;
  ~KeepErrno() { errno = saved; }
};

// A descriptor for the rest of the block. It is closed then, if it is one (not -1); errno stays as it is.
struct Own {
  const int fd;
  explicit Own(int opened) : fd(opened) {}
  Own(const Own&) = delete;
  Own& operator=(const Own&) = delete;
  ~Own() {
    if (fd < 0) return;
    const KeepErrno errno_stays;
    syscall(SYS_close, fd);
  }
};

// No address of a program's: NULL, an offset from it, or in the kernel's half. The kernel says EFAULT, where
// reading it would end the program.
inline bool unreadable(const void* address) {
  constexpr intptr_t kNullPage = 4096;
  return reinterpret_cast<intptr_t>(address) < kNullPage;
}

// Writes the number and a NUL; where that is.
inline char* put_number(char* out, long number) {
  size_t digits = 1;
  for (long n = number; n >= 10; n /= 10) ++digits;
  char* const end = out + digits;
  *end = '\0';
  for (char* p = end; p > out; number /= 10) *--p = static_cast<char>('0' + number % 10);
  return end;
}

// Closes what was opened to no purpose, likewise. -1.
inline int not_opened(int fd) {
  const Own own(fd);
  return -1;
}

// open(2), closed on exec; -1 with errno.
inline int open_own(int dirfd, const char* path, int flags) {
  return static_cast<int>(syscall(SYS_openat, dirfd, path, flags | O_CLOEXEC, 0));
}

// What is open as `fd`, as far as `mask` (STATX_...) asks; where the kernel knows it, without asking the PFS.
// errno stays as it is.
inline bool look_at(int fd, unsigned mask, struct statx* st) {
  const KeepErrno errno_stays;
  return ask_statx(fd, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, mask, st);
}

inline uint64_t device_of(const struct statx& st) {
  return gnu_dev_makedev(st.stx_dev_major, st.stx_dev_minor);
}
inline bool is_same_file(const struct statx& a, const struct statx& b) {
  return a.stx_ino == b.stx_ino && device_of(a) == device_of(b);
}

}  // namespace monarch::preload
