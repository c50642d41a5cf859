// SPDX-License-Identifier: Apache-2.0
// Jobs that name no dataset may have one by default (monarch.conf(5), default_dataset). Which job has which
// is for monarchd to say; here it is seen whether there is anything to ask, as for most sites there is not.
#include <stdio.h>
#include <string.h>

#include "spank/plugin.h"

namespace monarch::spank {
namespace {

constexpr char kKey[] = "default_dataset";

bool is_key(const char* text) {
  text += strspn(text, " \t");
  if (strncmp(text, kKey, sizeof kKey - 1) != 0) return false;
  text += sizeof kKey - 1;
  text += strspn(text, " \t");
  return *text == '=' || *text == ':';
}

}  // namespace

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
