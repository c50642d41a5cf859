// SPDX-License-Identifier: Apache-2.0
//
// walk_tree DIR - walks a tree, again and again.
//
// For each line on standard input it does what the line says and prints one line, the seconds that it took
// and the number of files:
//
//   walk    opendir, readdir and stat of each file, as os.walk and os.stat do
//   open    open and close each file
//
// Ends with its input.  Exits with 1 if a call failed, 2 on wrong usage.
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

[[noreturn]] void fail(const std::string& path) {
  fprintf(stderr, "walk_tree: %s: %s\n", path.c_str(), strerror(errno));
  exit(1);
}

void stat_file(const std::string& path) {
  struct stat st;
  if (stat(path.c_str(), &st) != 0) fail(path);
}

void open_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) fail(path);
  close(fd);
}

// Calls `visit` with each file below `path`; returns their number.
uint64_t walk(std::string* path, void (*visit)(const std::string&)) {
  DIR* dir = opendir(path->c_str());
  if (!dir) fail(*path);
  uint64_t files = 0;
  const size_t length = path->size();
  while (const dirent* e = readdir(dir)) {
    if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0) continue;
    *path += '/';
    *path += e->d_name;
    if (e->d_type == DT_DIR) {
      files += walk(path, visit);
    } else {
      visit(*path);
      ++files;
    }
    path->resize(length);
  }
  closedir(dir);
  return files;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: walk_tree DIR; see the head of bench/walk_tree.cc\n");
    return 2;
  }
  char word[16];
  while (scanf("%15s", word) == 1) {
    if (strcmp(word, "walk") != 0 && strcmp(word, "open") != 0) {
      fprintf(stderr, "walk_tree: no action '%s'\n", word);
      return 2;
    }
    std::string path = argv[1];
    const auto begin = std::chrono::steady_clock::now();
    const uint64_t files = walk(&path, word[0] == 'w' ? stat_file : open_file);
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin;
    printf("%.6f %llu\n", taken.count(), static_cast<unsigned long long>(files));
    fflush(stdout);
  }
  return 0;
}
