// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/remove_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"

namespace monarch {
namespace {

constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMostLevels = 8;  // what lies deeper is moved up to the tree's root first
constexpr size_t kBatch = 16;   // names that a thread takes at a time
constexpr size_t kMostBatches = 1024;
constexpr size_t kMostThreads = 8;
constexpr size_t kDescriptorsPerThread = 64;  // so many must be allowed to the process for each thread
constexpr size_t kMostOpen = 16;              // directories per thread, beside those on its way down

struct Close {
  void operator()(DIR* dir) const { ::closedir(dir); }
};

// A directory that is being emptied; it is removed when nothing is under way in it.
struct Directory {
  std::unique_ptr<DIR, Close> stream;
  std::shared_ptr<Directory> parent;  // nullptr: the root, which remove_tree() itself removes
  std::string name;
  int level = 0;
  std::atomic<size_t> under_way{1};
  int fd() const { return ::dirfd(stream.get()); }
};
using DirectoryPtr = std::shared_ptr<Directory>;

struct Batch {
  DirectoryPtr directory;
  std::vector<std::string> names;
};

// Opens the directory `name` so that it can be emptied, whatever mode its owner gave it.
Fd open_to_empty(int at, const char* name, struct stat* st) {
  Fd fd(::openat(at, name, kOpenDirectory));
  if (!fd && errno == EACCES && ::fchmodat(at, name, S_IRWXU, 0) == 0)
    fd = Fd(::openat(at, name, kOpenDirectory));
  if (!fd || ::fstat(fd.get(), st) != 0) return Fd();
  if ((st->st_mode & S_IRWXU) != S_IRWXU) ::fchmod(fd.get(), S_IRWXU);
  return fd;
}

size_t threads_allowed() {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return 1;
  return std::clamp<size_t>(files.rlim_cur / kDescriptorsPerThread, 1, kMostThreads);
}

// One pass over a tree. Work waits in a stack, so that what was begun is finished first.
class Removal {
 public:
  explicit Removal(dev_t device) : device_(device), most_threads_(threads_allowed()) {}

  // True: what was moved up needs another pass.
  bool run(Fd top) {
    top_ = std::make_shared<Directory>();
    top_->stream.reset(::fdopendir(top.get()));
    if (!top_->stream) {
      note(".");
      return false;
    }
    top.release();
    list(top_);
    work();
    for (std::thread& t : threads_) t.join();
    return again_;
  }
  const Status& first_error() const { return first_; }

 private:
  void note(const std::string& name) {
    const int error = errno;
    const std::lock_guard<std::mutex> hold(lock_);
    if (first_.ok() && error != ENOENT) first_ = errno_error("remove " + name, error);
  }

  // Hands names to any thread, or removes them here and now if there is enough to do.
  void offer(const DirectoryPtr& directory, std::vector<std::string> names) {
    directory->under_way.fetch_add(1);
    if (std::unique_lock<std::mutex> hold(lock_); room()) {
      batches_.push_back({directory, std::move(names)});
      add_thread();
      hold.unlock();
      changed_.notify_one();
    } else {
      hold.unlock();
      remove({directory, std::move(names)});
    }
  }
  bool room() const { return batches_.size() < kMostBatches && open_ < most_threads_ * kMostOpen; }

  // With the lock held. Without a thread the caller does all.
  void add_thread() {
    if (idle_ > 0 || threads_.size() + 1 >= most_threads_ || batches_.size() < 2) return;
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      most_threads_ = threads_.size() + 1;
    }
  }

  void work() {
    std::unique_lock<std::mutex> hold(lock_);
    while (!done_) {
      if (batches_.empty()) {
        ++idle_;
        changed_.wait(hold);
        --idle_;
        continue;
      }
      Batch batch = std::move(batches_.back());
      batches_.pop_back();
      hold.unlock();
      remove(std::move(batch));
      hold.lock();
    }
  }

  void remove(Batch batch) {
    for (const std::string& name : batch.names) remove_entry(batch.directory, name);
    finish(std::move(batch.directory));
  }

