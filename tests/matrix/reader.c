// SPDX-License-Identifier: Apache-2.0
// reader MODE FILE...: reads files by open(2) and read(2) (open), by syscall(2) (syscall) or by mmap (mmap), and
// prints a line about each.  Built against several C libraries, and statically.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sums.h"

static int open_as(const char* mode, const char* path) {
  if (strcmp(mode, "syscall") != 0) return open(path, O_RDONLY);
  return (int)syscall(SYS_openat, AT_FDCWD, path, O_RDONLY, 0);
}

static void map_all(int fd, const char* path) {
  struct stat st;
  if (fstat(fd, &st) != 0) exit(4);
  size_t size = (size_t)st.st_size;
  char* data = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
  if (data == MAP_FAILED) exit(5);
  print_sum(path, size, sum_of(0, data, size));
  munmap(data, size);
}

int main(int argc, char** argv) {
  for (int i = 2; i < argc; ++i) {
    int fd = open_as(argv[1], argv[i]);
    if (fd < 0) return 2;
    if (strcmp(argv[1], "mmap") == 0) {
      map_all(fd, argv[i]);
    } else if (read_sum(fd, argv[i]) != 0) {
      return 3;
    }
    close(fd);
  }
  return 0;
}
