// SPDX-License-Identifier: Apache-2.0
// A library to preload, which writes to $TRACE_LOG which functions of the C library a program calls for files below
// $TRACE_ROOT: what doc/coverage.md says about programs.  For natively run programs only: it allocates and locks.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { kMode = 0644 };

// Raw calls only: what is called here must not be what is traced.
static void tell(const char* kind, const char* name, int fd) {
  char link[64], path[PATH_MAX], line[128];
  const char* root = getenv("TRACE_ROOT");
  const char* log = getenv("TRACE_LOG");
  if (!root || !log || fd < 0) return;
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t size = readlink(link, path, sizeof path - 1);
  if (size < 0) return;
  path[size] = '\0';
  if (strncmp(path, root, strlen(root)) != 0) return;
  int out = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, kMode);
  int length = snprintf(line, sizeof line, "%s %s\n", kind, name);
  if (out < 0 || syscall(SYS_write, out, line, (size_t)length) != length) abort();
  syscall(SYS_close, out);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define MODE(flags)                                  \
  unsigned mode = 0;                                 \
  if ((flags) & (O_CREAT | O_TMPFILE)) {             \
    va_list list;                                    \
    va_start(list, flags);                           \
    mode = va_arg(list, unsigned);                   \
    va_end(list);                                    \
  }
#define OPENED(name, call) \
  int fd = NEXT(name) call; \
  tell((flags & O_ACCMODE) == O_RDONLY ? "open" : "write", #name, fd); \
  return fd;
#define STREAM(name, call)                                                      \
  FILE* stream = NEXT(name) call;                                               \
  if (stream) tell(mode[0] == 'r' && !strchr(mode, '+') ? "open" : "write", #name, fileno(stream)); \
  return stream;
#define READS(type, name, fd, arguments, call) \
  type name arguments {                        \
    tell("read", #name, fd);                   \
    return NEXT(name) call;                    \
  }

int __open_2(const char*, int);
int __open64_2(const char*, int);
int __openat_2(int, const char*, int);
int __openat64_2(int, const char*, int);
ssize_t __read_chk(int, void*, size_t, size_t);
ssize_t __pread_chk(int, void*, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void*, size_t, off64_t, size_t);

int open(const char* path, int flags, ...) { MODE(flags) OPENED(open, (path, flags, mode)) }
int open64(const char* path, int flags, ...) { MODE(flags) OPENED(open64, (path, flags, mode)) }
int openat(int at, const char* path, int flags, ...) { MODE(flags) OPENED(openat, (at, path, flags, mode)) }
int openat64(int at, const char* path, int flags, ...) { MODE(flags) OPENED(openat64, (at, path, flags, mode)) }
int __open_2(const char* path, int flags) { OPENED(__open_2, (path, flags)) }
int __open64_2(const char* path, int flags) { OPENED(__open64_2, (path, flags)) }
int __openat_2(int at, const char* path, int flags) { OPENED(__openat_2, (at, path, flags)) }
int __openat64_2(int at, const char* path, int flags) { OPENED(__openat64_2, (at, path, flags)) }
FILE* fopen(const char* path, const char* mode) { STREAM(fopen, (path, mode)) }
FILE* fopen64(const char* path, const char* mode) { STREAM(fopen64, (path, mode)) }
FILE* fdopen(int fd, const char* mode) {
  tell("open", "fdopen", fd);
  return NEXT(fdopen)(fd, mode);
}
size_t fread(void* data, size_t size, size_t count, FILE* stream) {
  tell("read", "fread", fileno(stream));
  return NEXT(fread)(data, size, count, stream);
}

READS(ssize_t, read, fd, (int fd, void* data, size_t size), (fd, data, size))
READS(ssize_t, __read_chk, fd, (int fd, void* data, size_t size, size_t room), (fd, data, size, room))
READS(ssize_t, readv, fd, (int fd, const struct iovec* parts, int count), (fd, parts, count))
READS(ssize_t, pread, fd, (int fd, void* data, size_t size, off_t at), (fd, data, size, at))
READS(ssize_t, pread64, fd, (int fd, void* data, size_t size, off64_t at), (fd, data, size, at))
READS(ssize_t, __pread_chk, fd, (int fd, void* data, size_t size, off_t at, size_t room), (fd, data, size, at, room))
READS(ssize_t, __pread64_chk, fd, (int fd, void* data, size_t size, off64_t at, size_t room), (fd, data, size, at, room))
READS(ssize_t, preadv, fd, (int fd, const struct iovec* parts, int count, off_t at), (fd, parts, count, at))
READS(ssize_t, preadv64, fd, (int fd, const struct iovec* parts, int count, off64_t at), (fd, parts, count, at))
READS(ssize_t, sendfile, in, (int out, int in, off_t* at, size_t size), (out, in, at, size))
READS(ssize_t, sendfile64, in, (int out, int in, off64_t* at, size_t size), (out, in, at, size))
READS(ssize_t, copy_file_range, in, (int in, off64_t* from, int out, off64_t* to, size_t size, unsigned flags),
      (in, from, out, to, size, flags))
READS(void*, mmap, fd, (void* at, size_t size, int protection, int flags, int fd, off_t offset),
      (at, size, protection, flags, fd, offset))
READS(void*, mmap64, fd, (void* at, size_t size, int protection, int flags, int fd, off64_t offset),
      (at, size, protection, flags, fd, offset))
