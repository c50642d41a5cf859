// SPDX-License-Identifier: Apache-2.0
#include "preload/next/next.h"

#include <dlfcn.h>
#include <link.h>

#include "preload/next/kernel.h"

// glibc 2.34 moved dlsym into libc with a new version; the old one loads everywhere (x86-64; other
// architectures began with 2.17).
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif

namespace monarch::preload {

void* next_symbols[kHooks];
const char* single_threaded = "";
bool libc_tells = true;

namespace {

// One text, without pointers, which the linker would have to relocate in each process.
constexpr char kSymbols[] =
#define X(symbol, family) #symbol "\0"
    MONARCH_HOOKS(X)
#undef X
    ;

// In the place of what this libc lacks: nobody calls it but who asked dlsym(3), and found the hook.
long lacking() {
  errno = ENOSYS;
  return -1;
}

void* look_up(int i, const char* symbol) {
  void* function = dlsym(RTLD_NEXT, symbol);
  if (!function) function = reinterpret_cast<void*>(&lacking);
  __atomic_store_n(&next_symbols[i], function, __ATOMIC_RELAXED);
  return function;
}

// Whether the address is in the object.
bool holds(const dl_phdr_info& object, const void* address) {
  for (int i = 0; i < object.dlpi_phnum; ++i)
    if (const auto& part = object.dlpi_phdr[i];
        part.p_type == PT_LOAD &&
        reinterpret_cast<uintptr_t>(address) - (object.dlpi_addr + part.p_vaddr) < part.p_memsz)
      return true;
  return false;
}

int see_who_tells(dl_phdr_info* object, size_t, void*) {
  if (!holds(*object, reinterpret_cast<const void*>(&__errno_location))) return 0;
  for (int i = static_cast<int>(Hook::fstat); i <= static_cast<int>(Hook::faccessat); ++i)
    libc_tells &= next_symbols[i] == reinterpret_cast<void*>(&lacking) || holds(*object, next_symbols[i]);
  return 1;
}

// dlsym(3) is not async-signal-safe: all is looked up before main.
__attribute__((constructor)) void find_all() {
  if (const void* said = dlsym(RTLD_DEFAULT, "__libc_single_threaded"))
    single_threaded = static_cast<const char*>(said);
  const char* symbol = kSymbols;
  for (int i = 0; i < kHooks; ++i, symbol += strlen(symbol) + 1) look_up(i, symbol);
  (void)dl_iterate_phdr(see_who_tells, nullptr);
}

}  // namespace

RARE void* find_next(Hook hook) {
  const char* symbol = kSymbols;
  for (int i = static_cast<int>(hook); i > 0; --i)
    while (*symbol++) {
    }
  return look_up(static_cast<int>(hook), symbol);
}

}  // namespace monarch::preload
