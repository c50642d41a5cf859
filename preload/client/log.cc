// SPDX-License-Identifier: Apache-2.0
#include "preload/client/client.h"
#include "preload/client/room.h"
#include "preload/next/kernel.h"

namespace monarch::preload {

void write_line(const char* log, std::initializer_list<std::string_view> words) {
  constexpr size_t kMostBytes = 2 * kPathBytes;
  Room room;
  char* const line = room.take(kMostBytes);
  if (!line) return;
  size_t used = 0;
  const auto add = [&](const std::string_view& text) {
    for (size_t i = 0; i < text.size() && used < kMostBytes - 1; ++i)
      line[used++] = text[i] == '\n' ? '?' : text[i];
  };
  char pid[24];
  put_number(pid, syscall(SYS_getpid));
  add("monarch[");
  add(pid);
  add("] ");
  for (const std::string_view& word : words) add(word);
  line[used++] = '\n';
  const KeepErrno errno_stays;
  constexpr int kFlags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
  const bool to_stderr = strcmp(log, "stderr") == 0;
  const Own file(to_stderr ? -1 : static_cast<int>(syscall(SYS_openat, AT_FDCWD, log, kFlags, 0666)));
  syscall(SYS_write, to_stderr ? STDERR_FILENO : file.fd, line, used);
}

}  // namespace monarch::preload
