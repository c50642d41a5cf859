// SPDX-License-Identifier: Apache-2.0
// namespace here|apart LIBRARY FILE...: has a library read files, in the program's own namespace or in one of its own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  Lmid_t where = strcmp(argv[1], "apart") == 0 ? LM_ID_NEWLM : LM_ID_BASE;
  void* library = dlmopen(where, argv[2], RTLD_NOW);
  int (*entry)(int, char**) = library ? (int (*)(int, char**))dlsym(library, "read_files") : NULL;
  if (!entry) {
    fprintf(stderr, "%s\n", dlerror());
    return 3;
  }
  return entry(argc - 3, argv + 3);
}
