// SPDX-License-Identifier: Apache-2.0
// What the preload library calls for the kernel by syscall(3) comes by a test program that includes this: so
// that it can delay a call, or fail it. For one source file of a program that is linked with -rdynamic.
#pragma once

#include <dlfcn.h>
#include <stdarg.h>

// The program's own. False: the call fails, with the errno that is set. `words` are its arguments.
static bool before_syscall(long number, const long (&words)[6]);

// Reads six words, however many there are. NOLINTNEXTLINE(misc-definitions-in-headers)
extern "C" __attribute__((visibility("default"), no_sanitize("address"))) long syscall(long number,
                                                                                       ...) noexcept {
  va_list list;
  va_start(list, number);
  long w[6];
  for (long& word : w) word = va_arg(list, long);
  va_end(list);
  static auto* const real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  return before_syscall(number, w) ? real(number, w[0], w[1], w[2], w[3], w[4], w[5]) : -1;
}
