// SPDX-License-Identifier: Apache-2.0
// Jobs that name no dataset may have one by default (monarch.conf(5), default_dataset). Which job has which
// is for monarchd to say; here it is seen whether there is anything to ask, as for most sites there is not.
#include <stdio.h>
#include <string.h>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

bool is_key(const char* text) { return value_in(text, "default_dataset"); }

}  // namespace

const char* value_in(const char* line, const char* key) {
  line += strspn(line, " \t");
  if (strncmp(line, key, strlen(key)) != 0) return nullptr;
  line += strlen(key);
  line += strspn(line, " \t");
  return *line == '=' || *line == ':' ? line + 1 + strspn(line + 1, " \t") : nullptr;
}

bool may_have_default() {
  for (int i = 0; i < settings().word_count; ++i) {
    const char* dot = strchr(settings().words[i], '.');
    for (; dot; dot = strchr(dot + 1, '.'))
      if (is_key(dot + 1)) return true;
  }
  char line[512];
  FILE* config = fopen(settings().config, "re");
  bool found = false, begins = true;  // a line may be longer
  while (config && !found && fgets(line, sizeof line, config)) {
    found = begins && is_key(line);
    begins = strchr(line, '\n') != nullptr;
  }
  if (config) fclose(config);
  return found;
}

}  // namespace monarch::spank
