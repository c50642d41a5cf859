// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/os.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/file.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "build_config.h"
#include "runtime/base/fd.h"

#ifdef HAVE_LIBURING
#include <liburing.h>
#endif

namespace monarch::os {
namespace {

template <typename Call>
auto retried(Call call) {
  decltype(call()) rc;
  do {
    rc = call();
  } while (rc < 0 && errno == EINTR);
  return rc;
}

int64_t mount_id_of_fdinfo(int fd) {
  const Fd info(::open(("/proc/self/fdinfo/" + std::to_string(fd)).c_str(), O_RDONLY | O_CLOEXEC));
  char text[1024];
  const ssize_t n = info ? ::read(info.get(), text, sizeof text - 1) : -1;
  if (n < 0) return -1;
  text[n] = '\0';
  static constexpr char kKey[] = "\nmnt_id:";
  const char* at = std::strstr(text, kKey);
  return at ? std::strtoll(at + sizeof kKey - 1, nullptr, 10) : -1;
}

}  // namespace

int64_t mount_id(int fd) {
  file_handle none{};  // no room for a handle: the mount is told all the same
  int id = -1;
  if (::name_to_handle_at(fd, "", &none, &id, AT_EMPTY_PATH) == 0 || errno == EOVERFLOW) return id;
  return mount_id_of_fdinfo(fd);
}

int open_beneath(int dirfd, const char* path, int flags, mode_t mode) {
  struct open_how how {};
  how.flags = static_cast<uint64_t>(flags);
  how.mode = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE ? mode : 0;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_XDEV | RESOLVE_NO_MAGICLINKS;
  return static_cast<int>(retried([&] { return ::syscall(SYS_openat2, dirfd, path, &how, sizeof how); }));
}

int openat(int dirfd, const char* path, int flags, mode_t mode) {
  return retried([&] { return ::openat(dirfd, path, flags, mode); });
}
int fstat(int fd, struct stat* st) {
  return retried([&] { return ::fstat(fd, st); });
}
ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset) {
  return retried([&] { return ::pread(fd, buffer, bytes, offset); });
}
ssize_t pwrite(int fd, const void* buffer, size_t bytes, off_t offset) {
  return retried([&] { return ::pwrite(fd, buffer, bytes, offset); });
}
ssize_t sendfile(int socket, int file, off_t* offset, size_t bytes) {
  return retried([&] { return ::sendfile(socket, file, offset, bytes); });
}
int connection_info(int socket, struct tcp_info* info) {
  socklen_t bytes = sizeof *info;
  return ::getsockopt(socket, IPPROTO_TCP, TCP_INFO, info, &bytes);
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  return retried([&] { return ::fallocate(fd, mode, offset, bytes); });
}
int ftruncate(int fd, off_t bytes) {
  return retried([&] { return ::ftruncate(fd, bytes); });
}
int sync_range(int fd, off_t offset, off_t bytes, Sync how) {
  const unsigned flags =
      how == Sync::kStart ? SYNC_FILE_RANGE_WRITE
                          : SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
  return retried([&] { return ::sync_file_range(fd, offset, bytes, flags); });
}
void drop_pages(int fd, off_t offset, off_t bytes) {
  ::posix_fadvise(fd, offset, bytes, POSIX_FADV_DONTNEED);
}
int set_direct(int fd, bool direct) {
  const int flags = ::fcntl(fd, F_GETFL);
  if (flags < 0) return -1;
  return ::fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT);
}
int futimens(int fd, const struct timespec times[2]) {
  return retried([&] { return ::futimens(fd, times); });
}
int linkat(int from_fd, const char* from, int to_fd, const char* to, int flags) {
  return retried([&] { return ::linkat(from_fd, from, to_fd, to, flags); });
}
int renameat(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  if (flags != 0) return retried([&] { return ::renameat2(from_fd, from, to_fd, to, flags); });
  return retried([&] { return ::renameat(from_fd, from, to_fd, to); });
}
int unlinkat(int dirfd, const char* path, int flags) {
  return retried([&] { return ::unlinkat(dirfd, path, flags); });
}
int mkdirat(int dirfd, const char* path, mode_t mode) {
  return retried([&] { return ::mkdirat(dirfd, path, mode); });
}
int fstatvfs(int fd, struct statvfs* st) {
  return retried([&] { return ::fstatvfs(fd, st); });
}
int fstatfs(int fd, struct statfs* st) {
  return retried([&] { return ::fstatfs(fd, st); });
}
int fstatat(int dirfd, const char* path, struct stat* st, int flags) {
  return retried([&] { return ::fstatat(dirfd, path, st, flags); });
}
char* realpath(const char* path, char* resolved) { return ::realpath(path, resolved); }
int inotify_add_watch(int inotify, const char* path, uint32_t mask) {
  return retried([&] { return ::inotify_add_watch(inotify, path, mask); });
}
int flock(int fd, int operation) {
  return retried([&] { return ::flock(fd, operation); });
}
int fchown(int fd, uid_t owner, gid_t group) {
  return retried([&] { return ::fchown(fd, owner, group); });
}
int fchmod(int fd, mode_t mode) {
  return retried([&] { return ::fchmod(fd, mode); });
}
int chmod(const char* path, mode_t mode) {
  return retried([&] { return ::chmod(path, mode); });
}
int ioctl(int fd, unsigned long request, void* argument) {
  return retried([&] { return ::ioctl(fd, request, argument); });
}
DIR* fdopendir(int fd) { return ::fdopendir(fd); }
struct dirent* readdir(DIR* dir) {
  return ::readdir(dir);
}
#ifdef HAVE_LIBURING
int uring_submit(struct io_uring* ring) { return ::io_uring_submit(ring); }
#else
int uring_submit(struct io_uring*) { return -ENOSYS; }
#endif
int64_t uring_result(int64_t result) { return result; }
bool is_open_elsewhere(int fd) {
  // Nobody else, says the kernel where it gives a lease for writing.
  if (::fcntl(fd, F_SETLEASE, F_WRLCK) != 0) return true;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
}
bool is_written_elsewhere(int fd) {
  // Nobody, says the kernel where it gives a lease for reading.
  if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) return true;
  ::fcntl(fd, F_SETLEASE, F_UNLCK);
  return false;
}
int start_thread(std::thread* thread, const std::function<void()>& body) {
  try {
    *thread = std::thread(body);
    return 0;
  } catch (const std::system_error& e) {
    return e.code().value();
  }
}
int64_t clock_ns(clockid_t clock) {
  timespec now;
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

}  // namespace monarch::os
