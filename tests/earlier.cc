// SPDX-License-Identifier: Apache-2.0
// To be preloaded: the clock is two hours slow.
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

extern "C" __attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec* t) {
  const long status = syscall(SYS_clock_gettime, clock, t);
  if (status == 0 && clock == CLOCK_REALTIME) t->tv_sec -= 7200;
  return static_cast<int>(status);
}
