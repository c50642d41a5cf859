// SPDX-License-Identifier: Apache-2.0
// Copying by io_uring(7): several reads and the writes that follow them in flight at a time, without a thread
// for each.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

namespace monarch {

struct UringRange {
  int from = -1, to = -1;
  uint64_t offset = 0, bytes = 0;  // the same place in both files
  bool whole_blocks = false;       // the last write is padded with zeros to whole blocks of 4096 bytes
};

// A ring for one thread.
class Uring {
 public:
  // With one buffer, of `piece` bytes each, for each piece that is to be in flight at a time. nullptr: built
  // without liburing, or the kernel or its policy (seccomp, kernel.io_uring_disabled) refuses.
  static std::unique_ptr<Uring> create(char* const* buffers, unsigned count, size_t piece);
  virtual ~Uring() = default;

  using Copied = std::function<void(uint64_t offset, std::string_view piece)>;
  // Copies a range piece by piece. `before` is asked before each, and may wait; false ends the copying.
  // `after` is called when one has been copied, with its place and its bytes. Returns how many bytes from the
  // range's start on have been copied without a gap. What went wrong with the next one is not told: whoever
  // needs to know makes the calls again, one by one.
  virtual uint64_t copy(const UringRange& range, const std::function<bool(uint64_t bytes)>& before,
                        const Copied& after) = 0;
};

}  // namespace monarch
