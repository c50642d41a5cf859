// SPDX-License-Identifier: Apache-2.0
// safety CASE FILE...: uses dataset files in places where little is allowed. Prints what it got, which has to
// be the same natively and in a job. For tests/safety.t.
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <initializer_list>

#include "tests/own_syscall.h"

namespace {
int delayed_us;                  // of each statx(2)
volatile sig_atomic_t in_statx;  // one has begun
}  // namespace
bool before_syscall(long number, const long (&)[6]) {
  if (number == SYS_statx && delayed_us > 0) {
    in_statx = 1;
    usleep(static_cast<useconds_t>(delayed_us));
  }
  return true;
}

namespace {

int files_count;
char** files;

// The sum of a file's bytes, by calls only that a signal handler may make; -errno.
long sum_of(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -errno;
  unsigned char buffer[512];
  long sum = 0;
  for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;)
    for (ssize_t i = 0; i < n; ++i) sum += buffer[i];
  struct stat st;
  if (fstat(fd, &st) == 0) sum += static_cast<long>(st.st_ino % 1000) * 100000000;
  close(fd);
  return sum;
}

void say(const char* what, long number) {
  char line[200];
  const int n = snprintf(line, sizeof line, "%s %ld\n", what, number);
  if (write(1, line, static_cast<size_t>(n)) != n) _exit(9);
}

// ---- before main, and after it

long before_all = -1, in_constructor = -1;
void first(int argc, char** argv, char**) {
  if (argc > 2 && strcmp(argv[1], "early") == 0) before_all = sum_of(argv[2]);
}
__attribute__((section(".preinit_array"), used)) void (*preinit)(int, char**, char**) = &first;
__attribute__((constructor(101))) void constructor(int argc, char** argv) {
  if (argc > 2 && strcmp(argv[1], "early") == 0) in_constructor = sum_of(argv[2]);
}
__attribute__((destructor(101))) void destructor() {
  if (files && before_all >= 0) say("destructor", sum_of(files[0]));
}
void early() {
  say("preinit", before_all);
  say("constructor", in_constructor);
  say("main", sum_of(files[0]));
  atexit([] { say("atexit", sum_of(files[0])); });
}

// ---- small stacks

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kSmallStack = 64 << 10, kHandlersStack = 128 << 10;  // for larger frames
#else
constexpr size_t kSmallStack = 16 << 10, kHandlersStack = 16 << 10;
#endif
void* on_small_stack(void*) {
  for (int i = 0; i < files_count; ++i) say("thread", sum_of(files[i]));
  char directory[4096];
  snprintf(directory, sizeof directory, "%s", files[0]);
  char* name = strrchr(directory, '/');
  *name++ = '\0';
  if (chdir(directory) == 0) say("relative", sum_of(name));
  say("chmod", chmod(name, 0644));
  say("rename", rename("absent", "absent2"));
  const int fd = open(files[1], O_RDONLY);
  say("fchmod", fchmod(fd, 0600));
  struct stat st;
  say("fstat", fstat(fd, &st) == 0 ? st.st_mode : -1);
  close(fd);
  return nullptr;
}
void small_stack() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kSmallStack);
  pthread_t thread;
  pthread_create(&thread, &attributes, &on_small_stack, nullptr);
  pthread_join(thread, nullptr);
  pthread_create(
      &thread, &attributes,
      [](void*) -> void* {
        // A program with an instrumented library needs the sanitizer's runtime, by its own variables.
        const char* sanitizer = getenv("SAN_RT");
        char** environment = sanitizer && *sanitizer ? environ : nullptr;
        const pid_t pid = vfork();
        if (pid == 0) {
          execle("/bin/true", "true", nullptr, environment);
          _exit(9);
        }
        int status = -1;
        waitpid(pid, &status, 0);
        say("execle", status);
        return nullptr;
      },
      nullptr);
  pthread_join(thread, nullptr);
}

// ---- signal handlers

volatile sig_atomic_t in_handler, handler_wrong;
long expected;
void handler(int) {
  const int saved = errno;
  in_handler = in_handler + 1;
  if (sum_of(files[in_handler % files_count]) < 0) handler_wrong = 1;
  if (sum_of(files[0]) != expected) handler_wrong = 1;
  if (open("/nonexistent/file", O_RDONLY) >= 0) handler_wrong = 1;
  errno = saved;
}
void signals() {
  static char stack[kHandlersStack];
  const stack_t alternative = {stack, 0, sizeof stack};
  sigaltstack(&alternative, nullptr);
  struct sigaction action {};
  action.sa_handler = &handler;
  action.sa_flags = SA_ONSTACK | SA_RESTART;
  sigaction(SIGALRM, &action, nullptr);
  expected = sum_of(files[0]);
  const itimerval often = {{0, 500}, {0, 500}};
  setitimer(ITIMER_REAL, &often, nullptr);
  long wrong = 0;
  for (int i = 0; in_handler < 300; ++i) {
    void* memory = malloc(static_cast<size_t>(i % 5000));
    if (sum_of(files[i % files_count]) < 0) ++wrong;
    if (i % 7 == 0 && sum_of(files[0]) != expected) ++wrong;
    free(memory);
  }
  const itimerval never{};
  setitimer(ITIMER_REAL, &never, nullptr);
  say("wrong in handlers", handler_wrong);
  say("wrong elsewhere", wrong);
}

