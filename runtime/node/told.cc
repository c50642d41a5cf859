// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/told.h"

#include <cstdlib>
#include <cstring>

namespace monarch {

std::string take_told(const char* variable) {
  char* value = ::getenv(variable);
  if (!value) return "";
  std::string taken = value;
  ::explicit_bzero(value, taken.size());  // /proc/PID/environ shows that memory
  ::unsetenv(variable);
  return taken;
}

}  // namespace monarch
