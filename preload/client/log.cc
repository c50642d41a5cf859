// SPDX-License-Identifier: Apache-2.0
#include "preload/client/log.h"

#include "preload/next/kernel.h"

namespace monarch::preload {

Line::Line() : text_(room_.take(kMostBytes)) {
  char digits[24];
  size_t at = sizeof digits;
  long pid = syscall(SYS_getpid);
  do digits[--at] = static_cast<char>('0' + pid % 10);
  while (pid /= 10);
  add("monarch[");
  add(digits + at, sizeof digits - at);
  add("] ");
}

void Line::add(const char* text, size_t bytes) {
  for (size_t i = 0; text_ && i < bytes && used_ < kMostBytes - 1; ++i)
    text_[used_++] = text[i] == '\n' ? '?' : text[i];
}

void Line::write_to(const char* log) {
  if (!text_) return;
  text_[used_++] = '\n';
  const KeepErrno errno_stays;
  const bool to_stderr = strcmp(log, "stderr") == 0;
  const long fd = to_stderr
                      ? 2
                      : syscall(SYS_openat, AT_FDCWD, log,
                                O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
  if (fd >= 0) syscall(SYS_write, fd, text_, used_);
  if (fd >= 0 && !to_stderr) syscall(SYS_close, fd);
}

}  // namespace monarch::preload