// ---- descriptors

int count_descriptors() {
  int n = 0;
  for (int fd = 0; fd < 4096; ++fd) n += fcntl(fd, F_GETFD) >= 0;
  return n;
}
void no_descriptors() {
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < files_count; ++i) say("open", sum_of(files[i]));
    say("descriptors", count_descriptors());
    if (round == 0)
      for (int fd = 3; fd < 1024; ++fd) close(fd);
    if (round == 1) syscall(SYS_close_range, 3, ~0u, 0);
  }
  close(0);
  const int lowest = open(files[0], O_RDONLY);
  say("lowest", lowest);
}
void few_descriptors() {
  const rlimit limit = {16, 16};
  setrlimit(RLIMIT_NOFILE, &limit);
  int n = 0, last = -1;
  while (n < 100 && (last = open(files[n % files_count], O_RDONLY)) >= 0) ++n;
  say("errno", errno);
  say("opened", n);
  struct stat st;
  say("fstat", fstat(5, &st) == 0 ? static_cast<long>(st.st_ino) : -1);
  say("fchmod", fchmod(5, 0640));
  say("mode", fstat(5, &st) == 0 ? st.st_mode : 0);
  say("rename", rename("/nonexistent", files[0]));
  close(5);
  say("one more", sum_of(files[0]));
}

// ---- system calls that are forbidden

void forbid(const int* numbers, size_t count, unsigned verdict) {
  sock_filter filter[64];
  size_t n = 0;
  filter[n++] = BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr));
  for (size_t i = 0; i < count; ++i) {
    filter[n++] = BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, static_cast<unsigned>(numbers[i]), 0, 1);
    filter[n++] = BPF_STMT(BPF_RET | BPF_K, verdict);
  }
  filter[n++] = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  const sock_fprog program = {static_cast<unsigned short>(n), filter};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) say("seccomp", -errno);
}
constexpr int kOurCalls[] = {SYS_statx,     SYS_readlinkat, SYS_futex, SYS_faccessat, SYS_getcpu,
                             SYS_fallocate, SYS_getcwd,     SYS_fcntl, SYS_mmap};
