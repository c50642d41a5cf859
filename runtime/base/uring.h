// SPDX-License-Identifier: Apache-2.0
// Copying by io_uring(7): several reads and the writes that follow them in flight at a time, without a thread
// for each.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>

namespace monarch {

// One read and the write of what it returned to the same offset of another file.
struct UringPiece {
  off_t offset = 0;
  size_t read_bytes = 0;
  size_t write_bytes = 0;  // >= read_bytes where the end is padded to whole blocks
  char* buffer = nullptr;  // of write_bytes at least
  bool done = false;       // both were made, in full
};

// A ring for one thread.
class Uring {
 public:
  // nullptr: built without liburing, or the kernel or its policy (seccomp, kernel.io_uring_disabled) refuses.
  static std::unique_ptr<Uring> create(unsigned pieces);
  virtual ~Uring() = default;

  // Copies `count` pieces, at most as many as the ring was made for, and waits for all; calls `done` after
  // each that was copied. What went wrong with one is not told: whoever needs to know makes the calls again,
  // one by one.
  virtual void copy(int from, int to, UringPiece* pieces, unsigned count,
                    const std::function<void()>& done) = 0;
};

}  // namespace monarch
