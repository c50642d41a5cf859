// SPDX-License-Identifier: Apache-2.0
// MONARCH_IO_LOG: a line per open below a root, for who wants to know why. One write(2) per line, on a file
// that is opened for appending and closed for each: no lock, no buffer, no descriptor kept.
#pragma once

#include <stddef.h>

#include "preload/client/room.h"

namespace monarch::preload {

class Line {
 public:
  Line();  // with the process's id
  // One line per open, whatever is in a name.
  void add(const char* text, size_t bytes);
  void add(const char* text) { add(text, strlen(text)); }
  // `log`: "stderr" or a file. errno stays as it is.
  void write_to(const char* log);

 private:
  static constexpr size_t kMostBytes = 2 * 4096 + 256;  // a path, and words
  Room room_;
  char* const text_;  // nullptr: no memory, nothing is written
  size_t used_ = 0;
};

}  // namespace monarch::preload