void refuse_statx() {
  constexpr int kNumber = SYS_statx;
  forbid(&kNumber, 1, SECCOMP_RET_ERRNO | EPERM);
}
// Executes the words that stand for files.
void without_statx() {
  refuse_statx();
  execv(files[0], files);
}
void held_without_statx() {
  const int fd = open(files[0], O_RDONLY), other = open(files[1], O_RDONLY), late = open(files[3], O_RDONLY);
  const off_t end = lseek(late, 0, SEEK_END);
  refuse_statx();
  struct stat held, named;
  say("appended", write(open(files[3], O_WRONLY | O_APPEND), "x", 1));
  say("read", pread(late, &held, 1, end));
  const timespec times[2] = {{1700000000, 0}, {1700000000, 0}};
  say("fstat", fstat(fd, &held) + stat(files[0], &named) == 0 && held.st_ino == named.st_ino);
  say("fchmod", fchmod(fd, 0600) == 0 && stat(files[0], &named) == 0 ? named.st_mode : 0);
  say("futimens", futimens(other, times) == 0 && stat(files[1], &named) == 0 ? named.st_mtime : 0);
  say("open", sum_of(files[2]));
}
void forbidden() {
  for (const unsigned verdict : {SECCOMP_RET_ERRNO | EPERM, SECCOMP_RET_ERRNO | ENOSYS}) {
    const pid_t pid = fork();
    if (pid == 0) {
      forbid(kOurCalls, sizeof kOurCalls / sizeof *kOurCalls, verdict);
      for (int i = 0; i < files_count; ++i) say("forbidden", sum_of(files[i]));
      const int fd = open(files[0], O_WRONLY);
      say("write", fd >= 0);
      _exit(0);
    }
    int status = -1;
    waitpid(pid, &status, 0);
    say("status", status);
  }
}
// What reading and stat make natively, and nothing else, under a filter that kills.
void killing() {
  const int fd = open(files[0], O_RDONLY);
  char buffer[100];
  struct stat st;
  const int pid = fork();
  if (pid == 0) {
    constexpr int kAll[] = {SYS_statx, SYS_readlinkat, SYS_futex, SYS_mmap, SYS_getcwd, SYS_getpid};
    const int own = open(files[1], O_RDONLY);
    forbid(kAll, sizeof kAll / sizeof *kAll, SECCOMP_RET_KILL_PROCESS);
    const long ino = fstat(fd, &st) == 0 ? static_cast<long>(st.st_ino) : -1;
    const long got = read(fd, buffer, sizeof buffer) + pread(fd, buffer, 10, 3);
    const int copy = dup(fd);
    say("allowed", ino + got + close(copy) + close(fd) + read(own, buffer, 7));
    say("named", stat(files[2], &st) + sum_of(files[2]) + open("/nonexistent", O_RDONLY));
    _exit(0);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  say("status", status);
}

// ---- errno and cancellation

void errors() {
  for (int i = 0; i < files_count; ++i) {
    errno = 77;
    const int fd = open(files[i], O_RDONLY);
    say("open", errno);
    struct stat st;
    fstat(fd, &st);
    char byte;
    pread(fd, &byte, 1, 0);
    const int copy = dup(fd);
    say("fstat, pread, dup", errno);
    say("flock", fchmod(fd, 0644) + close(copy) + close(fd));
    say("fchmod, close", errno);
    FILE* stream = fopen(files[i], "r");
    say("fopen", fgetc(stream) >= 0 && fclose(stream) == 0);
  }
  say("absent", open("/nonexistent", O_RDONLY));
  say("errno", errno);
}

void* cancelled(void*) {
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  while (true) {
    const int fd = open(files[0], O_RDONLY);
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    close(fd);
    pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, nullptr);
  }
}
void cancellation() {
  long ended = 0;
  for (int i = 0; i < 50; ++i) {
    pthread_t thread;
    void* result = nullptr;
    pthread_create(&thread, nullptr, &cancelled, nullptr);
    usleep(static_cast<useconds_t>(i * 20));
    pthread_cancel(thread);
    pthread_join(thread, &result);
    ended += result == PTHREAD_CANCELED;
  }
  say("cancelled", ended);
  say("open", sum_of(files[0]));
}

// ---- fork, and leaving open by other ways

// The first call of the process is slow, and another thread does not wait for it.
void* opens_first(void*) {
  say("first", sum_of(files[0]));
  return nullptr;
}
void fork_at_start() {
  delayed_us = 30000;
  pthread_t thread;
  pthread_create(&thread, nullptr, &opens_first, nullptr);
  for (int i = 0; i < 2000 && !in_statx; ++i) usleep(100);  // natively there is none
  const pid_t pid = fork();
  if (pid == 0) {
    delayed_us = 0;
    for (int i = 1; i < files_count; ++i) say("child", sum_of(files[i]));
    _exit(0);
  }
  waitpid(pid, nullptr, 0);
  pthread_join(thread, nullptr);
}

sigjmp_buf before_open;
void jumps() {
  struct sigaction action {};
  action.sa_handler = [](int) { siglongjmp(before_open, 1); };
  sigaction(SIGALRM, &action, nullptr);
  for (static int i = 0; i < 300; ++i) {
    const itimerval soon = {{0, 0}, {0, 1 + i * 7}}, never{};
    if (sigsetjmp(before_open, 1) == 0) {
      setitimer(ITIMER_REAL, &soon, nullptr);
      for (;;) close(open(files[i % files_count], O_RDONLY));
    }
    setitimer(ITIMER_REAL, &never, nullptr);
  }
  syscall(SYS_close_range, 3, ~0u, 0);  // what was opened when it jumped
  for (int i = 0; i < files_count; ++i) say("open", sum_of(files[i]));
}

const struct {
  const char* name;
  void (*run)();
} kCases[] = {{"early", early},
              {"small stack", small_stack},
              {"signals", signals},
              {"no descriptors", no_descriptors},
              {"few descriptors", few_descriptors},
              {"forbidden", forbidden},
              {"without statx", without_statx},
              {"held without statx", held_without_statx},
              {"killing", killing},
              {"errors", errors},
              {"cancellation", cancellation},
              {"fork at start", fork_at_start},
              {"jumps", jumps}};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  files = argv + 2;
  files_count = argc - 2;
  for (const auto& c : kCases)
    if (strcmp(argv[1], c.name) == 0) {
      c.run();
      return 0;
    }
  return 3;
}
