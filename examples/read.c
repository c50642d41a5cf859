/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads files by libmonarch, in the order that it has told Monarch, and prints each one's length and sum of bytes.
 * In a job of Monarch's they come from the node's tiers, else from where they are.
 *   cc -o read read.c $(pkg-config --cflags --libs libmonarch)
 *   ./read FILE...
 */
#include <libmonarch.h>
#include <stdio.h>

int main(int argc, char **argv) {
  static unsigned char buffer[1 << 16];
  if (monarch_hint((const char *const *)argv + 1, argc - 1, NULL) < 0) perror("no hint");
  for (int i = 1; i < argc; ++i) {
    unsigned long sum = 0;
    int64_t offset = 0;
    ssize_t n;
    while ((n = monarch_read(argv[i], buffer, sizeof buffer, offset)) > 0) {
      for (ssize_t k = 0; k < n; ++k) sum += buffer[k];
      offset += n;
    }
    if (n < 0) {
      perror(argv[i]);
      return 1;
    }
    printf("%lld %lu\n", (long long)offset, sum);
  }
  return 0;
}
