// SPDX-License-Identifier: Apache-2.0
// The exec family: programs started with an empty environment keep Monarch. And fork(2) and vfork(2).
// A child of vfork(2) runs these in its parent's memory: nothing is written but the stack and counters.
#include <pty.h>
#include <spawn.h>
#include <stdarg.h>

#include "preload/client/environment.h"
#include "preload/decide/returns.h"
#include "preload/next/kernel.h"
#include "preload/next/next.h"
#include "preload/resolve/originals.h"

namespace monarch::preload {
namespace {

using Strings = char* const*;

// Calls `start` with the environment for a program that was to get `given`.
template <typename Start>
int with_environment(Strings given, Start start, Given descriptors = Given::kKept,
                     Hints hints = Hints::kStay) {
  const ChildEnvironment environment(given);
  if (!environment.has_library()) give_all_back(descriptors, hints);
  const size_t bytes = environment.bytes();
  return start(environment.build(bytes > 0 ? __builtin_alloca(bytes) : nullptr));
}

// A program that gets another user's or group's rights is started without the library.
bool gains_rights(int dirfd, const char* path, int flags) {
  const KeepErrno errno_stays;
  struct statx st;
  return !unreadable(path) && ask_statx(dirfd, path, flags, STATX_MODE, &st) &&
         (st.stx_mode & (S_ISUID | S_ISGID)) != 0;
}

void before_exec(int dirfd, const char* path, int flags) {
  follow_all_changes(Hints::kStay);
  if (is_tier(class_of(STDIN_FILENO)) && gains_rights(dirfd, path, flags))
    give_all_back(Given::kKept, Hints::kStay);
  give_back_meant(dirfd, path, flags, Hints::kStay);
}

// `hook`: execve, or execvpe, which looks for the file.
int execute(Hook hook, const char* path, Strings argv, Strings given) {
  hook == Hook::execve ? before_exec(AT_FDCWD, path, 0) : follow_all_changes(Hints::kStay);
  return with_environment(given, [&](Strings envp) { return call_next<int>(hook, path, argv, envp); });
}

// Calls `start` with the arguments of execl and its kin as a vector on the stack; *list is then behind them.
template <typename Start>
int with_arguments(const char* first, va_list* list, Start start) {
  va_list again;
  va_copy(again, *list);
  size_t n = 1;
  for (const char* argument = first; argument; argument = va_arg(again, const char*)) ++n;
  va_end(again);
  auto** argv = static_cast<char**>(__builtin_alloca(n * sizeof(char*)));
  argv[0] = const_cast<char*>(first);
  for (size_t i = 0; argv[i];) argv[++i] = va_arg(*list, char*);
  return start(argv);
}

template <typename... Arguments>
pid_t fork_by(Hook hook, Arguments... arguments) {
  follow_all_changes();
  const pid_t pid = call_next<pid_t>(hook, arguments...);
  if (pid == 0) has_forked();
  return pid;
}

}  // namespace

extern "C" char** environ;

#define EXEC_HOOK(name, which, environment, parameters) \
  EXPORT int name parameters noexcept { return execute(Hook::which, path, argv, environment); }
EXEC_HOOK(execve, execve, envp, (const char* path, Strings argv, Strings envp))
EXEC_HOOK(execv, execve, environ, (const char* path, Strings argv))
EXEC_HOOK(execvp, execvpe, environ, (const char* path, Strings argv))
EXEC_HOOK(execvpe, execvpe, envp, (const char* path, Strings argv, Strings envp))
#define EXECL_HOOK(name, which, environment)                                                       \
  EXPORT int name(const char* path, const char* first, ...) noexcept {                             \
    va_list list;                                                                                  \
    va_start(list, first);                                                                         \
    const int result = with_arguments(                                                             \
        first, &list, [&](char** argv) { return execute(Hook::which, path, argv, environment); }); \
    va_end(list);                                                                                  \
    return result;                                                                                 \
  }
EXECL_HOOK(execl, execve, environ)
EXECL_HOOK(execlp, execvpe, environ)
EXECL_HOOK(execle, execve, va_arg(list, char**))
EXPORT int fexecve(int fd, Strings argv, Strings given) noexcept {
  before_exec(fd, "", AT_EMPTY_PATH);
  return with_environment(given, [&](Strings envp) { return call_next<int>(Hook::fexecve, fd, argv, envp); });
}
EXPORT int execveat(int dirfd, const char* path, Strings argv, Strings given, int flags) noexcept {
  before_exec(dirfd, path, flags);
  return with_environment(
      given, [&](Strings envp) { return call_next<int>(Hook::execveat, dirfd, path, argv, envp, flags); });
}

EXPORT pid_t fork() noexcept { return fork_by(Hook::fork); }
EXPORT pid_t _Fork() noexcept { return fork_by(Hook::_Fork); }
// The shell gets the program's own environment, also if that was cleared.
void before_shell() {
  follow_all_changes();
  const bool cleared = !environ || !*environ;
  if (cleared || !ChildEnvironment(environ).has_library()) give_all_back(Given::kKept, Hints::kSet);
}
HOOK_AFTER(before_shell(), int, system, (const char* command), command)
HOOK_AFTER(before_shell(), FILE*, popen, (const char* command, const char* mode), command, mode)
HOOK(int, forkpty,
     (int* terminal, char* name, const struct termios* modes, const struct winsize* size) noexcept, fork_by,
     terminal, name, modes, size)
// What vfork(2) calls first; where it goes on.
extern "C" __attribute__((used, visibility("hidden"))) void* monarch_before_vfork() {
  follow_all_changes();
  will_vfork();
  return reinterpret_cast<void*>(next<pid_t()>(Hook::vfork));
}
// It returns twice by the same stack, so no frame of ours may be on it: the hook ends with a jump.
#if defined(__x86_64__)
#define CALL_AND_JUMP           \
  "endbr64\n"                   \
  "subq $8, %rsp\n"             \
  ".cfi_adjust_cfa_offset 8\n"  \
  "call monarch_before_vfork\n" \
  "addq $8, %rsp\n"             \
  ".cfi_adjust_cfa_offset -8\n" \
  "jmp *%rax\n"
#elif defined(__aarch64__)
#define CALL_AND_JUMP           \
  "stp x29, x30, [sp, #-16]!\n" \
  ".cfi_def_cfa_offset 16\n"    \
  ".cfi_offset 29, -16\n"       \
  ".cfi_offset 30, -8\n"        \
  "bl monarch_before_vfork\n"   \
  "mov x16, x0\n"               \
  "ldp x29, x30, [sp], #16\n"   \
  ".cfi_restore 29\n"           \
  ".cfi_restore 30\n"           \
  ".cfi_def_cfa_offset 0\n"     \
  "br x16\n"
#else
#error "vfork: a jump for this processor"
#endif
__asm__(
    ".pushsection .text\n"
    ".globl vfork\n"
    ".type vfork, %function\n"
    "vfork:\n"
    ".cfi_startproc\n" CALL_AND_JUMP
    ".cfi_endproc\n"
    ".size vfork, .-vfork\n"
    ".globl __vfork\n"
    ".set __vfork, vfork\n"
    ".popsection\n");

#define SPAWN_HOOK(name)                                                                   \
  EXPORT int name(pid_t* pid, const char* path, const posix_spawn_file_actions_t* actions, \
                  const posix_spawnattr_t* attributes, Strings argv, Strings given) {      \
    follow_all_changes();                                                                  \
    return with_environment(                                                               \
        given,                                                                             \
        [&](Strings envp) {                                                                \
          return call_next<int>(Hook::name, pid, path, actions, attributes, argv, envp);   \
        },                                                                                 \
        actions ? Given::kAny : Given::kKept, Hints::kSet);                                \
  }
SPAWN_HOOK(posix_spawn)
SPAWN_HOOK(posix_spawnp)

}  // namespace monarch::preload
