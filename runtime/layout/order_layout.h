// SPDX-License-Identifier: Apache-2.0
// The order in which a job's processes will open files, as they tell it to the agent.
//
// The run directory's file `order` is a letter box. Who tells something appends whole pieces under flock(2);
// the agent takes all that is there, and empties the file. A piece is an OrderHeader and so many references
// of catalog entries. The file is the user's, and may say anything: a piece that makes no sense is dropped
// with all behind it, and a wrong reference costs speed only.
#pragma once

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "runtime/layout/catalog_layout.h"

namespace monarch {

inline constexpr char kOrderFile[] = "order";
inline constexpr uint64_t kOrderMagic = 0x4f484352414e4f4d;  // "MONARCHO", little-endian
inline constexpr uint32_t kOrderVersion = 1;
inline constexpr uint32_t kMostInPiece = 1 << 18;
inline constexpr uint64_t kMostOrderBytes = 4 << 20;  // of the file: what is behind that is not read

struct OrderHeader {
  uint64_t magic = kOrderMagic;
  uint32_t version = kOrderVersion;
  uint32_t count = 0;  // references, 4 bytes each, that follow
  uint32_t rank = 0;
  uint32_t epoch = 0;
  uint64_t first = 0;  // how many of this rank's in this epoch come before them
};
static_assert(sizeof(OrderHeader) == 32);

// Appends a piece. 0, or an error; EAGAIN: the agent has to take what is there first, or somebody else
// writes. On a failure nothing of it is there. libc only; never waits.
inline int post_order(int run_dir, const OrderHeader& header, const Ref* refs) {
  const int file = openat(run_dir, kOrderFile, O_WRONLY | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (file < 0) return errno;
  const size_t bytes = sizeof header + header.count * sizeof *refs;
  const iovec parts[] = {{const_cast<OrderHeader*>(&header), sizeof header},
                         {const_cast<Ref*>(refs), header.count * sizeof *refs}};
  off_t end = 0;
  int error = 0;
  if (flock(file, LOCK_EX | LOCK_NB) != 0 || (end = lseek(file, 0, SEEK_END)) < 0) {
    error = errno;
  } else if (static_cast<uint64_t>(end) + bytes > kMostOrderBytes) {
    error = EAGAIN;
  } else if (const ssize_t n = writev(file, parts, 2); n != static_cast<ssize_t>(bytes)) {
    error = n >= 0 ? ENOSPC : errno;
    if (ftruncate(file, end) == 0 && error == ENOSPC && end > 0) error = EAGAIN;
  }
  flock(file, LOCK_UN);  // before close(2), which tells the agent
  close(file);
  return error;
}

}  // namespace monarch
