// SPDX-License-Identifier: Apache-2.0
#include "runtime/base/remove_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/btrfs.h>
#include <linux/btrfs_tree.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/base/os.h"

namespace monarch {
namespace {

constexpr int kOpenDirectory = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
constexpr int kMostLevels = 8;  // what lies deeper is left to one thread, which goes down and back up (Way)
constexpr size_t kBatch = 16;   // names that a thread takes at a time
constexpr size_t kMostBatches = 1024;
constexpr size_t kMostThreads = 8;
constexpr size_t kDescriptorsPerThread = 64;  // so many must be allowed to the process for each thread
constexpr size_t kMostOpen = 16;              // directories per thread, beside those on its way down
constexpr size_t kMostOnWay = 16;             // directories that are open on a way down (Way)
constexpr size_t kMostRemembered = 1 << 18;   // levels of a way that a pass goes back up, with their names
constexpr size_t kMostNamed = 16;             // levels of a way that an error names
constexpr ino_t kSubvolumeRoot = BTRFS_FIRST_FREE_OBJECTID;

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

// Opens `name` itself, whatever it is, unless it is on another mount (EXDEV). No file system is asked.
Fd open_on_mount(int at, const char* name, int64_t mount, int flags) {
  Fd fd(os::openat(at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC | flags));
  if (fd && os::mount_id(fd.get()) != mount) {
    errno = EXDEV;
    return Fd();
  }
  return fd;
}

// A subvolume whose owner made it read-only.
void make_writable(int subvolume) {
  uint64_t flags = 0;
  if (os::ioctl(subvolume, BTRFS_IOC_SUBVOL_GETFLAGS, &flags) != 0 || !(flags & BTRFS_SUBVOL_RDONLY)) return;
  flags &= ~uint64_t{BTRFS_SUBVOL_RDONLY};
  os::ioctl(subvolume, BTRFS_IOC_SUBVOL_SETFLAGS, &flags);
}

// Opens the directory `name` so that it can be emptied, whatever mode its owner gave it.
Fd open_to_empty(int at, const char* name, int64_t mount, struct stat* st) {
  const Fd here = open_on_mount(at, name, mount, O_DIRECTORY);
  if (!here) return Fd();
  Fd fd(os::openat(here.get(), ".", kOpenDirectory));
  if (!fd && errno == EACCES) {
    // By descriptor, though by a path: an fchmod() of an O_PATH descriptor is none.
    const std::string path = "/proc/self/fd/" + std::to_string(here.get());
    if (os::chmod(path.c_str(), S_IRWXU) != 0) return Fd();
    fd = Fd(os::openat(here.get(), ".", kOpenDirectory));
  }
  if (!fd || os::fstat(fd.get(), st) != 0) return Fd();
  if (st->st_ino == kSubvolumeRoot) make_writable(fd.get());
  if ((st->st_mode & S_IRWXU) != S_IRWXU) os::fchmod(fd.get(), S_IRWXU);
  return fd;
}

// A way down from a directory and back up, of any length: without recursion, and with the deepest directories
// open alone. Those above are opened again from below, as long as they are what the way led through.
class Way {
 public:
  explicit Way(int64_t mount) : mount_(mount) {}

  size_t levels() const { return levels_.size(); }
  int fd() const { return ::dirfd(levels_.back().stream.get()); }
  const std::string& name() const { return levels_.back().name; }
  // Something in the last directory does not go: it is not read from its beginning again.
  void note_rest() { levels_.back().has_rest = true; }

  // The next entry of the last directory; nullptr with errno 0 at its end.
  const dirent* next() {
    Level& last = levels_.back();
    if (last.was_closed && last.has_rest) ::seekdir(last.stream.get(), last.next);
    last.was_closed = false;
    errno = 0;
    return os::readdir(last.stream.get());
  }

  // To a directory that was just opened, or could not be (errno).
  bool down(Fd fd, const struct stat& st, std::string name) {
    if (!fd) return false;
    std::unique_ptr<DIR, Close> stream(os::fdopendir(fd.get()));
    if (!stream) return false;
    fd.release();
    if (levels_.size() >= kMostOnWay) {
      Level& above = levels_[levels_.size() - kMostOnWay];
      if (above.stream) above.next = ::telldir(above.stream.get());
      above.was_closed = true;
      above.stream.reset();
    }
    levels_.push_back({std::move(stream), st.st_dev, st.st_ino, std::move(name)});
    return true;
  }

