// SPDX-License-Identifier: Apache-2.0
// What the readers in C print of a file, and how those that use read(2) come to it.
#pragma once

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

static inline uint32_t sum_of(uint32_t sum, const char* data, size_t size) {
  for (size_t i = 0; i < size; ++i) sum = sum * 31 + (unsigned char)data[i];
  return sum;
}

static inline void print_sum(const char* path, uint64_t size, uint32_t sum) {
  printf("%s %llu %08x\n", path, (unsigned long long)size, sum);
}

// Reads `fd` to its end and prints its line; -1 if a read fails.
static inline int read_sum(int fd, const char* path) {
  static char buffer[1 << 16];
  uint64_t size = 0;
  uint32_t sum = 0;
  ssize_t got;
  while ((got = read(fd, buffer, sizeof buffer)) > 0) {
    sum = sum_of(sum, buffer, (size_t)got);
    size += (uint64_t)got;
  }
  if (got < 0) return -1;
  print_sum(path, size, sum);
  return 0;
}
