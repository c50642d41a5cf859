// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/run_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "runtime/base/mountinfo.h"
#include "runtime/base/os.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {
namespace {

Error is_mounted(const std::string& path) {
  return Error{EXDEV, path + ": a user has mounted a file system there"};
}

bool same_mount(const Fd& a, const Fd& b) {
  const int64_t id = os::mount_id(a.get());
  return id >= 0 && id == os::mount_id(b.get());
}

constexpr int kSealTries = 3;  // what is written takes a moment

// Before what was written at once.
struct Seal {
  uint64_t bytes, sum;
};

uint64_t sum_of(const void* data, size_t bytes) {  // FNV-1a
  uint64_t sum = 0xcbf29ce484222325;
  for (size_t i = 0; i < bytes; ++i) sum = (sum ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001b3;
  return sum;
}

}  // namespace

std::vector<std::string> run_file_names() {
  std::vector<std::string> names = {"board",  "catalog", "monarchd.log", "directories", "state",
                                    "series", "nodes",   "began",        "told",        "order"};
  for (uint32_t k = 0; k < kMaxGenerations; ++k)
    for (const char* index : {"index.", "inodes."}) names.push_back(index + std::to_string(k));
  for (const char* space : kSpaceNames)
    for (uint32_t k = 0; k < kMaxSegments; ++k) names.push_back(space + ("." + std::to_string(k)));
  return names;
}

Result<Fd> begin_run_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, kRunFileMode));
  struct stat st;
  if (!file || ::fstat(file.get(), &st) != 0) return errno_error("make " + path);
  if (!S_ISREG(st.st_mode) || st.st_size != 0) return errno_error("make " + path, EEXIST);
  return file;
}

// In a directory of root's it stays.
void drop_run_file(const Fd& file, const std::string& path) {
  const int error = errno;
  (void)!::ftruncate(file.get(), 0);
  ::unlink(path.c_str());
  errno = error;
}

// Its file system is that of the directory above it, or one that root has mounted: FUSE is all that a user
// can.
Result<Fd> open_run_dir(const std::string& path) {
  constexpr int kLook = O_PATH | O_DIRECTORY | O_CLOEXEC;  // asks nobody what is mounted there
  const size_t slash = path.rfind('/');
  const Fd above(::open(slash == 0 ? "/" : path.substr(0, slash).c_str(), kLook));
  Fd dir(above ? ::openat(above.get(), path.c_str() + slash + 1, kLook | O_NOFOLLOW) : -1);
  if (!dir) return errno_error("read " + path);
  MountLine mount;
  if (!same_mount(dir, above) &&
      (!find_mount(os::mount_id(dir.get()), &mount) || mount.type.starts_with("fuse")))
    return is_mounted(path);
  return dir;
}

Status write_plain(int run_dir, const std::string& name, const std::string& text) {
  constexpr int kHow = O_WRONLY | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  const Fd file(::openat(run_dir, name.c_str(), kHow, kRunFileMode));
  if (file) errno = ENOSPC;  // of a write that is short
  const auto bytes = static_cast<ssize_t>(text.size());
  if (!file || ::pwrite(file.get(), text.data(), text.size(), 0) != bytes ||
      ::ftruncate(file.get(), bytes) != 0)
    return errno_error(name);
  return {};
}

Status write_sealed(int run_dir, const std::string& name, const void* data, size_t bytes) {
  const Seal seal{bytes, sum_of(data, bytes)};
  std::string text(reinterpret_cast<const char*>(&seal), sizeof seal);
  text.append(static_cast<const char*>(data), bytes);
  return write_plain(run_dir, name, text);
}

Result<size_t> read_sealed(const std::string& path, void* to, size_t most) {
  std::string text(sizeof(Seal) + most, '\0');
  for (int i = 0; i < kSealTries; ++i) {
    Result<size_t> size = read_run_file(path, text.data(), text.size());
    if (!size.ok()) return size;
    Seal seal;
    std::memcpy(&seal, text.data(), sizeof seal);
    if (*size < sizeof seal || seal.bytes > most || seal.bytes > *size - sizeof seal ||
        sum_of(text.data() + sizeof seal, seal.bytes) != seal.sum)
      continue;
    std::memcpy(to, text.data() + sizeof seal, seal.bytes);
    return static_cast<size_t>(seal.bytes);
  }
  return Error{EINVAL, path + ": not whole"};
}

Result<size_t> read_run_file(const std::string& path, void* to, size_t most) {
  const size_t slash = path.rfind('/');
  const Result<Fd> dir = open_run_dir(path.substr(0, slash));
  if (!dir.ok()) return dir.error();
  const Fd found(::openat(dir->get(), path.c_str() + slash + 1, O_PATH | O_NOFOLLOW | O_CLOEXEC));
  if (!found) return errno_error("read " + path);
  if (!same_mount(found, *dir)) return is_mounted(path);
  struct stat st;
  if (::fstat(found.get(), &st) != 0) return errno_error("read " + path);
  if (!S_ISREG(st.st_mode) || st.st_size < 0) return Error{EINVAL, path + ": no regular file"};
  const std::string itself = "/proc/self/fd/" + std::to_string(found.get());
  const Fd fd(::open(itself.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));  // nor is the end of a lease
  if (!fd) return errno_error("read " + path);
  const auto size = static_cast<size_t>(st.st_size), bytes = std::min(size, most);
  for (size_t done = 0; done < bytes;) {
    const ssize_t n =
        ::pread(fd.get(), static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(done));
    if (n <= 0) return errno_error("read " + path, n < 0 ? errno : EIO);
    done += static_cast<size_t>(n);
  }
  return size;
}

}  // namespace monarch
