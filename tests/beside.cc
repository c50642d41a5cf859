// SPDX-License-Identifier: Apache-2.0
// beside CASE FILE OTHER: one thread has a copy of a dataset's file open, or opens one, while another changes
// the file, and then forks or takes a lock. Prints what each got, which has to be the same natively and in a
// job. FILE has records of 64 bytes that begin with their number; OTHER is outside the dataset. For
// tests/writes.t.
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>

#include "tests/own_syscall.h"

// At one call of a number, or at all that open `slow_path`, the preload library lets the other thread go on
// first, for a while.
namespace {
std::atomic<long> pause_at{-1};
const char* slow_path = "";
std::atomic<unsigned> slow_us{0};
std::atomic<bool> has_paused{false};
}  // namespace
bool before_syscall(long number, const long (&words)[6]) {
  const bool opens =
      number == SYS_openat && slow_us > 0 && strcmp(reinterpret_cast<char*>(words[1]), slow_path) == 0;
  long expected = number;
  if (opens || pause_at.compare_exchange_strong(expected, -1)) {
    has_paused = true;
    usleep(opens ? slow_us.load() : 200000);
  }
  return true;
}

namespace {

constexpr unsigned kRecord = 64;
const char *file, *other;

template <typename Act>
struct Thread {
  pthread_t id{};
  Act act;
  explicit Thread(Act what) : act(what) {
    pthread_create(
        &id, nullptr, [](void* self) -> void* { return static_cast<Thread*>(self)->act(), nullptr; }, this);
  }
  ~Thread() { pthread_join(id, nullptr); }
};

void change() { close(open(file, O_RDWR)); }

void fork_once() {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  waitpid(pid, nullptr, 0);
}

// Of the dataset's file.
void lock_once() {
  const int fd = open(file, O_RDWR);
  struct flock range = {};
  range.l_type = F_WRLCK;
  if (fcntl(fd, F_SETLK, &range) != 0) perror("lock");
  close(fd);
}

// ---- a number that becomes another file's

template <typename Sweep>
void number(Sweep sweep) {
  const int fd = open(file, O_RDONLY);
  change();
  int mine = -1;
  {
    const Thread beside([&] {
      for (int i = 0; i < 300 && !has_paused; ++i) usleep(1000);
      close(fd);
      mine = open(other, O_RDWR);
    });
    sweep();
  }
  char bytes[5] = {};
  printf("read %zd ", pread(mine, bytes, 4, 0));
  printf("%s, write %zd, same number %d\n", bytes, pwrite(mine, "mine", 4, 0), mine == fd);
}
void slow_open_fork() { slow_us = 200000, number(fork_once); }
void slow_open_lock() { slow_us = 200000, number(lock_once); }
// At the last moment.
void at_dup3() {
  number([] { pause_at = SYS_dup3, fork_once(); });
}
void at_kcmp() {
  number([] { pause_at = SYS_kcmp, fork_once(); });
}

// ---- records, each once

struct Records {
  unsigned next = 0, wrong = 0;
  void add(const unsigned* record) {
    wrong += record[0] != next;
    next = record[0] + 1;
  }
};

// `begin` is called in the thread that reads, and gives what reads one record, or nothing.
template <typename Begin>
void records(Begin begin) {
  Records seen;
  {
    std::atomic<bool> begun{false};
    const Thread beside([&] {
      auto read_one = begin();
      unsigned record[kRecord / 4];
      for (; read_one(record); begun = true) {
        seen.add(record);
        if (seen.next % 8 == 0) usleep(2000);
      }
    });
    while (!begun) usleep(1000);
    for (int i = 0; i < 5; ++i) change(), fork_once();
  }
  printf("records %u, wrong %u\n", seen.next, seen.wrong);
}
void stream() {
  slow_us = 100000;
  records([] {
    FILE* const stream = fopen(file, "r");
    return [stream](unsigned* record) { return fread(record, kRecord, 1, stream) == 1; };
  });
}
// The sweep comes upon `first` before the one by which the other thread reads.
void duplicate() {
  slow_us = 100000;
  const int first = open(file, O_RDONLY), fd = dup(first);
  records([fd] { return [fd](unsigned* record) { return read(fd, record, kRecord) == kRecord; }; });
}

// Several by one descriptor, each of whom goes back; the PFS takes longer than they wait for one another.
void slow_readers() {
  static std::atomic<unsigned> times[1 << 16];
  const int fd = open(file, O_RDONLY);
  change();
  slow_us = 1500000;
  const auto reads = [fd] {
    unsigned record[kRecord / 4];
    while (read(fd, record, kRecord) == kRecord) ++times[record[0]], usleep(1000);
  };
  { const Thread one(reads), two(reads), three(reads); }
  unsigned all = 0, twice = 0;
  for (const auto& n : times) all += n != 0, twice += n > 1;
  printf("records %u, twice %u\n", all, twice);
}

// ---- duplicates, where kcmp(2) is not to be had

void filter(unsigned verdict) {
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_kcmp, 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, verdict), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program = {4, code};
  prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) perror("seccomp");
}
void lock_all(int fd) {
  struct flock all = {};
  all.l_type = F_RDLCK;
  fcntl(fd, F_OFD_SETLK, &all);
}
// Two descriptions of one file at the same position, each with a duplicate, perhaps with equal locks.
void four_descriptors(bool locked) {
  const int a = open(file, O_RDONLY), b = open(file, O_RDONLY), a2 = dup(a), b2 = dup(b);
  if (locked) lock_all(a), lock_all(b);
  unsigned record[kRecord / 4];
  const auto number_by = [&](int fd) { return read(fd, record, kRecord) == kRecord ? record[0] : 9999; };
  printf("%u %u; ", number_by(a), number_by(b));
  change();
  printf("%u %u ", number_by(a2), number_by(a));
  printf("%u %u %u; ", number_by(b2), number_by(b), number_by(a));
}
void duplicates() {
  four_descriptors(false);
  four_descriptors(true);
  printf("\n");
}
// A program that restricts itself is not served; one that it starts is.
template <unsigned kVerdict>
void filtered() {
  filter(kVerdict);
  execl("/proc/self/exe", "beside", "duplicates", file, other, nullptr);
}

