// SPDX-License-Identifier: Apache-2.0
// Reading what the kernel tells as text: the words of /proc/self/mountinfo, /proc/locks and
// /proc/self/fdinfo/N.
#pragma once

#include "preload/client/room.h"
#include "preload/next/kernel.h"
#include "preload/resolve/paths.h"

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

// Anybody's lock on an inode of one of these numbers; true also if it cannot be told.
inline bool may_be_locked(uint64_t ino, uint64_t or_ino) {
  constexpr int kInode = 5;
  bool found = false;
  return !each_word("/proc/locks", [&](int number, const char* word) {
    const char* colon = number == kInode ? strrchr(word, ':') : nullptr;
    const uint64_t locked = colon ? number_in(colon + 1) : 0;
    found |= colon && (locked == ino || locked == or_ino);
  }) || found;
}

struct Lock {
  char kind;  // 'P'OSIX, 'F'LOCK, 'O'FDLCK, or a lease's
  bool writes;
  uint64_t first;
  uint64_t last;  // 0: the end of the file, wherever that is
};

// Calls `use` with each lock that goes once the descriptor is another file's: those of what is open,
// whichever process took them, and this process's on the file. A line is "lock:\t1: POSIX  ADVISORY  READ
// 1234 fd:01:5678 0 EOF". The result as each_word's.
template <typename Use>
bool each_lock(int fd, Use use) {
  constexpr int kKind = 1, kAccess = 3, kFirst = 6, kLast = 7;
  constexpr char kInfo[] = "/proc/self/fdinfo/", kLine[] = "lock:";
  char file[sizeof kInfo + kFdLinkBytes];
  memcpy(file, kInfo, sizeof kInfo - 1);
  put_number(file + sizeof kInfo - 1, fd);
  Lock lock = {};
  bool is_lock = false;
  return each_word(file, [&](int number, const char* word) {
    if (number == 0) is_lock = strncmp(word, kLine, sizeof kLine - 1) == 0;
    if (number == kKind) lock.kind = *word;
    if (number == kAccess) lock.writes = *word == 'W';
    if (number == kFirst) lock.first = number_in(word);
    if (number == kLast) lock.last = number_in(word);
    if (number == kLast && is_lock) use(static_cast<const Lock&>(lock));
  });
}

}  // namespace monarch::preload