  // Leaves the last directory for that above. False: it is not there (errno), or another one is (ESTALE).
  bool up() {
    const Level left = std::move(levels_.back());
    levels_.pop_back();
    if (levels_.empty() || levels_.back().stream) return true;
    Level& above = levels_.back();
    struct stat st;
    const Fd here = open_on_mount(::dirfd(left.stream.get()), "..", mount_, O_DIRECTORY);
    Fd fd(here ? os::openat(here.get(), ".", kOpenDirectory) : -1);
    if (!fd || os::fstat(fd.get(), &st) != 0) return false;
    if (st.st_dev != above.device || st.st_ino != above.inode) {
      errno = ESTALE;
      return false;
    }
    above.stream.reset(os::fdopendir(fd.get()));
    if (!above.stream) return false;
    fd.release();
    return true;
  }

  // The way begins further down.
  void forget_half() { levels_.erase(levels_.begin(), levels_.begin() + static_cast<long>(levels() / 2)); }

  std::string path() const {
    std::string path = levels_.front().name;
    if (levels() > kMostNamed) return path + "/.../" + name();
    for (size_t i = 1; i < levels(); ++i) path += "/" + levels_[i].name;
    return path;
  }

 private:
  struct Level {
    std::unique_ptr<DIR, Close> stream;
    dev_t device;
    ino_t inode;
    std::string name;  // in the directory above
    long next = 0;     // entry, once it was closed
    bool was_closed = false;
    bool has_rest = false;
  };
  const int64_t mount_;
  std::vector<Level> levels_;  // those but for the last kMostOnWay have no stream
};

int if_it_may_pass(int error) { return error == ETXTBSY || is_shortage(error) ? error : 0; }

// 0, or an error that may pass: somebody has a lease on the file, or runs it. Such a file is to keep its
// name, or nobody could give its pages back later. Where it fails for good the file goes as it is:
// `st_blocks` of its file system tell.
int give_back_pages(int at, const char* name, int64_t mount, Pages pages) {
  const Fd here = open_on_mount(at, name, mount, 0);
  if (!here) return if_it_may_pass(errno);
  struct stat st;
  if (os::fstat(here.get(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_blocks == 0) return 0;
  const std::string path = "/proc/self/fd/" + std::to_string(here.get());
  constexpr int kOpenFile = O_WRONLY | O_NONBLOCK | O_CLOEXEC;
  Fd file(os::openat(AT_FDCWD, path.c_str(), kOpenFile));
  if (!file && errno == EACCES && os::chmod(path.c_str(), S_IRUSR | S_IWUSR) == 0)
    file = Fd(os::openat(AT_FDCWD, path.c_str(), kOpenFile));
  if (!file) return if_it_may_pass(errno);
  constexpr off_t kAll = std::numeric_limits<off_t>::max() & ~off_t{0xffff};
  if (pages == Pages::kZero)
    (void)os::fallocate(file.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kAll);
  else
    (void)os::ftruncate(file.get(), 0);
  return 0;
}

// What is the same in all of a tree.
struct Whole {
  const Pages pages;
  const int64_t mount;  // which is not left
};

// Removes `name`, or opens it if it is a directory that has to be emptied first. Without a descriptor: errno
// is why it stays, or 0.
Fd remove_or_open(const Whole& whole, int at, const char* name, struct stat* st) {
  if (whole.pages != Pages::kKeep) {
    errno = give_back_pages(at, name, whole.mount, whole.pages);
    if (errno != 0) return Fd();
  }
  int error = os::unlinkat(at, name, 0) == 0 ? 0 : errno;
  if (error == EISDIR || error == EPERM) {
    if (Fd fd = open_to_empty(at, name, whole.mount, st)) return fd;
    const int why = errno == ENOTDIR || errno == ELOOP ? error : errno;
    // What cannot be looked into may be empty all the same.
    if (error == EISDIR && os::unlinkat(at, name, AT_REMOVEDIR) == 0)
      error = 0;
    else
      error = error == EISDIR && errno == ENOENT ? ENOENT : why;
  }
  errno = error;
  return Fd();
}

size_t threads_allowed() {
  rlimit files{};
  (void)::getrlimit(RLIMIT_NOFILE, &files);
  return std::clamp<size_t>(files.rlim_cur / kDescriptorsPerThread, 1, kMostThreads);
}

// Work waits in a stack, so that what was begun is finished first. Nothing is renamed: from one directory to
// another that waits for all such of the file system, which another user can keep from their end.
class Removal {
 public:
  explicit Removal(const Whole& whole) : whole_(whole), most_threads_(threads_allowed()) {}

  // The first error.
  Status run(Fd top) {
    auto directory = std::make_shared<Directory>();
    directory->stream.reset(os::fdopendir(top.get()));
    if (!directory->stream) return errno_error("remove .");
    top.release();
    list(directory);
    work();
    std::vector<std::thread> threads;
    {
      const MutexLock hold(lock_);  // there will be no more: all is done
      threads.swap(threads_);
    }
    for (std::thread& t : threads) t.join();
    const MutexLock hold(lock_);
    return first_;
  }

 private:
  void note(const Directory* directory, std::string name) {
    const int error = errno;
    const MutexLock hold(lock_);
    if (!first_.ok() || error == ENOENT) return;
    for (; directory->parent; directory = directory->parent.get()) name = directory->name + "/" + name;
    first_ = errno_error("remove " + name, error);
  }

  // Hands names to any thread, or removes them here and now if there is enough to do.
  void offer(const DirectoryPtr& directory, std::vector<std::string> names) {
    directory->under_way.fetch_add(1);
    if (MutexLock hold(lock_); room()) {
      batches_.push_back({directory, std::move(names)});
      add_thread();
      hold.unlock();
      changed_.notify_one();
    } else {
      hold.unlock();
      remove({directory, std::move(names)});
    }
  }
  bool room() const REQUIRES(lock_) {
    return batches_.size() < kMostBatches && open_ < most_threads_ * kMostOpen;
  }

  // Without a thread the caller does all.
  void add_thread() REQUIRES(lock_) {
    if (idle_ > 0 || threads_.size() + 1 >= most_threads_ || batches_.size() < 2) return;
    std::thread thread;
    if (os::start_thread(&thread, [this] { work(); }) == 0)
      threads_.push_back(std::move(thread));
    else
      most_threads_ = threads_.size() + 1;
  }

  void work() {
    MutexLock hold(lock_);
    while (!done_) {
      if (batches_.empty()) {
        ++idle_;
        changed_.wait(&hold);
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
    for (;;) {
      errno = 0;
      const dirent* e = os::readdir(directory->stream.get());
      if (!e && errno != 0) note(directory.get(), ".");
      if (!e) break;
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
    struct stat st;
    Fd fd = remove_or_open(whole_, directory->fd(), name.c_str(), &st);
    if (!fd) {
      if (errno != 0) note(directory.get(), name);
      return;
    }
    if (directory->level < kMostLevels) return descend(directory, name, std::move(fd));
    while (empty_in_depth(directory, name, fd.get(), st)) continue;
    if (os::unlinkat(directory->fd(), name.c_str(), AT_REMOVEDIR) != 0) note(directory.get(), name);
  }

  void descend(const DirectoryPtr& parent, const std::string& name, Fd fd) {
    auto directory = std::make_shared<Directory>();
    directory->stream.reset(os::fdopendir(fd.get()));
    if (!directory->stream) return note(parent.get(), name);
    fd.release();
    directory->parent = parent;
    directory->name = name;
    directory->level = parent->level + 1;
    parent->under_way.fetch_add(1);
    open_.fetch_add(1);
    list(directory);
  }

  // True: it was too deep for one pass, and another one is worth while.
  bool empty_in_depth(const DirectoryPtr& directory, const std::string& name, int fd, const struct stat& st) {
    Way way(whole_.mount);
    bool is_whole = true, removed = false;
    const auto stays = [&](const std::string& entry) {
      note(directory.get(), way.path() + (entry.empty() ? "" : "/" + entry));
      way.note_rest();
    };
    if (!way.down(Fd(os::openat(fd, ".", kOpenDirectory)), st, name)) {
      note(directory.get(), name);
      return false;
    }
    for (;;) {
      if (const dirent* e = way.next()) {
        const std::string entry = e->d_name;
        struct stat below;
        if (entry == "." || entry == "..") continue;
        Fd inner = remove_or_open(whole_, way.fd(), entry.c_str(), &below);
        if (!inner && errno == 0) continue;
        if (!inner || !way.down(std::move(inner), below, entry)) stays(entry);
        if (way.levels() < kMostRemembered) continue;
        way.forget_half();
        is_whole = false;
        continue;
      }
      if (errno != 0) stays("");
      if (way.levels() == 1) return !is_whole && removed;
      const std::string left = way.name();
      if (!way.up()) {
        stays(left);
        return false;
      }
      if (os::unlinkat(way.fd(), left.c_str(), AT_REMOVEDIR) == 0)
        removed = true;
      else
        stays(left);
    }
  }

  // Something in `directory` has come to its end: what is empty now goes, and those above it.
  void finish(DirectoryPtr directory) {
    while (directory->under_way.fetch_sub(1) == 1) {
      const DirectoryPtr parent = directory->parent;
      if (!parent) {
        const MutexLock hold(lock_);
        done_ = true;
        changed_.notify_all();
        return;
      }
      directory->stream.reset();
      open_.fetch_sub(1);
      if (os::unlinkat(parent->fd(), directory->name.c_str(), AT_REMOVEDIR) != 0)
        note(parent.get(), directory->name);
      directory = parent;
    }
  }

  const Whole whole_;
  std::atomic<size_t> open_{0};

  Mutex lock_;
  Condition changed_;  // done_, or there are batches
  std::vector<Batch> batches_ GUARDED_BY(lock_);
  std::vector<std::thread> threads_ GUARDED_BY(lock_);
  size_t most_threads_ GUARDED_BY(lock_);
  size_t idle_ GUARDED_BY(lock_) = 0;
  bool done_ GUARDED_BY(lock_) = false;
  Status first_ GUARDED_BY(lock_);  // error
};

}  // namespace

Status empty_directory(int dirfd, Pages pages) {
  struct stat st;
  const int64_t mount = os::mount_id(dirfd);
  Fd top = open_to_empty(dirfd, ".", mount, &st);
  if (!top) return errno_error("open the directory that is to be emptied");
  return Removal({pages, mount}).run(std::move(top));
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
  const int64_t end = os::clock_ns(CLOCK_MONOTONIC) + int64_t{patience_ms} * 1000000;
  const int64_t mount = os::mount_id(dirfd);
  Usage usage;
  bool partial = false;
  Way way(mount);
  const auto enter = [&](int directory, const struct stat& st) {
    if (!way.down(Fd(os::openat(directory, ".", kOpenDirectory)), st, "")) return false;
    way.note_rest();
    return true;
  };
  struct stat st;
  if (os::fstat(dirfd, &st) != 0 || !enter(dirfd, st)) return usage;
  while (way.levels() > 0) {
    if (os::clock_ns(CLOCK_MONOTONIC) > end) return usage;
    const dirent* entry = way.next();
    if (!entry) {
      partial |= errno != 0;
      if (!way.up()) return usage;
      continue;
    }
    const std::string name = entry->d_name;
    if (name == "." || name == "..") continue;
    const Fd file = open_on_mount(way.fd(), name.c_str(), mount, 0);
    if (!file || os::fstat(file.get(), &st) != 0) {
      partial |= errno != ENOENT && errno != EXDEV;
      continue;
    }
    const bool is_directory = S_ISDIR(st.st_mode);
    ++usage.files;
    usage.bytes += uint64_t{512} * static_cast<uint64_t>(st.st_blocks) /
                   (is_directory ? 1 : std::max<uint64_t>(st.st_nlink, 1));
    if (!is_directory) continue;
    if (way.levels() >= kMostRemembered)
      partial = true;
    else
      partial |= !enter(file.get(), st) && errno != ENOENT;
  }
  usage.complete = !partial;
  return usage;
}

}  // namespace monarch
