// SPDX-License-Identifier: Apache-2.0
#include "tests/faulty_os.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <mutex>
#include <shared_mutex>

// The real calls become monarch::real_os, so that both are in one program.
#define os real_os
#include "runtime/base/os.cc"  // NOLINT(bugprone-suspicious-include)
#undef os

namespace monarch {
namespace {

struct Hook {
  std::shared_mutex lock;  // held shared while `handler` runs
  Intercept::Handler handler;
};
Hook hooks[static_cast<size_t>(Call::kCount)];
std::atomic<int64_t> ahead_ns{0};

Hook& hook_of(Call call) { return hooks[static_cast<size_t>(call)]; }

// Whether the call is to fail, with errno set.
bool fails(Call call, Arguments& arguments) {
  Hook& hook = hook_of(call);
  std::shared_lock<std::shared_mutex> hold(hook.lock);
  const int error = hook.handler ? hook.handler(arguments) : 0;
  if (error != 0) errno = error;
  return error != 0;
}
bool fails(Call call, Arguments&& arguments) { return fails(call, arguments); }

}  // namespace

Intercept::Intercept(Call call, Handler handler) : call_(call) {
  Hook& hook = hook_of(call);
  std::unique_lock<std::shared_mutex> hold(hook.lock);
  hook.handler = std::move(handler);
}
Intercept::Intercept(Call call, int error) : Intercept(call, [error](Arguments&) { return error; }) {}
Intercept::~Intercept() {
  Hook& hook = hook_of(call_);
  std::unique_lock<std::shared_mutex> hold(hook.lock);
  hook.handler = nullptr;
}

Held::Held(Call call, int error, std::function<bool(const Arguments&)> picks)
    : error_(error), picks_(std::move(picks)), calls_(call, [this](Arguments& a) { return wait(a); }) {}
void Held::go_on() {
  goes_on_ = true;
  goes_on_.notify_all();
}
int Held::wait(const Arguments& arguments) {
  if (picks_ && !picks_(arguments)) return 0;
  ++reached_;
  goes_on_.wait(false);
  return error_;
}

LaterBy::LaterBy(int64_t seconds) : ns_(seconds * 1000000000) { ahead_ns += ns_; }
LaterBy::~LaterBy() { ahead_ns -= ns_; }

// Declared in os.h under this name; a difference between the two shows when the program is linked.
namespace os {

int open_beneath(int dirfd, const char* path, int flags, mode_t mode) {
  if (fails(Call::kOpenBeneath, {.fd = dirfd, .path = path, .flags = flags})) return -1;
  return real_os::open_beneath(dirfd, path, flags, mode);
}
int openat(int dirfd, const char* path, int flags, mode_t mode) {
  if (fails(Call::kOpenat, {.fd = dirfd, .path = path, .flags = flags})) return -1;
  return real_os::openat(dirfd, path, flags, mode);
}
int fstat(int fd, struct stat* st) {
  if (fails(Call::kFstat, {.fd = fd}) || real_os::fstat(fd, st) != 0) return -1;
  return fails(Call::kFstatResult, {.fd = fd, .st = st}) ? -1 : 0;
}
ssize_t pread(int fd, void* buffer, size_t bytes, off_t offset) {
  Arguments arguments{.fd = fd, .bytes = bytes, .offset = offset};
  if (fails(Call::kPread, arguments)) return -1;
  return real_os::pread(fd, buffer, arguments.bytes, offset);
}
ssize_t pwrite(int fd, const void* buffer, size_t bytes, off_t offset) {
  Arguments arguments{.fd = fd, .bytes = bytes, .offset = offset};
  if (fails(Call::kPwrite, arguments)) return -1;
  return real_os::pwrite(fd, buffer, arguments.bytes, offset);
}
ssize_t sendfile(int socket, int file, off_t* offset, size_t bytes) {
  Arguments arguments{.fd = file, .bytes = bytes, .offset = *offset};
  if (fails(Call::kSendfile, arguments)) return -1;
  return real_os::sendfile(socket, file, offset, arguments.bytes);
}
int connection_info(int socket, struct tcp_info* info) {
  if (real_os::connection_info(socket, info) != 0) return -1;
  return fails(Call::kConnectionInfoResult, {.fd = socket, .tcp = info}) ? -1 : 0;
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) {
  if (fails(Call::kFallocate, {.fd = fd, .bytes = static_cast<size_t>(bytes), .offset = offset})) return -1;
  return real_os::fallocate(fd, mode, offset, bytes);
}
int ftruncate(int fd, off_t bytes) {
  if (fails(Call::kFtruncate, {.fd = fd, .offset = bytes})) return -1;
  return real_os::ftruncate(fd, bytes);
}
int sync_range(int fd, off_t offset, off_t bytes, Sync how) {
  const auto length = static_cast<size_t>(bytes);
  if (how == Sync::kFinish && fails(Call::kFinishSync, {.fd = fd, .bytes = length, .offset = offset}))
    return -1;
  return real_os::sync_range(fd, offset, bytes, how);
}
void drop_pages(int fd, off_t offset, off_t bytes) {
  (void)fails(Call::kDropPages, {.fd = fd, .bytes = static_cast<size_t>(bytes), .offset = offset});
  real_os::drop_pages(fd, offset, bytes);
}
int set_direct(int fd, bool direct) { return real_os::set_direct(fd, direct); }
int futimens(int fd, const struct timespec times[2]) {
  if (fails(Call::kFutimens, {.fd = fd})) return -1;
  return real_os::futimens(fd, times);
}
int linkat(int from_fd, const char* from, int to_fd, const char* to, int flags) {
  if (fails(Call::kLinkat, {.fd = to_fd, .path = to, .flags = flags})) return -1;
  return real_os::linkat(from_fd, from, to_fd, to, flags);
}
int renameat(int from_fd, const char* from, int to_fd, const char* to, unsigned flags) {
  if (fails(Call::kRenameat, {.fd = to_fd, .path = to, .flags = static_cast<int>(flags)})) return -1;
  return real_os::renameat(from_fd, from, to_fd, to, flags);
}
int unlinkat(int dirfd, const char* path, int flags) {
  if (fails(Call::kUnlinkat, {.fd = dirfd, .path = path, .flags = flags})) return -1;
  return real_os::unlinkat(dirfd, path, flags);
}
int mkdirat(int dirfd, const char* path, mode_t mode) {
  if (fails(Call::kMkdirat, {.fd = dirfd, .path = path})) return -1;
  return real_os::mkdirat(dirfd, path, mode);
}
int fstatvfs(int fd, struct statvfs* st) {
  if (real_os::fstatvfs(fd, st) != 0) return -1;
  return fails(Call::kFstatvfs, {.fd = fd, .fs = st}) ? -1 : 0;
}
int fstatfs(int fd, struct statfs* st) {
  if (real_os::fstatfs(fd, st) != 0) return -1;
  return fails(Call::kFstatfsResult, {.fd = fd, .disk = st}) ? -1 : 0;
}
int fstatat(int dirfd, const char* path, struct stat* st, int flags) {
  if (fails(Call::kFstatat, {.fd = dirfd, .path = path, .flags = flags})) return -1;
  return real_os::fstatat(dirfd, path, st, flags);
}
char* realpath(const char* path, char* resolved) { return real_os::realpath(path, resolved); }
int inotify_add_watch(int inotify, const char* path, uint32_t mask) {
  return fails(Call::kWatch, {.fd = inotify, .path = path}) ? -1
                                                            : real_os::inotify_add_watch(inotify, path, mask);
}
int flock(int fd, int operation) { return real_os::flock(fd, operation); }
int fchown(int fd, uid_t owner, gid_t group) { return real_os::fchown(fd, owner, group); }
int fchmod(int fd, mode_t mode) { return fails(Call::kChmod, {.fd = fd}) ? -1 : real_os::fchmod(fd, mode); }
int chmod(const char* path, mode_t mode) {
  return fails(Call::kChmod, {.path = path}) ? -1 : real_os::chmod(path, mode);
}
int ioctl(int fd, unsigned long request, void* argument) { return real_os::ioctl(fd, request, argument); }
DIR* fdopendir(int fd) { return fails(Call::kFdopendir, {.fd = fd}) ? nullptr : real_os::fdopendir(fd); }
struct dirent* readdir(DIR* dir) {
  if (fails(Call::kReaddir, {.fd = ::dirfd(dir)})) return nullptr;
  struct dirent* name = real_os::readdir(dir);
  return name && fails(Call::kReaddirResult, {.name = name}) ? nullptr : name;
}
#ifdef HAVE_LIBURING
int uring_submit(struct io_uring* ring) {
  const unsigned first = ring->sq.sqe_head, end = ring->sq.sqe_tail;
  Arguments arguments{.bytes = end - first};
  if (fails(Call::kUringSubmit, arguments)) return -errno;
  ring->sq.sqe_tail = first + static_cast<unsigned>(arguments.bytes);
  const int submitted = real_os::uring_submit(ring);
  ring->sq.sqe_tail = end;
  return submitted;
}
#else
int uring_submit(struct io_uring* ring) { return real_os::uring_submit(ring); }
#endif
int64_t uring_result(int64_t result) {
  Arguments arguments{.bytes = result > 0 ? static_cast<size_t>(result) : 0};
  if (fails(Call::kUringResult, arguments)) return -errno;
  return result > 0 ? static_cast<int64_t>(arguments.bytes) : result;
}
bool is_open_elsewhere(int fd) { return real_os::is_open_elsewhere(fd); }
bool is_written_elsewhere(int fd) { return real_os::is_written_elsewhere(fd); }
int start_thread(std::thread* thread, const std::function<void()>& body) {
  return fails(Call::kStartThread, {}) ? errno : real_os::start_thread(thread, body);
}
int64_t mount_id(int fd) { return real_os::mount_id(fd); }
int64_t clock_ns(clockid_t clock) {
  return real_os::clock_ns(clock) + (clock == CLOCK_THREAD_CPUTIME_ID ? 0 : ahead_ns.load());
}

}  // namespace os
}  // namespace monarch
