// SPDX-License-Identifier: Apache-2.0
// What the readers in C and C++ print of a file.
#pragma once

#include <stdint.h>
#include <stdio.h>

static inline uint32_t sum_of(uint32_t sum, const char* data, size_t size) {
  for (size_t i = 0; i < size; ++i) sum = sum * 31 + (unsigned char)data[i];
  return sum;
}

static inline void print_sum(const char* path, uint64_t size, uint32_t sum) {
  printf("%s %llu %08x\n", path, (unsigned long long)size, sum);
}
