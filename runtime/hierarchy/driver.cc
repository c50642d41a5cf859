// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/driver.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cerrno>

#include "runtime/base/memory.h"
#include "runtime/base/os.h"

namespace monarch {
namespace {

// Below this, the page cache and fewer, later writes are cheaper than O_DIRECT.
constexpr uint64_t kDirectBytes = 8 << 20;

class DirectoryDriver : public Driver {
 public:
  const char* name() const override { return "directory"; }
  uint64_t free_bytes(int dir, uint64_t* size) const override {
    struct statvfs fs;
    if (os::fstatvfs(dir, &fs) != 0) return 0;
    *size = uint64_t{fs.f_blocks} * fs.f_frsize;
    return uint64_t{fs.f_bavail} * fs.f_frsize;
  }
  int64_t allocate(int fd, uint64_t bytes) const override {
    if (os::fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) == 0)
      return static_cast<int64_t>(bytes);
    return errno == EOPNOTSUPP ? 0 : -1;
  }
  Writing prepare(int fd, uint64_t bytes, bool awaited) const override {
    if (!awaited && bytes >= kDirectBytes && os::set_direct(fd, true) == 0) return Writing::kDirect;
    return Writing::kBuffered;
  }
};

// Its pages are memory, which the node may lack long before the file system is full.
class TmpfsDriver : public DirectoryDriver {
 public:
  const char* name() const override { return "tmpfs"; }
  uint64_t free_bytes(int dir, uint64_t* size) const override {
    return std::min(DirectoryDriver::free_bytes(dir, size), spare_memory());
  }
  // Memory is given page by page, by fallocate(2) as by write(2): some 30 ms for 100 MiB, twice.
  int64_t allocate(int, uint64_t) const override { return 0; }
  Writing prepare(int, uint64_t, bool) const override { return Writing::kMemory; }
};

}  // namespace

std::unique_ptr<Driver> driver_of(int dir) {
  struct statfs fs;
  if (os::fstatfs(dir, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == RAMFS_MAGIC))
    return std::make_unique<TmpfsDriver>();
  return std::make_unique<DirectoryDriver>();
}

}  // namespace monarch
