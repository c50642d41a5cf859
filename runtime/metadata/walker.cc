// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/walker.h"

#include <dirent.h>
#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "runtime/base/os.h"
#include "runtime/metadata/board.h"

namespace monarch {
namespace {

constexpr int64_t kShortagePauseNs = 1000000000;

int64_t nanoseconds(const timespec& t) { return int64_t{t.tv_sec} * 1000000000 + t.tv_nsec; }

bool same_directory(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && nanoseconds(a.st_mtim) == nanoseconds(b.st_mtim) &&
         nanoseconds(a.st_ctim) == nanoseconds(b.st_ctim);
}

// Whether a change from now on will show in the directory's times, whose clock may tick once a second,
// however much that clock and ours differ. Those of a day do not.
bool is_quiet(const struct stat& st) {
  constexpr int64_t kMostSkewNs = 86400 * int64_t{1000000000};
  const int64_t now = os::clock_ns(CLOCK_REALTIME);
  return now - nanoseconds(st.st_mtim) >= kMostSkewNs && now - nanoseconds(st.st_ctim) >= kMostSkewNs;
}

constexpr int kLooks = 3;  // at a directory that goes on changing

}  // namespace

int64_t quiet_ns(const struct stat& st) { return st.st_ctim.tv_nsec != 0 ? 100000000 : 2000000000; }

Walker::Walker(Catalog* catalog, const Dataset* dataset, Board* board, Throttle* stats,
               std::function<void()> found, ChangeWatch* watch)
    : catalog_(catalog),
      dataset_(dataset),
      board_(board),
      stats_(stats),
      found_(std::move(found)),
      watch_(watch),
      unfinished_(dataset->roots.size(), 1),
      incomplete_(dataset->roots.size(), false) {}

void Walker::start(int threads) {
  {
    const MutexLock hold(lock_);
    for (uint32_t root = 0; root < dataset_->roots.size(); ++root) waiting_.push_back({root, ""});
  }
  for (int i = 0; i < threads; ++i) {
    std::thread thread;
    if (const int error = os::start_thread(&thread, [this] { run(); }); error != 0) {
      spdlog::warn("walk: {} threads instead of {}: {}", i, threads, std::strerror(error));
      return;
    }
    threads_.push_back(std::move(thread));
  }
}

void Walker::stop() {
  {
    const MutexLock hold(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

bool Walker::take(Directory* directory, Young* young) {
  MutexLock hold(lock_);
  *young = {};
  while (!stopping_ && waiting_.empty()) {
    const int64_t now = os::clock_ns(CLOCK_MONOTONIC);
    if (!young_.empty() && young_.front().due_ns <= now) {
      *young = std::move(young_.front());
      young_.pop_front();
      *directory = young->directory;
      return true;
    }
    if (std::all_of(unfinished_.begin(), unfinished_.end(), [](uint64_t n) { return n == 0; })) return false;
    if (young_.empty()) {
      changed_.wait(&hold);
    } else {
      changed_.wait_for(&hold, std::chrono::nanoseconds(young_.front().due_ns - now));
    }
  }
  if (stopping_) return false;
  // Depth first: the list of waiting directories stays short.
  *directory = std::move(waiting_.back());
  waiting_.pop_back();
  return true;
}

void Walker::run() {
  Directory directory;
  Young young;
  while (take(&directory, &young)) {
    if (young.looks == 0) {
      list(directory);
    } else {
      look_again(young);
    }
    const MutexLock hold(lock_);
    if (--unfinished_[directory.root] == 0) {
      if (!stopping_ && !incomplete_[directory.root]) catalog_->set_walked(directory.root);
      changed_.notify_all();
    }
  }
}

Fd Walker::open(const Directory& directory) {
  const char* name = directory.path.empty() ? "." : directory.path.c_str();
  for (;;) {
    Fd fd(
        os::open_beneath(dataset_->roots[directory.root].fd.get(), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd || !is_shortage(errno)) return fd;
    MutexLock hold(lock_);
    const int64_t end = os::clock_ns(CLOCK_MONOTONIC) + kShortagePauseNs;
    for (int64_t now = end - kShortagePauseNs; !stopping_ && now < end; now = os::clock_ns(CLOCK_MONOTONIC))
      changed_.wait_for(&hold, std::chrono::nanoseconds(end - now));
    if (stopping_) {
      errno = EINTR;
      return fd;
    }
  }
}

Walker::Stream Walker::open_stream(const Directory& directory, struct stat* st) {
  Fd fd = open(directory);
  const bool looked = fd && os::fstat(fd.get(), st) == 0;
  Stream stream(looked ? os::fdopendir(fd.get()) : nullptr, &::closedir);
  if (stream) fd.release();  // closedir closes it
  return stream;
}

void Walker::list(const Directory& directory) {
  if (!stats_->wait(1, [this] { return stopping_.load(); })) return;
  struct stat before;
  const Stream dir = open_stream(directory, &before);
  if (!dir && errno == EXDEV) return;  // another file system below: left alone
  if (!dir) return give_up(directory, std::strerror(errno));
  add(board_, AgentCounter::walk_dirs);
  if (watch_) watch_->add(directory.root, directory.path, ::dirfd(dir.get()), &before);

  Names names;
  if (!enter(directory, dir.get(), &names)) return;
  const RelPath path = rel_path(directory.root, directory.path.data(), directory.path.size());
  struct stat after;
  if (names.all_known && catalog_->header().serve_metadata != 0 &&
      os::fstat(::dirfd(dir.get()), &after) == 0) {
    if (is_quiet(after) && same_directory(before, after)) {
      (void)catalog_->add_listing(path, before, names.names);  // without one, tasks ask the PFS
    } else {
      wait_for_quiet({directory, after, 1, 0});
    }
  }
  found_();
}

// The directory's clock is not ours. But once it has had these values for quiet_ns() of our time, its clock
// has moved on as far, and a later change gives it others.
void Walker::wait_for_quiet(Young young) {
  young.due_ns = os::clock_ns(CLOCK_MONOTONIC) + quiet_ns(young.values);
  const MutexLock hold(lock_);
  ++unfinished_[young.directory.root];
  young_.push_back(std::move(young));
  changed_.notify_one();  // who waits without a limit now has one
}

void Walker::look_again(const Young& young) {
  if (!stats_->wait(1, [this] { return stopping_.load(); })) return;
  struct stat before, after;
  const Stream dir = open_stream(young.directory, &before);
  if (!dir) return;
  const bool same = same_directory(young.values, before);
  Names names;
  if (same) {
    add(board_, AgentCounter::walk_dirs);
    if (!read_again(young.directory, dir.get(), &names) || !names.all_known) return;
    const RelPath path =
        rel_path(young.directory.root, young.directory.path.data(), young.directory.path.size());
    if (os::fstat(::dirfd(dir.get()), &after) == 0 && same_directory(before, after)) {
      (void)catalog_->add_listing(path, before, names.names);
      return;
    }
  }
  if (young.looks < kLooks) wait_for_quiet({young.directory, before, young.looks + 1, 0});
}

bool Walker::read_again(const Directory& directory, DIR* dir, Names* names) {
  std::string path = directory.path.empty() ? "" : directory.path + "/";
  const size_t base = path.size();
  errno = 0;
  while (const dirent* e = os::readdir(dir)) {
    if (stopping_) return false;
    const std::string_view name = e->d_name;
    const bool dots = name == "." || name == "..";
    path.resize(base);
    path += name;
    const Found known = dots || path.size() >= kPathBytes
                            ? Found{}
                            : catalog_->reader().find(rel_path(directory.root, path.data(), path.size()));
    const Ref ref = name == "." ? kDot : name == ".." ? kDotDot : known.ref;
    names->all_known &= dots
                            ? e->d_type == DT_DIR
                            : known && catalog_->entry(ref).type.load(std::memory_order_relaxed) == e->d_type;
    names->names.push_back({ref, e->d_ino});
    errno = 0;
  }
  return errno == 0;
}

// Whoever lists the directory himself meets the error himself.
void Walker::give_up(const Directory& directory, const char* why) {
  add(board_, AgentCounter::walk_errors);
  spdlog::warn("walk: {}/{}: {}", dataset_->roots[directory.root].path, directory.path, why);
  const MutexLock hold(lock_);
  incomplete_[directory.root] = true;
}

// The type of a name whose directory does not tell it.
uint8_t Walker::look_at(int dir, const char* name) {
  struct stat st;
  if (!stats_->wait(1, [this] { return stopping_.load(); })) return DT_UNKNOWN;
  return os::fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) == 0 ? static_cast<uint8_t>(IFTODT(st.st_mode))
                                                               : uint8_t{DT_UNKNOWN};
}

void Walker::enter_directory(const Directory& directory) {
  const MutexLock hold(lock_);
  waiting_.push_back(directory);
  ++unfinished_[directory.root];
  changed_.notify_one();
}

bool Walker::enter(const Directory& directory, DIR* dir, Names* names) {
  std::string path = directory.path.empty() ? "" : directory.path + "/";
  const size_t base = path.size();
  uint64_t files = 0;
  bool full = false;
  errno = 0;
  while (const dirent* e = os::readdir(dir)) {
    if (stopping_) return false;
    const std::string_view name = e->d_name;
    if (name == "." || name == "..") {
      names->names.push_back({name == "." ? kDot : kDotDot, e->d_ino});
      names->all_known &= e->d_type == DT_DIR;
      continue;
    }
    const uint8_t type = e->d_type == DT_UNKNOWN ? look_at(::dirfd(dir), e->d_name) : e->d_type;
    path.resize(base);
    path += name;
    const bool fits = path.size() < kPathBytes;  // else no task can name it
    const Ref ref = fits ? catalog_->add(rel_path(directory.root, path.data(), path.size()), type) : 0;
    full |= fits && !ref;
    names->all_known &= ref && catalog_->entry(ref).type.load(std::memory_order_relaxed) == e->d_type;
    names->names.push_back({ref, e->d_ino});
    files += type == DT_REG;
    if (fits && type == DT_DIR) enter_directory({directory.root, path});
    errno = 0;
  }
  if (errno != 0 || full) {
    names->all_known = false;
    give_up(directory, full ? "the catalog is full: the rest is read from the PFS" : std::strerror(errno));
  }
  add(board_, AgentCounter::walk_files, files);
  return true;
}

}  // namespace monarch