// ---- a lock of a file, and changed copies of another: nothing is asked of the PFS

void lock_elsewhere() {
  const int fd = open(file, O_RDONLY), lock = open(other, O_RDWR);
  change();
  slow_us = 3000000;
  struct flock range = {};
  range.l_type = F_WRLCK;
  printf("locked %d, ", fcntl(lock, F_SETLK, &range));
  printf("waited %d\n", has_paused.load());
  close(fd);
}

// ---- a large file's descriptor that moves to the copy

// Natively nothing is staged, and nothing moves.
bool in_job() { return getenv("MONARCH_IO_RUN_DIR") != nullptr; }
bool is_on_copy(int fd) {
  char link[32], name[4096] = {};
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  return syscall(SYS_readlinkat, AT_FDCWD, link, name, sizeof name - 1) > 0 && strcmp(name, file) != 0;
}
// Until it is whole.
void stage() {
  for (int on_copy = 0, i = 0; on_copy < 2 && i < (in_job() ? 10000 : 2); ++i) {
    unsigned record[kRecord / 4];
    const int fd = open(file, O_RDONLY);
    if (pread(fd, record, kRecord, 0) != kRecord) perror("pread");
    on_copy += is_on_copy(fd);
    close(fd);
    usleep(1000);
  }
}
// Calls `act` while another thread's read of a record moves the descriptor; then `after`.
template <typename Act, typename After>
void while_it_moves(Act act, After after) {
  const int fd = open(file, O_RDONLY);
  stage();
  unsigned record[kRecord / 4];
  const auto next = [&] { return read(fd, record, kRecord) == kRecord ? record[0] : 9999; };
  unsigned first = 0;
  int result = 0;
  {
    const Thread beside([&] {
      pause_at = SYS_dup3;
      first = next();
    });
    for (int i = 0; i < (in_job() ? 10000 : 100) && !has_paused; ++i) usleep(1000);
    result = act(fd);
  }
  printf("%u, %d, ", first, result);
  after(next);
  printf("\n");
}
void move_and_fork() {
  int pipes[2];
  if (pipe(pipes) != 0) perror("pipe");
  pid_t pid = 0;
  while_it_moves(
      [&](int fd) {
        pid = fork();
        if (pid != 0) return 0;
        unsigned record[kRecord / 4] = {};
        char go;
        const bool right = read(pipes[0], &go, 1) == 1 && read(fd, record, kRecord) == kRecord;
        _exit(right ? static_cast<int>(record[0]) : 99);
      },
      [&](const auto& next) {
        int status = 0;
        printf("%u ", next());
        if (write(pipes[1], "", 1) != 1) perror("write");
        waitpid(pid, &status, 0);
        printf("child %d, %u", WEXITSTATUS(status), next());
      });
}
// Of the same file by another descriptor, while the first one's lock is held.
template <typename Lock>
void locked_beside(int flags, Lock lock) {
  const int again = open(file, flags);
  const int locked = lock(again);
  printf("%d %d", locked, locked == 0 ? 0 : errno);
}
void move_and_flock() {
  while_it_moves(
      [](int fd) { return flock(fd, LOCK_EX); },
      [](const auto&) { locked_beside(O_RDONLY, [](int fd) { return flock(fd, LOCK_EX | LOCK_NB); }); });
}
int lock_range(int fd, int command, short type) {
  struct flock range = {};
  range.l_type = type;
  return fcntl(fd, command, &range);
}
// A close of any descriptor of a file ends the process's locks of it.
void move_and_lock() {
  const int another = open(file, O_RDONLY);
  while_it_moves([&](int) { return lock_range(another, F_SETLK, F_RDLCK); },
                 [](const auto&) {
                   locked_beside(O_RDWR, [](int fd) { return lock_range(fd, F_OFD_SETLK, F_WRLCK); });
                 });
}

constexpr struct {
  const char* name;
  void (*run)();
} kCases[] = {{"slow open, fork", slow_open_fork},
              {"slow open, lock", slow_open_lock},
              {"at dup3", at_dup3},
              {"at kcmp", at_kcmp},
              {"stream", stream},
              {"duplicate", duplicate},
              {"slow readers", slow_readers},
              {"duplicates", duplicates},
              {"kcmp refused", filtered<SECCOMP_RET_ERRNO | EPERM>},
              {"kcmp kills", filtered<SECCOMP_RET_KILL_PROCESS>},
              {"lock elsewhere", lock_elsewhere},
              {"large, fork", move_and_fork},
              {"large, flock", move_and_flock},
              {"large, lock", move_and_lock}};

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1)
    for (const auto& one : kCases) puts(one.name);
  if (argc != 4) return argc == 1 ? 0 : 2;
  file = slow_path = argv[2];
  other = argv[3];
  for (const auto& one : kCases)
    if (strcmp(one.name, argv[1]) == 0) return one.run(), 0;
  return 2;
}
