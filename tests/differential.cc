// SPDX-License-Identifier: Apache-2.0
// differential make SEED ROOT         makes a tree of files below ROOT
// differential run SEED CALLS ROOT    makes that many random calls on it, and prints what each gave
//
// What is printed depends on the seed and on what the calls did, not on inodes, descriptors' targets or the
// time, so the same tree natively and in a job has to give the same text. For tests/differential.t.
//
// Left out is what Monarch documents as different: a descriptor of a copy keeps its bytes when the file is
// changed in place, or is told nothing of links, when the file has no name any more.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <initializer_list>

namespace {

uint64_t state;
uint64_t random64() {
  uint64_t x = state += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
unsigned below(unsigned n) { return static_cast<unsigned>(random64() % n); }

constexpr int kNames = 24, kDirectories = 4, kOpen = 8;
const char* root;
int descriptors[kOpen];
time_t started;

uint64_t sum(const void* data, size_t n) {
  uint64_t h = 1469598103934665603u;
  for (size_t i = 0; i < n; ++i) h = (h ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
  return h;
}

void name_of(unsigned n, char* out, size_t room) {
  static const char* const kDirectoryNames[kDirectories] = {"", "a/", "a/b/", "c/"};
  snprintf(out, room, "%sf%u", kDirectoryNames[n % kDirectories], n);
}

// ---- the tree

int make_tree() {
  char path[4096];
  for (const char* d : {"", "/a", "/a/b", "/c"}) {
    snprintf(path, sizeof path, "%s%s", root, d);
    if (mkdir(path, 0755) != 0 && errno != EEXIST) return 1;
  }
  for (unsigned i = 0; i < kNames; ++i) {
    char name[64];
    name_of(i, name, sizeof name);
    snprintf(path, sizeof path, "%s/%s", root, name);
    if (i % 11 == 10) {
      if (symlink("f0", path) != 0) return 1;
      continue;
    }
    FILE* out = fopen(path, "w");
    if (!out) return 1;
    const unsigned bytes = i % 7 == 6 ? 0 : i % 5 == 4 ? 3000000 + below(100000) : below(60000);
    for (unsigned k = 0; k < bytes; k += 8) {
      const uint64_t word = random64();
      fwrite(&word, 1, 8, out);
    }
    fclose(out);
    const timespec times[2] = {{1000000000 + i, 0}, {1100000000 + i, 123456789}};
    utimensat(AT_FDCWD, path, times, 0);
    chmod(path, i % 3 ? 0644 : 0640);
  }
  snprintf(path, sizeof path, "%s/hard", root);
  char other[4096];
  snprintf(other, sizeof other, "%s/f4", root);
  return link(other, path) != 0;
}

// ---- paths

// One of the tree's names, or nearly, in one of the ways to write it. Relative ones are right after
// chdir(root) only.
const char* some_path(char* out, size_t room) {
  char name[64];
  if (below(20) == 0) {
    static const char* const kOthers[] = {"absent", "a",    "c/", "a/b/.",   "hard",
                                          "f0/",    "f0/x", "",   "a/../f0", "c/./f3"};
    snprintf(name, sizeof name, "%s", kOthers[below(sizeof kOthers / sizeof *kOthers)]);
  } else {
    name_of(below(kNames), name, sizeof name);
  }
  static const char* const kBefore[] = {"", "./", "//", "/./a/../", "/"};
  const unsigned how = below(8);
  snprintf(out, room, "%s%s%s", how < 2 ? "" : root, kBefore[how < 4 ? how : 4], name);
  return out;
}
const char* shown(const char* path) {
  return strncmp(path, root, strlen(root)) == 0 ? path + strlen(root) : path;
}

// The kernel's own answer, past all hooks.
bool look(int dirfd, const char* path, int flags, struct stat* st) {
  return syscall(SYS_newfstatat, dirfd, path, st, flags) == 0;
}
// Whether one of our descriptors is open on what the path leads to.
bool is_open(const char* path) {
  struct stat there, here;
  if (!look(AT_FDCWD, path, 0, &there)) return false;
  for (const int fd : descriptors)
    if (fd >= 0 && fstat(fd, &here) == 0 && here.st_ino == there.st_ino && here.st_dev == there.st_dev)
      return true;
  return false;
}

char opened_as[kOpen][4096];

// ---- what is printed

void show_time(const char* what, const timespec& t) {
  if (t.tv_sec >= started) {
    printf(" %s=now", what);
  } else {
    printf(" %s=%lld.%09ld", what, static_cast<long long>(t.tv_sec), t.tv_nsec);
  }
}
void show_stat(const struct stat& st, const char* path) {
  struct stat top, now;
  look(AT_FDCWD, root, 0, &top);
  printf(" mode=%o uid=%u gid=%u dev=%d blksize=%ld", st.st_mode, st.st_uid, st.st_gid,
         st.st_dev == top.st_dev, static_cast<long>(st.st_blksize));
  if (!S_ISDIR(st.st_mode)) printf(" size=%lld", static_cast<long long>(st.st_size));
  show_time("mtime", st.st_mtim);
  if (path && look(AT_FDCWD, path, 0, &now) && now.st_ino == st.st_ino)
    printf(" as by path: %d%d%d%d%d", now.st_dev == st.st_dev, now.st_nlink == st.st_nlink,
           now.st_ctim.tv_nsec == st.st_ctim.tv_nsec, now.st_mtim.tv_nsec == st.st_mtim.tv_nsec,
           now.st_blocks == st.st_blocks);
}
void show_result(long result) {
  if (result < 0) {
    printf(" = -%d", errno);
  } else {
    printf(" = %ld", result);
  }
}
void show_read(long got, const void* data) {
  show_result(got);
  if (got > 0) printf(" %016llx", static_cast<unsigned long long>(sum(data, static_cast<size_t>(got))));
}

// ---- the calls

char buffer[1 << 17];

int some_slot() { return static_cast<int>(below(kOpen)); }
size_t some_size() { return below(3) ? below(5000) : below(sizeof buffer); }

void do_open() {
  char path[4096];
  const int slot = some_slot();
  if (descriptors[slot] >= 0) close(descriptors[slot]);
  descriptors[slot] = -1;
  some_path(path, sizeof path);
  // Of opens for reading.
  static constexpr int kFlags[] = {0,          0,      O_CLOEXEC,        O_NOFOLLOW, O_DIRECTORY,
                                   O_NONBLOCK, O_PATH, O_CREAT | O_EXCL, O_NOCTTY,   0};
  const int flags = kFlags[below(10)];
  const unsigned how = below(4);
  descriptors[slot] = how == 0   ? openat(AT_FDCWD, path, flags, 0600)
                      : how == 1 ? open64(path, flags, 0600)
                                 : open(path, flags, 0600);
  printf("open %s %o", shown(path), flags);
  show_result(descriptors[slot] < 0 ? -1 : 0);
  if (descriptors[slot] >= 0) {
    if (!realpath(path, opened_as[slot])) opened_as[slot][0] = '\0';
    printf(" getfl=%o getfd=%d", fcntl(descriptors[slot], F_GETFL), fcntl(descriptors[slot], F_GETFD));
  }
}
void do_stream() {
  char path[4096];
  FILE* stream = fopen(some_path(path, sizeof path), "re");
  printf("fopen %s", shown(path));
  if (!stream) return show_result(-1);
  const size_t skip = some_size(), want = some_size();
  fseek(stream, static_cast<long>(skip), SEEK_SET);
  const size_t got = fread(buffer, 1, want, stream);
  show_read(static_cast<long>(got), buffer);
  printf(" at %ld eof %d", ftell(stream), feof(stream));
  fclose(stream);
}
void do_read(int slot) {
  const int fd = descriptors[slot];
  const size_t n = some_size();
  iovec parts[2] = {{buffer, n / 3}, {buffer + n / 3, n - n / 3}};
  const off_t at = below(4) ? below(70000) : below(4000000);
  printf("read %d", slot);
  const unsigned how = below(6);
  const ssize_t got = how == 0   ? pread(fd, buffer, n, at)
                      : how == 1 ? readv(fd, parts, 2)
                      : how == 2 ? preadv(fd, parts, 2, at)
                      : how == 3 ? preadv2(fd, parts, 2, -1, 0)
                      : how == 4 ? pread64(fd, buffer, n, -1)
                                 : read(fd, buffer, n);
  show_read(got, buffer);
}
void do_seek(int slot) {
  static constexpr int kWhence[] = {SEEK_SET, SEEK_CUR, SEEK_END, SEEK_DATA};
  const int whence = kWhence[below(3)];
  const off_t by = static_cast<off_t>(below(80000)) - 20000;
  printf("lseek %d %lld %d", slot, static_cast<long long>(by), whence);
  show_result(lseek(descriptors[slot], by, whence));
}
void do_stat(int slot) {
  const int fd = descriptors[slot];
  struct stat st;
  long rc = -1;
  printf("fstat %d", slot);
  const unsigned how = below(3);
  struct statx x;
  if (how == 0) rc = fstatat(fd, "", &st, AT_EMPTY_PATH);
  if (how == 1) rc = statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x);
  if (how == 2 || (how == 1 && rc == 0)) rc = fstat(fd, &st);
  if (how == 1 && rc == 0)
    printf(" statx %d%d%d%d", x.stx_ino == st.st_ino, x.stx_mode == st.st_mode,
           x.stx_size == static_cast<uint64_t>(st.st_size), x.stx_mtime.tv_sec == st.st_mtim.tv_sec);
  show_result(rc);
  if (rc == 0) show_stat(st, opened_as[slot]);
}
void do_path_stat() {
  char path[4096];
  struct stat st;
  const unsigned how = below(4);
  some_path(path, sizeof path);
  struct statx x;
  const long rc = how == 0   ? stat(path, &st)
                  : how == 1 ? lstat(path, &st)
                  : how == 2 ? fstatat(AT_FDCWD, path, &st, below(2) ? AT_SYMLINK_NOFOLLOW : 0)
                             : statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &x);
  printf("stat %u %s", how, shown(path));
  show_result(rc);
  if (rc == 0 && how < 3) show_stat(st, how == 1 ? nullptr : path);
  if (rc == 0 && how == 3 && stat(path, &st) == 0)
    printf(" statx %d%d%d%d", x.stx_ino == st.st_ino, x.stx_mode == st.st_mode, x.stx_nlink == st.st_nlink,
           x.stx_ctime.tv_nsec == st.st_ctim.tv_nsec);
  static constexpr int kModes[] = {F_OK, R_OK, W_OK, R_OK | W_OK, X_OK};
  const int mode = kModes[below(5)];
  printf(" access %d %d", access(path, mode), faccessat(AT_FDCWD, path, mode, AT_EACCESS));
}
void do_copy_descriptor(int slot) {
  const int to = some_slot();
  printf("dup %d %d", slot, to);
  if (to == slot || descriptors[slot] < 0) return;
  if (descriptors[to] >= 0 && below(2)) {
    show_result(dup2(descriptors[slot], descriptors[to]) == descriptors[to] ? 0 : -1);
  } else {
    if (descriptors[to] >= 0) close(descriptors[to]);
    descriptors[to] = below(2) ? dup(descriptors[slot]) : fcntl(descriptors[slot], F_DUPFD_CLOEXEC, 20);
    show_result(descriptors[to] >= 0 ? 0 : -1);
  }
  memcpy(opened_as[to], opened_as[slot], sizeof opened_as[to]);
}
void do_map(int slot) {
  struct stat st;
  printf("mmap %d", slot);
  if (fstat(descriptors[slot], &st) != 0 || !S_ISREG(st.st_mode)) return;
  const auto bytes = static_cast<size_t>(st.st_size);
  void* m = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, descriptors[slot], 0);
  show_result(m == MAP_FAILED ? -1 : 0);
  if (m == MAP_FAILED) return;
  printf(" %016llx", static_cast<unsigned long long>(sum(m, bytes)));
  munmap(m, bytes);
}
// Names come in any order, so what is printed does not depend on it.
struct Listed {
  uint64_t all = 0;
  long names = 0;
  void add(const dirent* e) {
    all += sum(e->d_name, strlen(e->d_name)) * (e->d_type + 1u) + (e->d_ino != 0);
    ++names;
  }
  void show(const char* what) const {
    printf(" %s %ld %016llx", what, names, static_cast<unsigned long long>(all));
  }
};
Listed read_rest(DIR* dir, long most) {
  Listed listed;
  while (const dirent* e = listed.names < most ? readdir(dir) : nullptr) listed.add(e);
  return listed;
}
constexpr long kAll = 1 << 20;

