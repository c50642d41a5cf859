// SPDX-License-Identifier: Apache-2.0
//
// calls - times single calls on files of a dataset.
//
//   calls DIR FILES OUTSIDE
//
// DIR has FILES files, named as bench/lib.py names them; OUTSIDE is a file that is in no dataset.  For each
// line "OP COUNT" on standard input it makes COUNT calls and prints the nanoseconds of one:
//
//   open        open and close a file, always the same
//   open-all    the same of all files in turn, in random order
//   outside     the same of OUTSIDE
//   relative    the same of a file in DIR by openat(2)
//   fopen       fopen and fclose of the same file
//   read        read 4 KiB from an open file, then seek back
//   pread       pread of 4 KiB at its beginning
//   held        the same of DIR/held, which the first line opens and reads
//   mmap        mmap and munmap of an open file's first 4 KiB
//   fstat       of an open file
//   stat        of a path
//   statx       of a path, what stat tells
//   access      of a path, whether it can be read
//   list        opendir, all names by readdir, closedir of the file's directory
//   dup         dup and close
//   spawn       posix_spawn /bin/true and wait for it
//
// Ends with its input.  Exits with 1 if a call failed, 2 on wrong usage.
#include <dirent.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <string_view>
#include <vector>

extern char** environ;

namespace {

constexpr unsigned kFilesInFolder = 250;  // as lib.FILES_IN_FOLDER
constexpr size_t kBlock = 4096, kPathRoom = 256;

struct Files {
  std::string dir, folder, first, below, outside;  // `below` is the first file's path relative to `dir`
  std::vector<char> paths;                         // kPathRoom bytes each, in random order
  size_t count = 0, at = 0;
  int dir_fd = -1, fd = -1;  // of `first`
  int held_fd = -1;
};
Files files;

[[noreturn]] void fail(const char* what) {
  fprintf(stderr, "calls: %s: %s\n", what, strerror(errno));
  exit(1);
}

void open_close(const char* path) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path);
  close(fd);
}

void open_one() { open_close(files.first.c_str()); }
void open_outside() { open_close(files.outside.c_str()); }
void open_all() {
  open_close(files.paths.data() + files.at * kPathRoom);
  if (++files.at == files.count) files.at = 0;
}
void open_relative() {
  const int fd = openat(files.dir_fd, files.below.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail("openat");
  close(fd);
}
void open_stream() {
  FILE* stream = fopen(files.first.c_str(), "re");
  if (!stream) fail("fopen");
  fclose(stream);
}
char block[kBlock];
void read_block() {
  if (read(files.fd, block, sizeof block) < 0 || lseek(files.fd, 0, SEEK_SET) < 0) fail("read");
}
void pread_block() {
  if (pread(files.fd, block, sizeof block, 0) < 0) fail("pread");
}
void pread_held() {
  if (pread(files.held_fd, block, sizeof block, 0) < 0) fail("held");
}
void map_block() {
  void* mapped = mmap(nullptr, kBlock, PROT_READ, MAP_PRIVATE, files.fd, 0);
  if (mapped == MAP_FAILED) fail("mmap");
  munmap(mapped, kBlock);
}
void fstat_one() {
  struct stat st;
  if (fstat(files.fd, &st) != 0) fail("fstat");
}
void stat_one() {
  struct stat st;
  if (stat(files.first.c_str(), &st) != 0) fail("stat");
}
void statx_one() {
  struct statx st;
  if (statx(AT_FDCWD, files.first.c_str(), 0, STATX_BASIC_STATS, &st) != 0) fail("statx");
}
void access_one() {
  if (access(files.first.c_str(), R_OK) != 0) fail("access");
}
void list_one() {
  DIR* dir = opendir(files.folder.c_str());
  if (!dir) fail("opendir");
  while (readdir(dir)) {
  }
  closedir(dir);
}
void dup_one() {
  const int fd = dup(files.fd);
  if (fd < 0) fail("dup");
  close(fd);
}
void spawn_true() {
  char program[] = "/bin/true";
  char* const words[] = {program, nullptr};
  pid_t pid;
  int status = 0;
  if (posix_spawn(&pid, program, nullptr, nullptr, words, environ) != 0) fail("posix_spawn");
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) fail("/bin/true");
}

struct Operation {
  std::string_view name;
  void (*call)();
};
constexpr Operation kOperations[] = {
    {"open", open_one},     {"open-all", open_all}, {"outside", open_outside}, {"relative", open_relative},
    {"fopen", open_stream}, {"read", read_block},   {"pread", pread_block},    {"mmap", map_block},
    {"fstat", fstat_one},   {"stat", stat_one},     {"statx", statx_one},      {"access", access_one},
    {"list", list_one},     {"dup", dup_one},       {"spawn", spawn_true},     {"held", pread_held},
};

std::string relative_name(size_t number) {
  char name[kPathRoom];
  snprintf(name, sizeof name, "%03zu/%06zu.bin", number / kFilesInFolder, number);
  return name;
}

void name_files(const char* dir, size_t count, const char* outside) {
  files.dir = dir;
  files.count = count;
  files.outside = outside;
  files.below = relative_name(0);
  files.first = files.dir + "/" + files.below;
  files.folder = files.first.substr(0, files.first.rfind('/'));
  std::vector<uint32_t> order(count);
  for (size_t i = 0; i < count; i++) order[i] = static_cast<uint32_t>(i);
  std::mt19937_64 random(1);
  for (size_t i = count; i > 1; i--) std::swap(order[i - 1], order[random() % i]);
  files.paths.resize(count * kPathRoom);
  for (size_t i = 0; i < count; i++) {
    const std::string path = files.dir + "/" + relative_name(order[i]);
    if (path.size() >= kPathRoom) {
      fprintf(stderr, "calls: %s is too long\n", path.c_str());
      exit(2);
    }
    memcpy(files.paths.data() + i * kPathRoom, path.c_str(), path.size() + 1);
  }
}

// Opened by the first line, not at the start: whoever starts this decides when the file may be staged.
void open_files() {
  if (files.fd >= 0) return;
  files.dir_fd = open(files.dir.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  files.fd = open(files.first.c_str(), O_RDONLY | O_CLOEXEC);
  files.held_fd = open((files.dir + "/held").c_str(), O_RDONLY | O_CLOEXEC);
  if (files.dir_fd < 0 || files.fd < 0) fail(files.first.c_str());
  std::vector<char> buffer(1 << 20);
  for (off_t at = 0; pread(files.held_fd, buffer.data(), buffer.size(), at) > 0;) at += 1 << 20;
}

double time_of(const Operation& operation, uint64_t count) {
  const auto begin = std::chrono::steady_clock::now();
  for (uint64_t i = 0; i < count; i++) operation.call();
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - begin;
  return taken.count() / static_cast<double>(count);
}

}  // namespace

int main(int argc, char** argv) {
  const size_t count = argc == 4 ? strtoul(argv[2], nullptr, 10) : 0;
  if (count == 0) {
    fprintf(stderr, "usage: calls DIR FILES OUTSIDE; see the head of bench/calls.cc\n");
    return 2;
  }
  name_files(argv[1], count, argv[3]);
  char name[32];
  unsigned long times = 0;
  while (scanf("%31s %lu", name, &times) == 2) {
    const Operation* found = nullptr;
    for (const Operation& operation : kOperations)
      if (operation.name == name) found = &operation;
    if (!found || times == 0) {
      fprintf(stderr, "calls: no operation '%s'\n", name);
      return 2;
    }
    open_files();
    printf("%.2f\n", time_of(*found, times));
    fflush(stdout);
  }
  return 0;
}
