// SPDX-License-Identifier: Apache-2.0
// To be preloaded after libmonarch_preload.so: the openat2 that C libraries before glibc 2.43 lack.
#include <stddef.h>
#include <sys/syscall.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) int openat2(int dirfd, const char* path, const void* how,
                                                              size_t bytes) {
  return static_cast<int>(syscall(SYS_openat2, dirfd, path, how, bytes));
}
