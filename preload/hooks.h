// SPDX-License-Identifier: Apache-2.0
// All that the library hooks, and what it deliberately does not.
#pragma once

// X(symbol, family). The exports are compared with this list by tests/exports.t.
//
// open   A dataset file that is whole on a tier is opened there; a small one that is not yet there is
//        waited for; all else is the PFS. The fortified __..._2 forms are what gcc makes of open with
//        -D_FORTIFY_SOURCE (tar, for one). fopen opens inside libc, so it is a hook of its own.
//        A write-open of a dataset file sets its invalid bit first.
// stat   fstat of a tier's copy answers with the PFS file's identity, or cp and tar would notice the
//        difference. __fxstat... are what programs built before glibc 2.33 call.
// count  Nothing changes: what came back is added up per tier and PFS, for the report and sacct.
#define MONARCH_HOOKS(X)    \
  X(open, open)             \
  X(open64, open)           \
  X(openat, open)           \
  X(openat64, open)         \
  X(__open_2, open)         \
  X(__open64_2, open)       \
  X(__openat_2, open)       \
  X(__openat64_2, open)     \
  X(fopen, open)            \
  X(fopen64, open)          \
  X(fstat, stat)            \
  X(fstat64, stat)          \
  X(__fxstat, stat)         \
  X(__fxstat64, stat)       \
  X(fstatat, stat)          \
  X(fstatat64, stat)        \
  X(__fxstatat, stat)       \
  X(__fxstatat64, stat)     \
  X(statx, stat)            \
  X(read, count)            \
  X(__read_chk, count)      \
  X(readv, count)           \
  X(pread, count)           \
  X(pread64, count)         \
  X(__pread_chk, count)     \
  X(__pread64_chk, count)   \
  X(preadv, count)          \
  X(preadv64, count)        \
  X(preadv2, count)         \
  X(preadv64v2, count)      \
  X(sendfile, count)        \
  X(sendfile64, count)      \
  X(copy_file_range, count) \
  X(mmap, count)            \
  X(mmap64, count)          \
  X(close, count)           \
  X(dup, count)             \
  X(dup2, count)            \
  X(dup3, count)

// Not hooked: fread and the rest of stdio (it reads inside libc), lseek, fcntl, fork, vfork, close_range.
// The descriptor that open returned is a plain one of the kernel's, so they are right as they are.
