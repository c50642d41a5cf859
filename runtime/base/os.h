// SPDX-License-Identifier: Apache-2.0
// The boundary to the operating system for what tests must be able to fail: every call on a dataset
// file or a tier goes through here, but for mount(2) and umount2(2) (tests/os_calls.t), and for what looks at
// them before a job runs: the check of a configuration (config/config.cc), the search for tiers
// (hierarchy/discovery.cc) and monarchctl (admin/). os.cc is the real one; fault tests link
// tests/faulty_os.cc instead. Semantics, return values and errno are those of the system calls, EINTR
// retried. The clock is here for what comes to pass seconds later, and TCP_INFO for machines that vanish.
#pragma once

#include <dirent.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <thread>

struct io_uring;
struct tcp_info;

namespace monarch {

enum class Sync { kStart, kFinish };  // see os::sync_range

// Whether an error of os::sync_range says that pages did not reach their device; other ones say that the
// file system does not have the call.
inline bool is_write_back_error(int error) {
  return error == EIO || error == ENOSPC || error == EDQUOT || error == EROFS;
}

// Whether an error says that this process or the node ran short of descriptors or memory. That tells nothing
// about the file, and may pass.
inline bool is_shortage(int error) {
  return error == EMFILE || error == ENFILE || error == ENOMEM || error == EAGAIN || error == EINTR;
}

// Whether an error of a call on a tier is one of a single name or file: something else has the name, a file
// may not be so large (RLIMIT_FSIZE), or has a time that the file system does not keep. Others may well be
// taken.
inline bool is_of_one_file(int error) {
  return error == EEXIST || error == ENOTEMPTY || error == EISDIR || error == ELOOP || error == EFBIG ||
         error == EOVERFLOW;
}

}  // namespace monarch

namespace monarch::os {

// openat2(2) with RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS. `path` is
// relative to `dirfd` and has no ".." component.
int open_beneath(int dirfd, const char* path, int flags, mode_t mode = 0);
int openat(int dirfd, const char* path, int flags, mode_t mode = 0);
int fstat(int fd, struct stat* st);
ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset);
ssize_t pwrite(int fd, const void* buffer, size_t bytes, off_t offset);
ssize_t sendfile(int socket, int file, off_t* offset, size_t bytes);
int connection_info(int socket, struct tcp_info* info);  // getsockopt(2) of TCP_INFO
int fallocate(int fd, int mode, off_t offset, off_t bytes);
int ftruncate(int fd, off_t bytes);
// Starts (kStart) the write-back of a range, or also waits for it and for what was under way (kFinish); then
// it fails with the error that write-back met. See sync_file_range(2).
int sync_range(int fd, off_t offset, off_t bytes, Sync how);
// Lets the page cache forget a range (posix_fadvise(2)); a hint, without result.
void drop_pages(int fd, off_t offset, off_t bytes);
// Sets or clears O_DIRECT on an open file; -1 if its file system does not have it.
int set_direct(int fd, bool direct);
int futimens(int fd, const struct timespec times[2]);
int linkat(int from_fd, const char* from, int to_fd, const char* to, int flags);
int renameat(int from_fd, const char* from, int to_fd, const char* to, unsigned flags = 0);  // renameat2(2)
int unlinkat(int dirfd, const char* path, int flags);
int mkdirat(int dirfd, const char* path, mode_t mode);
int fstatvfs(int fd, struct statvfs* st);
int fstatfs(int fd, struct statfs* st);
int fstatat(int dirfd, const char* path, struct stat* st, int flags);
char* realpath(const char* path, char* resolved);  // of PATH_MAX bytes
int inotify_add_watch(int inotify, const char* path, uint32_t mask);
int flock(int fd, int operation);
int fchmod(int fd, mode_t mode);
int fchown(int fd, uid_t owner, gid_t group);
int chmod(const char* path, mode_t mode);
int ioctl(int fd, unsigned long request, void* argument);
DIR* fdopendir(int fd);
struct dirent* readdir(DIR* dir);
// io_uring_submit(3): how many were submitted, or -errno; with liburing only.
int uring_submit(struct io_uring* ring);
// What the completion of a write of `bytes` says, which follows its read by a link: passes it on.
int64_t uring_result(int64_t result);
// Whether somebody else has the open file `fd` open, or that cannot be told.
bool is_open_elsewhere(int fd);
// Whether somebody on this node has the file open for writing, or mapped so; also where that cannot be told
// (of another user's file, on NFS). `fd` is open for reading.
bool is_written_elsewhere(int fd);
// A std::thread, or the error for which there is none (EAGAIN: the user may have no more processes).
int start_thread(std::thread* thread, const std::function<void()>& body);
// Nanoseconds of clock_gettime(2).
int64_t clock_ns(clockid_t clock);
inline int64_t monotonic_ms() { return clock_ns(CLOCK_MONOTONIC) / 1'000'000; }
inline int64_t realtime_s() { return clock_ns(CLOCK_REALTIME) / 1'000'000'000; }
// Which mount an open file (O_PATH suffices) belongs to, as in /proc/self/mountinfo; -1 if that cannot be
// told. Asks nothing of the file system: one that hangs is no matter.
int64_t mount_id(int fd);

}  // namespace monarch::os
