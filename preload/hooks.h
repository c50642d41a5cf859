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
  X(statx, stat)

// Not hooked: read, readv, mmap, fread, lseek, sendfile, copy_file_range, dup, fork, vfork, close_range.
// The descriptor that open returned is a plain one of the kernel's, so they are right as they are.
