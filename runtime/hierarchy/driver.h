// SPDX-License-Identifier: Apache-2.0
// What differs between kinds of storage that a tier can be on.
#pragma once

#include <cstdint>
#include <memory>

namespace monarch {

// How a copy's pages get to their device.
enum class Writing {
  kMemory,    // they do not: the pages are the storage
  kBuffered,  // through the page cache, later; that can fail, and is then known by sync_file_range(2) only
  kDirect,    // O_DIRECT is set on the copy: past the page cache
};

// Stateless; all members may be called from any thread.
class Driver {
 public:
  virtual ~Driver() = default;
  virtual const char* name() const = 0;
  // Bytes that the file system of the directory `dir` can still take from us; its size is *size.
  virtual uint64_t free_bytes(int dir, uint64_t* size) const = 0;
  // Allocates `bytes` for the open file `fd`, so that writing it cannot lack space, where that is cheap; else
  // the writes tell. Returns how many it has allocated: all or none. -1 and errno, as fallocate(2).
  virtual int64_t allocate(int fd, uint64_t bytes) const = 0;
  // How a file of `bytes` is best written; sets O_DIRECT on `fd` if that is it. A file that somebody waits
  // for is about to be read, so its pages are worth keeping.
  virtual Writing prepare(int fd, uint64_t bytes, bool awaited) const = 0;
};

// The driver for the file system that holds the directory `dir`: tmpfs, or any with names, blocks and a page
// cache.
std::unique_ptr<Driver> driver_of(int dir);

}  // namespace monarch
