// SPDX-License-Identifier: Apache-2.0
// In a task, as the user: the environment that makes it use the agent, or not.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr size_t kListBytes = 65536;

// `list` (separated by colons or spaces) without our library.
void without(const char* list, const char* library, char* out) {
  size_t n = 0;
  while (*list) {
    const size_t len = strcspn(list, ": ");
    if (len > 0 && (strlen(library) != len || strncmp(list, library, len) != 0)) {
      if (n > 0) out[n++] = ':';
      memcpy(out + n, list, len);
      n += len;
    }
    list += len + (list[len] != '\0');
  }
  out[n] = '\0';
}

// A step of a job with Monarch that is to go without.
void unset_environment(spank_t sp) {
  char* list = static_cast<char*>(malloc(2 * kListBytes));
  if (!list) return;
  if (spank_getenv(sp, "LD_PRELOAD", list, kListBytes) == ESPANK_SUCCESS && strstr(list, "libmonarch_preload.so")) {
    // The library's place is not known here: the entry that ends in its name.
    for (char* at = list; *at;) {
      const size_t len = strcspn(at, ": ");
      char* end = at + len;
      const char* name = "/libmonarch_preload.so";
      if (len > strlen(name) && strncmp(end - strlen(name), name, strlen(name)) == 0) {
        char library[4096];
        snprintf(library, sizeof library, "%.*s", static_cast<int>(len), at);
        without(list, library, list + kListBytes);
        if (list[kListBytes]) spank_setenv(sp, "LD_PRELOAD", list + kListBytes, 1);
        else spank_unsetenv(sp, "LD_PRELOAD");
        break;
      }
      at = end + (*end != '\0');
    }
  }
  free(list);
  spank_unsetenv(sp, "MONARCH_IO_RUN_DIR");
}

}  // namespace

void set_task_environment(spank_t sp) {
  for (const char* name : {"MONARCH_IO_OPT_DATASET", "MONARCH_IO_OPT_NO_MONARCH", "MONARCH_IO_OPT_CHECK"})
    spank_unsetenv(sp, name);
  if (request().refused) return unset_environment(sp);
  const char* run_dir = started_run_dir();
  const char* library = preload_library();
  if (!run_dir[0] || !library[0]) return;
  char* list = static_cast<char*>(malloc(kListBytes));
  char* own = static_cast<char*>(malloc(kListBytes + 4096));
  if (list && own) {
    // After the user's own: a sanitizer's runtime must come first, and wrappers such as Darshan's see the
    // program's calls before they are redirected.
    own[0] = '\0';
    if (spank_getenv(sp, "LD_PRELOAD", list, kListBytes) == ESPANK_SUCCESS) without(list, library, own);
    const size_t n = strlen(own);
    snprintf(own + n, kListBytes + 4096 - n, "%s%s", n ? ":" : "", library);
    spank_setenv(sp, "LD_PRELOAD", own, 1);
  }
  free(own);
  free(list);
  spank_setenv(sp, "MONARCH_IO_RUN_DIR", run_dir, 1);
}

}  // namespace monarch::spank
