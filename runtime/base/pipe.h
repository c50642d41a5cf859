// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string_view>

#include "runtime/base/fd.h"
#include "runtime/base/result.h"

namespace monarch {

// The read end of a pipe that has these bytes in it, at most a page of them, and then its end.
inline Result<Fd> pipe_with(std::string_view bytes) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_error("pipe");
  Fd read(ends[0]);
  const Fd write(ends[1]);
  if (::write(write.get(), bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size()))
    return errno_error("fill a pipe");
  return read;
}

}  // namespace monarch
