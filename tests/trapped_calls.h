// SPDX-License-Identifier: Apache-2.0
// System calls that fail, or before which something happens, in a child process of a test's: for calls that
// do not go through os.h.
#pragma once

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/sched.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sched.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

#include <functional>
#include <iterator>
#include <utility>

#include "tests/scratch.h"

namespace monarch {

// The arguments of a system call.
using CallArguments = const long (&)[5];
// Returns 0 to let the call go on, or the errno with which it fails. Runs in the thread that calls, between
// any two calls of the C library's: it takes no lock that the caller may hold. Its own calls go on.
using CallHandler = std::function<int(CallArguments)>;

// What a test's child process exits with where before_call() fails.
constexpr int kNoTraps = 99;

namespace trapped {

constexpr long kGoesOn = 0x6d6f6e61;  // as the sixth argument, which the trapped calls do not have
inline CallHandler handler;
inline bool inside = false;

inline void answer(int, siginfo_t* info, void* context) {
  auto* machine = &static_cast<ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  const auto& r = machine->gregs;
  const long arguments[5] = {r[REG_RDI], r[REG_RSI], r[REG_RDX], r[REG_R10], r[REG_R8]};
  auto* result = &machine->gregs[REG_RAX];
#elif defined(__aarch64__)
  long arguments[5];
  for (int i = 0; i < 5; ++i) arguments[i] = static_cast<long>(machine->regs[i]);
  auto* result = &machine->regs[0];
#else
  const long arguments[5] = {};
  static long ignored;
  auto* result = &ignored;
#endif
  const int before = errno;
  int error = 0;
  if (!std::exchange(inside, true)) {
    error = handler(arguments);
    inside = false;
  }
  long got = -1;
  if (error == 0) {
    got = ::syscall(info->si_syscall, arguments[0], arguments[1], arguments[2], arguments[3], arguments[4],
                    kGoesOn);
    error = errno;
  }
  *result = got == -1 ? -error : got;
  errno = before;
}

}  // namespace trapped

// From now on `handler` is called before each call of that number (of at most five arguments) in this process
// and in what it forks; a program that it executes is killed at such a call. False: it cannot be had here.
// Once in a process, since it cannot be taken back. Threads that are made by clone(2) go on.
[[nodiscard]] inline bool before_call(long number, CallHandler handler) {
// ThreadSanitizer makes calls of its own with signals blocked, and forbids handlers to allocate.
#if (!defined(__x86_64__) && !defined(__aarch64__)) || defined(__SANITIZE_THREAD__)
  return false;
#endif
  trapped::handler = std::move(handler);
  struct sigaction act = {};
  act.sa_sigaction = &trapped::answer;
  act.sa_flags = SA_SIGINFO | SA_NODEFER;
  constexpr auto at = [](size_t argument) {
    return static_cast<uint32_t>(offsetof(seccomp_data, args) + 8 * argument);
  };
  const uint32_t of_thread = number == SYS_clone ? CLONE_VM : 0;
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(number), 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at(5)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<uint32_t>(trapped::kGoesOn), 3, 0),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, at(0)),
      BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, of_thread, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{static_cast<unsigned short>(std::size(code)), code};
  return ::sigaction(SIGSYS, &act, nullptr) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Whether before_call() can be had.
inline bool can_trap() {
  return in_child([] { return before_call(SYS_flock, [](CallArguments) { return 0; }) ? 0 : kNoTraps; }) == 0;
}

// Before prctl(2): whose parent is to be watched from then on (PR_SET_PDEATHSIG) has lost it already.
inline int kill_parent(CallArguments a) {
  const pid_t parent = ::getppid();
  if (a[0] == PR_SET_PDEATHSIG) ::kill(parent, SIGKILL);
  while (a[0] == PR_SET_PDEATHSIG && ::getppid() == parent) ::sched_yield();
  return 0;
}

}  // namespace monarch
