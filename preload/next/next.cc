// SPDX-License-Identifier: Apache-2.0
#include "preload/next/next.h"

#include <dlfcn.h>

// glibc 2.34 moved dlsym into libc with a new version; the old one loads everywhere (x86-64; other
// architectures began with 2.17).
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif

namespace monarch::preload {

void* next_symbols[kHooks];

namespace {

constexpr const char* kSymbols[kHooks] = {
#define X(symbol, family) #symbol,
    MONARCH_HOOKS(X)
#undef X
};

// dlsym(3) is not async-signal-safe: all is looked up before main.
__attribute__((constructor)) void find_all() {
  for (int i = 0; i < kHooks; ++i) next_symbol(static_cast<Hook>(i));
}

}  // namespace

// See mkdir in hooks/change.cc.
__attribute__((noinline, cold, no_sanitize("address", "thread"))) void* find_next(Hook hook) {
  const int i = static_cast<int>(hook);
  void* function = dlsym(RTLD_NEXT, kSymbols[i]);
  __atomic_store_n(&next_symbols[i], function, __ATOMIC_RELAXED);
  return function;
}

}  // namespace monarch::preload
