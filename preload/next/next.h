// SPDX-License-Identifier: Apache-2.0
// The first floor: the functions that a program would have called without this library.
// Callable from any thread and signal handler, as all of preload/: no allocation, no lock, no descriptor
// kept.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include "preload/hooks.h"

// Before the definition of a hook, in whatever namespace: in C that is no part of a name. What is exported at
// all hooks.h says to the linker.
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace monarch::preload {

enum class Hook : int {
#define X(symbol, family) symbol,
  MONARCH_HOOKS(X)
#undef X
      kCount
};
inline constexpr int kHooks = static_cast<int>(Hook::kCount);
extern void* next_symbols[kHooks];  // nullptr: not looked up yet. Only by __atomic built-ins
void* find_next(Hook hook);
// The next definition of a hooked symbol in the process: another preloaded wrapper's, or libc's. Of what an
// old libc lacks, one that fails with ENOSYS.
template <typename Function>
Function* next(Hook hook) {
  void* function = __atomic_load_n(&next_symbols[static_cast<int>(hook)], __ATOMIC_RELAXED);
  if (__builtin_expect(function == nullptr, 0)) function = find_next(hook);
  return reinterpret_cast<Function*>(function);
}

// Whether libc itself answers all of the stat and path families, as far as is known: no wrapper after this
// library tells other times or owners, as faketime and fakeroot do.
extern bool libc_tells;

// Whether this thread is the only one, as far as libc knows (__libc_single_threaded, glibc 2.32): what it
// does needs no atomic operations. It stays so until that thread makes another. Threads that are made without
// libc, by clone(2), or by the libc of another dlmopen(3) namespace, libc does not know: it keeps none of its
// own data safe from them either.
extern const char* single_threaded;
inline bool is_single_threaded() { return *single_threaded != 0; }

// Calls the next definition.
template <typename Result, typename... Arguments>
Result call_next(Hook hook, Arguments... arguments) {
  return next<Result(Arguments...)>(hook)(arguments...);
}

// Both forms of a function (open, open64) are hooks, so nothing here is built with _FILE_OFFSET_BITS.
// A hook whose answer is function(Hook::name, arguments...).
#define HOOK(Result, name, parameters, function, ...) \
  EXPORT Result name parameters { return function(Hook::name, __VA_ARGS__); }
// A hook that does `before`, and then passes the call on.
#define HOOK_AFTER(before, Result, name, parameters, ...) \
  EXPORT Result name parameters {                         \
    before;                                               \
    return call_next<Result>(Hook::name, ##__VA_ARGS__);  \
  }

}  // namespace monarch::preload
