// SPDX-License-Identifier: Apache-2.0
// uring open|read FILE...: reads files with io_uring, which also opens them (open), or reads what open(2) opened.
#define _GNU_SOURCE
#include <fcntl.h>
#include <liburing.h>
#include <string.h>
#include <unistd.h>

#include "sums.h"

static char buffer[1 << 16];

static int finish(struct io_uring* ring) {
  struct io_uring_cqe* done;
  if (io_uring_submit(ring) != 1 || io_uring_wait_cqe(ring, &done) != 0) return -1;
  int result = done->res;
  io_uring_cqe_seen(ring, done);
  return result;
}

static int open_as(struct io_uring* ring, const char* mode, const char* path) {
  if (strcmp(mode, "open") != 0) return open(path, O_RDONLY);
  io_uring_prep_openat(io_uring_get_sqe(ring), AT_FDCWD, path, O_RDONLY, 0);
  return finish(ring);
}

int main(int argc, char** argv) {
  struct io_uring ring;
  if (io_uring_queue_init(4, &ring, 0) != 0) return 77;
  for (int i = 2; i < argc; ++i) {
    int fd = open_as(&ring, argv[1], argv[i]);
    if (fd < 0) return 2;
    uint64_t size = 0;
    uint32_t sum = 0;
    int got;
    do {
      io_uring_prep_read(io_uring_get_sqe(&ring), fd, buffer, sizeof buffer, size);
      got = finish(&ring);
      if (got < 0) return 3;
      sum = sum_of(sum, buffer, (size_t)got);
      size += (uint64_t)got;
    } while (got > 0);
    print_sum(argv[i], size, sum);
    close(fd);
  }
  io_uring_queue_exit(&ring);
  return 0;
}
