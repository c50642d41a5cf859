// SPDX-License-Identifier: Apache-2.0
// The process's state: the next definitions of what is hooked, and the mapped catalog and board.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "preload/preload.h"

// glibc 2.34 moved dlsym into libc with a new version; the old one loads everywhere (x86-64; other
// architectures began with 2.17).
#if defined(__x86_64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.2.5");
#elif defined(__aarch64__)
__asm__(".symver dlsym, dlsym@GLIBC_2.17");
#endif

namespace monarch::preload {
namespace {

constexpr int kHooks = static_cast<int>(Hook::kCount);
constexpr const char* kSymbols[kHooks] = {
#define X(symbol, family) #symbol,
    MONARCH_HOOKS(X)
#undef X
};
std::atomic<void*> next_symbols[kHooks];

enum class Phase : int { kNew, kStarting, kOff, kOn };
std::atomic<Phase> phase{Phase::kNew};
Client the_client;
char run_dir[kPathBytes];

bool connect() {
  const char* off = getenv("MONARCH_IO_DISABLE");
  const char* dir = getenv("MONARCH_IO_RUN_DIR");
  if ((off && strcmp(off, "0") != 0 && *off) || !dir || dir[0] != '/' || strlen(dir) >= sizeof run_dir) return false;
  memcpy(run_dir, dir, strlen(dir) + 1);
  auto* board = static_cast<Board*>(map_shared(run_dir, "board", sizeof(Board), true));
  if (!board) return false;
  if (memcmp(board->header.magic, kBoardMagic, sizeof kBoardMagic) != 0 || board->header.version != kBoardVersion ||
      !the_client.catalog.open(run_dir)) {
    syscall(SYS_munmap, board, sizeof(Board));
    return false;
  }
  the_client.board = board;
  return true;
}

__attribute__((noinline, cold)) Client* start() {
  Phase seen = Phase::kNew;
  // Another thread (or the code that a signal interrupted) is at it: this call goes to the PFS.
  if (!phase.compare_exchange_strong(seen, Phase::kStarting)) return seen == Phase::kOn ? &the_client : nullptr;
  const int saved = errno;
  const bool on = connect();
  errno = saved;
  phase.store(on ? Phase::kOn : Phase::kOff, std::memory_order_release);
  return on ? &the_client : nullptr;
}

// dlsym(3) is not async-signal-safe: all is looked up before main.
__attribute__((constructor)) void resolve_all() {
  for (int i = 0; i < kHooks; ++i) next_symbol(static_cast<Hook>(i));
}

}  // namespace

void* next_symbol(Hook hook) {
  std::atomic<void*>& slot = next_symbols[static_cast<int>(hook)];
  void* function = slot.load(std::memory_order_relaxed);
  if (__builtin_expect(function == nullptr, 0)) {
    function = dlsym(RTLD_NEXT, kSymbols[static_cast<int>(hook)]);
    slot.store(function, std::memory_order_relaxed);
  }
  return function;
}

Client* client() {
  const Phase p = phase.load(std::memory_order_acquire);
  if (__builtin_expect(p == Phase::kOn, 1)) return &the_client;
  return p == Phase::kOff ? nullptr : start();
}

}  // namespace monarch::preload