// Goes to and fro in a stream.
void play_with(DIR* dir) {
  const Listed first = read_rest(dir, below(8));
  const long place = telldir(dir);
  const Listed rest = read_rest(dir, kAll);
  Listed together = first;
  together.all += rest.all;
  together.names += rest.names;
  together.show("=");
  if (below(2)) {
    seekdir(dir, place);
    const Listed again = read_rest(dir, kAll);
    printf(" again %d", again.all == rest.all && again.names == rest.names);
  }
  if (below(2)) {
    rewinddir(dir);
    read_rest(dir, kAll).show("rewound");
  }
  if (below(4) == 0) {
    fflush(stdout);
    rewinddir(dir);
    const pid_t pid = fork();
    if (pid == 0) {
      read_rest(dir, kAll).show("child:");
      fflush(stdout);
      _exit(closedir(dir));
    }
    int status = 0;
    waitpid(pid, &status, 0);
    printf(" fork = %d", status);
  }
  if (below(3) == 0) {
    struct stat by_path, by_descriptor;
    const int fd = dirfd(dir);
    printf(" dirfd %d %o",
           fstat(fd, &by_descriptor) == 0 && look(fd, ".", 0, &by_path) &&
               by_path.st_ino == by_descriptor.st_ino,
           fcntl(fd, F_GETFL));
  }
}