  void list(const DirectoryPtr& directory) {
    std::vector<std::string> names;
    while (const dirent* e = ::readdir(directory->stream.get())) {
      std::string name = e->d_name;
      if (name == "." || name == "..") continue;
      names.push_back(std::move(name));
      if (names.size() < kBatch) continue;
      offer(directory, std::move(names));
      names.clear();
    }
    if (!names.empty()) offer(directory, std::move(names));
    finish(directory);
  }

  void remove_entry(const DirectoryPtr& directory, const std::string& name) {
    if (os::unlinkat(directory->fd(), name.c_str(), 0) == 0) return;
    struct stat st;
    Fd fd = errno == EISDIR || errno == EPERM ? open_to_empty(directory->fd(), name.c_str(), &st) : Fd();
    if (!fd) return note(name);
    if (st.st_dev == device_) {
      if (directory->level < kMostLevels) return descend(directory, name, std::move(fd));
      if (move_up(directory->fd(), name)) return;
    }
    if (os::unlinkat(directory->fd(), name.c_str(), AT_REMOVEDIR) != 0) note(name);
  }

  void descend(const DirectoryPtr& parent, const std::string& name, Fd fd) {
    auto directory = std::make_shared<Directory>();
    directory->stream.reset(::fdopendir(fd.get()));
    if (!directory->stream) return note(name);
    fd.release();
    directory->parent = parent;
    directory->name = name;
    directory->level = parent->level + 1;
    parent->under_way.fetch_add(1);
    open_.fetch_add(1);
    list(directory);
  }

  // Where the queue is full the next pass finds it: no recursion goes deeper than kMostLevels.
  bool move_up(int at, const std::string& name) {
    std::string moved;
    int rc;
    do {
      moved = ".removed." + std::to_string(moved_.fetch_add(1));
      rc = os::renameat(at, name.c_str(), top_->fd(), moved.c_str());
    } while (rc != 0 && (errno == EEXIST || errno == ENOTEMPTY || errno == ENOTDIR));
    if (rc != 0) return false;
    if (std::unique_lock<std::mutex> hold(lock_); room()) {
      top_->under_way.fetch_add(1);
      batches_.push_back({top_, {moved}});
      add_thread();
      changed_.notify_one();
    } else {
      again_ = true;
    }
    return true;
  }

  // Something in `directory` has come to its end: what is empty now goes, and those above it.
  void finish(DirectoryPtr directory) {
    while (directory->under_way.fetch_sub(1) == 1) {
      const DirectoryPtr parent = directory->parent;
      if (!parent) {
        const std::lock_guard<std::mutex> hold(lock_);
        done_ = true;
        changed_.notify_all();
        return;
      }
      directory->stream.reset();
      open_.fetch_sub(1);
      if (os::unlinkat(parent->fd(), directory->name.c_str(), AT_REMOVEDIR) != 0) note(directory->name);
      directory = parent;
    }
  }

  const dev_t device_;
  DirectoryPtr top_;
  std::atomic<uint64_t> moved_{0};
  std::atomic<size_t> open_{0};

  std::mutex lock_;  // of all below
  std::condition_variable changed_;
  std::vector<Batch> batches_;
  std::vector<std::thread> threads_;
  size_t most_threads_;
  size_t idle_ = 0;
  bool done_ = false;
  bool again_ = false;
  Status first_;
};

}  // namespace

Status remove_tree(int dirfd, const std::string& name) {
  struct stat st;
  const Fd top = open_to_empty(dirfd, name.c_str(), &st);
  if (!top) {
    const bool is_file = errno == ENOTDIR || errno == ELOOP;
    if ((is_file && os::unlinkat(dirfd, name.c_str(), 0) == 0) || errno == ENOENT) return {};
    return errno_error("remove " + name);
  }
  Status first;
  for (bool again = true; again;) {
    Removal pass(st.st_dev);
    again = pass.run(Fd(::openat(top.get(), ".", kOpenDirectory)));
    if (first.ok()) first = pass.first_error();
  }
  if (os::unlinkat(dirfd, name.c_str(), AT_REMOVEDIR) != 0 && errno != ENOENT && first.ok())
    first = errno_error("remove " + name);
  return first;
}

}  // namespace monarch
