// SPDX-License-Identifier: Apache-2.0
// MONARCH_IO_LOG: a line per open below a root, for who wants to know why. One write(2) per line, on a file
// that is opened for appending and closed for each: no lock, no buffer, no descriptor kept.
#include <errno.h>
#include <fcntl.h>
#include <string.h>

#include "preload/preload.h"

namespace monarch::preload {
namespace {

constexpr size_t kWordsBytes = 256;  // beside the path

struct Line {
  char text[kFullPathBytes + kWordsBytes];
  size_t n = 0;

  void add(const char* s, size_t len) {
    if (len > sizeof text - 1 - n) len = sizeof text - 1 - n;
    memcpy(text + n, s, len);
    n += len;
  }
  void add(const char* s) { add(s, strlen(s)); }
  // One line per open, whatever is in the name.
  void add_name(const char* s, size_t len) {
    for (size_t i = 0; i < len; ++i) add(s[i] == '\n' ? "?" : s + i, 1);
  }
  void add(unsigned long number) {
    char digits[24];
    size_t at = sizeof digits;
    do digits[--at] = static_cast<char>('0' + number % 10);
    while (number /= 10);
    add(digits + at, sizeof digits - at);
  }
  void write_to(const char* log) {
    text[n++] = '\n';
    const int saved = errno;
    const bool to_stderr = strcmp(log, "stderr") == 0;
    const long fd = to_stderr
                        ? 2
                        : syscall(SYS_openat, AT_FDCWD, log,
                                  O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666);
    if (fd >= 0) syscall(SYS_write, fd, text, n);
    if (fd >= 0 && !to_stderr) syscall(SYS_close, fd);
    errno = saved;
  }
};

Line begin() {
  Line line;
  line.add("monarch[");
  line.add(static_cast<unsigned long>(syscall(SYS_getpid)));
  line.add("] ");
  return line;
}

}  // namespace

__attribute__((noinline)) void log_process(const char* log, const char* what) {
  Line line = begin();
  line.add(what);
  line.write_to(log);
}

__attribute__((noinline)) void log_open(const Client& c, const RelPath& path, const Answer& answer) {
  Line line = begin();
  const char* root = root_path(c, path.root);
  if (root) line.add_name(root, strlen(root));
  line.add("/");
  line.add_name(path.path, path.len);
  if (answer.placed) {
    line.add(": tier ");
    line.add(c.catalog.header().tiers[answer.tier].name);
  } else {
    line.add(": PFS, ");
    line.add(name_of(answer.why));
  }
  line.write_to(c.log);
}

}  // namespace monarch::preload