void do_list() {
  char path[4096];
  static const char* const kWhich[] = {"", "/a", "/a/b", "/c"};
  if (below(4)) {
    snprintf(path, sizeof path, "%s%s", root, kWhich[below(4)]);
  } else {
    some_path(path, sizeof path);
  }
  const unsigned how = below(4);
  printf("list %u %s", how, shown(path));
  if (how == 0) {
    dirent** names;
    const int n = scandir(path, &names, nullptr, alphasort);
    uint64_t all = 0;
    for (int i = 0; i < n; ++i) {
      all = all * 31 + sum(names[i]->d_name, strlen(names[i]->d_name)) + names[i]->d_type;
      free(names[i]);
    }
    if (n >= 0) free(names);
    show_result(n);
    printf(" %016llx", static_cast<unsigned long long>(all));
    return;
  }
  const int fd = how == 1 ? open(path, O_RDONLY | O_DIRECTORY) : -1;
  DIR* dir = how == 1 ? (fd < 0 ? nullptr : fdopendir(fd)) : opendir(path);
  show_result(dir ? 0 : -1);
  if (!dir) return;
  play_with(dir);
  show_result(closedir(dir));
}
void do_copy_bytes(int slot) {
  const int out = memfd_create("out", MFD_CLOEXEC);
  off_t at = below(50000);
  printf("sendfile %d", slot);
  show_result(sendfile(out, descriptors[slot], below(2) ? &at : nullptr, some_size()));
  const ssize_t n = pread(out, buffer, sizeof buffer, 0);
  printf(" at %lld %016llx", static_cast<long long>(at),
         static_cast<unsigned long long>(sum(buffer, n > 0 ? n : 0)));
  close(out);
}

