// SPDX-License-Identifier: Apache-2.0
// Reading what the kernel tells as text: the words of /proc/self/mountinfo and /proc/locks.
#pragma once

#include "preload/client/room.h"
#include "preload/next/kernel.h"

namespace monarch::preload {

// Calls `use` with the number of each word in its line, from 0, and the word, which it may change. False: the
// file cannot be read to its end. Changes errno.
template <typename Use>
bool each_word(const char* file, Use use) {
  const Own text_file(open_own(AT_FDCWD, file, O_RDONLY));
  if (text_file.fd < 0) return false;
  Room room;
  char* const word = room.take(kPathBytes);
  char text[256];
  size_t bytes = 0;
  int number = 0;
  long n = -1;
  while (word && (n = syscall(SYS_read, text_file.fd, text, sizeof text)) > 0)
    for (const char* p = text; p < text + n; ++p) {
      const bool ends = *p == ' ' || *p == '\n';
      if (!ends && bytes < kPathBytes - 1) word[bytes++] = *p;
      if (!ends) continue;
      word[bytes] = '\0';
      if (bytes > 0) use(number++, word);
      bytes = 0;
      if (*p == '\n') number = 0;
    }
  return n == 0;
}

// The number that a word begins with.
inline uint64_t number_in(const char* word) {
  uint64_t number = 0;
  for (; *word >= '0' && *word <= '9'; ++word) number = number * 10 + static_cast<uint64_t>(*word - '0');
  return number;
}

}  // namespace monarch::preload
