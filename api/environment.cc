// SPDX-License-Identifier: Apache-2.0
// The environment of a process that may be without hooks, where preload/client/environment.cc is for one that
// has them.
#include "preload/client/environment.h"

#include <stdlib.h>
#include <string.h>

#include "preload/decide/returns.h"

extern "C" char** environ;

namespace monarch::preload {

bool save_environment() { return environ != nullptr; }

const char* saved_variable(const char* name) {
  const char* value = getenv(name);
  return value && *value ? value : nullptr;
}

bool is_disabled() {
  const char* value = saved_variable("MONARCH_IO_DISABLE");
  return value && strcmp(value, "0") != 0;
}

bool has_hooks() { return false; }

// No descriptor of a copy is followed, and none that was inherited counted.
void find_open_files() {}

}  // namespace monarch::preload
