// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/remove_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/base/os.h"

namespace monarch {
namespace {

constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMostLevels = 8;
constexpr size_t kMostNames = 1 << 16;  // that are removed before more are read
constexpr size_t kMostThreads = 8;
constexpr size_t kFewNames = 4;  // to which no thread is given

// The directory `name`, unless it is on another mount (EXDEV).
Fd open_on_mount(int at, const char* name, int64_t mount) {
  Fd fd(os::openat(at, name, kOpenDirectory));
  if (fd && os::mount_id(fd.get()) != mount) {
    errno = EXDEV;
    return Fd();
  }
  return fd;
}

using Stream = std::unique_ptr<DIR, int (*)(DIR*)>;

Stream stream_of(Fd fd) {
  Stream stream(fd ? os::fdopendir(fd.get()) : nullptr, &::closedir);
  if (stream) fd.release();
  return stream;
}

// The next name; nullptr with errno 0 at the end.
const char* next_name(DIR* stream) {
  for (;;) {
    errno = 0;
    const dirent* e = os::readdir(stream);
    if (!e) return nullptr;
    if (std::strcmp(e->d_name, ".") != 0 && std::strcmp(e->d_name, "..") != 0) return e->d_name;
  }
}

void cut(int at, const char* name) {
  const Fd file(os::openat(at, name, O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (file) (void)os::ftruncate(file.get(), 0);
}

// The topmost names go to several threads, each with all that is below.
class TreeRemoval {
 public:
  TreeRemoval(int64_t mount, Contents contents) : mount_(mount), contents_(contents) {}

  // The first error.
  Status run(Stream top) {
    const int at = ::dirfd(top.get());
    for (bool more = true; more;) {
      std::vector<std::string> names;
      const char* name = nullptr;
      while (names.size() < kMostNames && (name = next_name(top.get()))) names.emplace_back(name);
      if (!name && errno != 0) note(".");
      more = name != nullptr;
      remove_all(at, names);
    }
    const MutexLock hold(lock_);
    return first_;
  }

 private:
  // Where no thread is to be had, by fewer.
  void remove_all(int at, const std::vector<std::string>& names) {
    std::atomic<size_t> next{0};
    const auto work = [&] {
      for (size_t i; (i = next.fetch_add(1)) < names.size();) remove(at, names[i].c_str(), names[i], 1);
    };
    std::vector<std::thread> threads(std::min(kMostThreads - 1, names.size() / kFewNames));
    for (std::thread& thread : threads)
      if (os::start_thread(&thread, work) != 0) break;
    work();
    for (std::thread& thread : threads)
      if (thread.joinable()) thread.join();
  }

  // `path`: from the top.
  void remove(int at, const char* name, const std::string& path, int level) {
    if (contents_ == Contents::kCut) cut(at, name);
    if (os::unlinkat(at, name, 0) == 0 || errno == ENOENT) return;
    const int error = errno;  // of a directory EISDIR, or EPERM
    Stream stream(nullptr, &::closedir);
    if ((error == EISDIR || error == EPERM) && level < kMostLevels) {
      stream = stream_of(open_on_mount(at, name, mount_));
      if (!stream) {
        if (errno == ENOTDIR || errno == ELOOP) errno = error;
        return note(path);
      }
      while (const char* below = next_name(stream.get()))
        remove(::dirfd(stream.get()), below, path + "/" + below, level + 1);
      if (errno != 0) note(path);
    }
    errno = error;
    if ((stream || error == EISDIR) && os::unlinkat(at, name, AT_REMOVEDIR) == 0) return;
    note(path);
  }

  void note(const std::string& path) {
    const int error = errno;
    const MutexLock hold(lock_);
    if (first_.ok() && error != ENOENT) first_ = errno_error("remove " + path, error);
  }

  const int64_t mount_;
  const Contents contents_;
  Mutex lock_;
  Status first_ GUARDED_BY(lock_);  // error
};

class Measuring {
 public:
  Measuring(int64_t mount, int patience_ms)
      : mount_(mount), end_ns_(os::clock_ns(CLOCK_MONOTONIC) + int64_t{patience_ms} * 1'000'000) {}

  Usage all_in(int directory) {
    usage_.complete = true;
    add_all(Fd(os::openat(directory, ".", kOpenDirectory)), 0);
    return usage_;
  }

 private:
  void add_all(Fd directory, int level) {
    const Stream stream = stream_of(std::move(directory));
    if (!stream) return miss();
    while (const char* name = next_name(stream.get())) {
      if (os::clock_ns(CLOCK_MONOTONIC) > end_ns_) return miss();
      add(::dirfd(stream.get()), name, level);
    }
    if (errno != 0) miss();
  }
  void add(int at, const char* name, int level) {
    struct stat st;
    if (os::fstatat(at, name, &st, AT_SYMLINK_NOFOLLOW | AT_NO_AUTOMOUNT) != 0) {
      if (errno != ENOENT) miss();
      return;
    }
    const bool is_directory = S_ISDIR(st.st_mode);
    ++usage_.files;
    usage_.bytes += uint64_t{512} * static_cast<uint64_t>(st.st_blocks) /
                    (is_directory ? 1 : std::max<uint64_t>(st.st_nlink, 1));
    if (!is_directory) return;
    if (level == kMostLevels) return miss();
    Fd below = open_on_mount(at, name, mount_);
    if (below)
      add_all(std::move(below), level + 1);
    else if (errno != ENOENT)
      miss();
  }
  void miss() { usage_.complete = false; }

  const int64_t mount_, end_ns_;
  Usage usage_;
};

}  // namespace

Status empty_directory(int dirfd, Contents contents) {
  Stream top = stream_of(Fd(os::openat(dirfd, ".", kOpenDirectory)));
  if (!top) return errno_error("open the directory that is to be emptied");
  return TreeRemoval(os::mount_id(dirfd), contents).run(std::move(top));
}

Status remove_tree(int dirfd, const std::string& name) {
  const Fd top(os::openat(dirfd, name.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!top) {
    const bool is_file = errno == ENOTDIR || errno == ELOOP;
    if ((is_file && os::unlinkat(dirfd, name.c_str(), 0) == 0) || errno == ENOENT) return {};
    return errno_error("remove " + name);
  }
  Status first = empty_directory(top.get());
  if (os::unlinkat(dirfd, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT && first.ok())
    first = errno_error("remove " + name);
  return first;
}

Usage measure_tree(int dirfd, int patience_ms) {
  return Measuring(os::mount_id(dirfd), patience_ms).all_in(dirfd);
}

}  // namespace monarch
