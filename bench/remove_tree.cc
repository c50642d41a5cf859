// SPDX-License-Identifier: Apache-2.0
// remove_tree DIR - removes the tree as Monarch's epilog does, and prints the seconds that it took.
#include "runtime/base/remove_tree.h"

#include <fcntl.h>

#include <chrono>
#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: remove_tree DIR\n");
    return 2;
  }
  const auto begin = std::chrono::steady_clock::now();
  const monarch::Status removed = monarch::remove_tree(AT_FDCWD, argv[1]);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  if (!removed.ok()) {
    std::fprintf(stderr, "remove_tree: %s\n", removed.error().text.c_str());
    return 1;
  }
  std::printf("%.3f\n", took.count());
  return 0;
}