// The child's reads move the offset that it shares; what it opens is its own.
void do_fork(int slot) {
  fflush(stdout);
  const pid_t pid = fork();
  if (pid == 0) {
    printf("child: ");
    do_read(slot);
    printf(" child: ");
    do_open();
    fflush(stdout);
    _exit(3);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  printf(" fork = %d", status);
}
int changes = 0;  // calls that may have changed a file
void do_exec(int slot) {
  fflush(stdout);
  // A child of vfork(2) goes back to a changed file alone (doc/coverage.md).
  const bool forks = below(2) || changes > 0;
  const pid_t pid = forks ? fork() : vfork();
  if (pid == 0) {
    dup2(descriptors[slot], 0);
    execl("/proc/self/exe", "differential", "child", root, nullptr);
    _exit(9);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  printf(" exec = %d", status);
}
int child() {
  struct stat st;
  printf("child: fstat");
  show_result(fstat(0, &st));
  show_stat(st, nullptr);
  printf(" read");
  show_read(read(0, buffer, 1000), buffer);
  fflush(stdout);
  return 5;
}
// ---- changes: not in place of what is open

void do_write() {
  ++changes;
  char path[4096];
  some_path(path, sizeof path);
  printf("write %s", shown(path));
  if (is_open(path)) return;
  static constexpr int kFlags[] = {O_RDWR, O_WRONLY | O_TRUNC, O_WRONLY | O_APPEND, O_RDWR | O_CREAT,
                                   O_WRONLY | O_CREAT | O_TRUNC};
  const int fd = open(path, kFlags[below(5)], 0644);
  show_result(fd < 0 ? -1 : 0);
  if (fd < 0) return;
  const size_t n = below(2000);
  memset(buffer, static_cast<int>(below(256)), n);
  show_result(write(fd, buffer, n));
  struct stat st;
  fstat(fd, &st);
  show_stat(st, nullptr);
  close(fd);
}
void do_change() {
  ++changes;
  char path[4096], other[4096];
  some_path(path, sizeof path);
  some_path(other, sizeof other);
  const unsigned which = below(12);
  printf("change %u %s %s", which, shown(path), shown(other));
  if (is_open(path) || is_open(other)) return;
  const timespec times[2] = {{1200000000, 0}, {1200000000 + below(1000), 0}};
  if (which == 7) {
    snprintf(other, sizeof other, "%s/new.tmp", root);
    const int fd = open(other, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    show_result(write(fd, path, strlen(shown(path))));
    close(fd);
  }
  show_result(which == 0    ? rename(path, other)
              : which == 1  ? unlink(path)
              : which == 2  ? link(path, other)
              : which == 3  ? symlink("f1", path)
              : which == 4  ? truncate(path, below(40000))
              : which == 5  ? chmod(path, below(2) ? 0600 : 0644)
              : which == 6  ? utimensat(AT_FDCWD, path, times, below(2) ? AT_SYMLINK_NOFOLLOW : 0)
              : which == 7  ? rename(other, path)
              : which == 8  ? mkdir(path, 0755)
              : which == 9  ? (mkfifo(path, 0644) != 0 ? -1 : unlink(path))  // to open one would wait
              : which == 10 ? rmdir(path)
                            : remove(path));
}
void do_change_descriptor(int slot) {
  ++changes;
  struct stat there, here;
  printf("fchange %d", slot);
  if (fstat(descriptors[slot], &here) != 0 || !look(AT_FDCWD, opened_as[slot], 0, &there) ||
      here.st_ino != there.st_ino)
    return;
  const timespec times[2] = {{1300000000, 0}, {1300000000 + below(1000), 0}};
  const unsigned how = below(3);
  if (how == 0) return show_result(fchmod(descriptors[slot], below(2) ? 0600 : 0644));
  if (how == 1) return show_result(futimens(descriptors[slot], times));
  show_result(flistxattr(descriptors[slot], buffer, sizeof buffer));
}
void do_other(int slot) {
  struct statvfs a, b;
  const unsigned how = below(5);
  if (how == 0) {
    printf("fstatvfs %d", slot);
    if (fstatvfs(descriptors[slot], &a) == 0 && statvfs(root, &b) == 0) printf(" %d", a.f_fsid == b.f_fsid);
  } else if (how == 1) {
    printf("flock %d", slot);
    show_result(flock(descriptors[slot], LOCK_SH | LOCK_NB));
  } else if (how == 2) {
    printf("chdir");
    show_result(chdir(root));
  } else if (how == 3) {
    printf("fadvise, fsync %d %d", posix_fadvise(descriptors[slot], 0, 0, POSIX_FADV_WILLNEED),
           fsync(descriptors[slot]));
  } else {
    printf("write to a descriptor for reading");
    show_result(write(descriptors[slot], "x", 1));
    show_result(ftruncate(descriptors[slot], 0));
  }
}

void one_call() {
  const int slot = some_slot();
  const unsigned which = below(100);
  if (which < 22) return do_open();
  if (which < 46) return do_read(slot);
  if (which < 52) return do_seek(slot);
  if (which < 62 || (which >= 83 && which < 85)) return do_stat(slot);
  if (which < 66) return do_path_stat();
  if (which < 69) return do_copy_descriptor(slot);
  if (which < 71) return do_map(slot);
  if (which < 76) return do_list();
  if (which < 79) return do_copy_bytes(slot);
  if (which < 81) return do_fork(slot);
  if (which < 83) return do_exec(slot);
  if (which < 88) return do_stream();
  if (which < 91) return do_write();
  if (which < 95) return do_change();
  if (which < 97) return do_change_descriptor(slot);
  return do_other(slot);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && strcmp(argv[1], "child") == 0) {
    root = argv[2];
    started = time(nullptr) - 3600;
    return child();
  }
  if (argc < 4) return 2;
  state = strtoull(argv[2], nullptr, 0);
  root = argv[argc - 1];
  if (strcmp(argv[1], "make") == 0) return make_tree();
  started = time(nullptr) - 3600;  // what is newer was changed here
  for (int& fd : descriptors) fd = -1;
  if (chdir(root) != 0) return 1;
  const long calls = strtol(argv[3], nullptr, 0);
  for (long i = 0; i < calls; ++i) {
    printf("%ld ", i);
    one_call();
    putchar('\n');
  }
  // The library makes no process in any call.
  printf("children = %d\n", waitpid(-1, nullptr, WNOHANG | __WALL));
  return 0;
}
