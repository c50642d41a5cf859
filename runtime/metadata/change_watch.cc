// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/change_watch.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/layout/board_client.h"

namespace monarch {
namespace {

constexpr uint32_t kMoved = IN_DELETE | IN_MOVED_FROM | IN_MOVED_TO;
constexpr uint32_t kOfItself = IN_MOVE_SELF | IN_DELETE_SELF;
constexpr uint32_t kMask =
    kMoved | kOfItself | IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE | IN_ONLYDIR | IN_DONT_FOLLOW;
// Writers make many events, of which equal ones are told once.
constexpr int kNapMs = patience::kBusyLookNs / 1'000'000;

uint64_t limit_of_user() {
  std::ifstream file("/proc/sys/fs/inotify/max_user_watches");
  uint64_t limit = 0;
  file >> limit;
  return limit / 2;
}

// Of a directory whose file is not to be had either.
bool is_gone(int error) { return error == ENOENT || error == ENOTDIR || error == ELOOP || error == EXDEV; }

bool same_access(const struct stat& a, const struct stat& b) {
  return a.st_mode == b.st_mode && a.st_uid == b.st_uid && a.st_gid == b.st_gid;
}

}  // namespace

ChangeWatch::ChangeWatch(const Dataset* dataset, Board* board, uint64_t most)
    : dataset_(dataset), board_(board), most_(most == 0 ? 0 : std::min(most, limit_of_user())) {}

void ChangeWatch::start() {
  if (most_ == 0) return;
  inotify_ = Fd(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
  end_ = Fd(::eventfd(0, EFD_CLOEXEC));
  int error = inotify_ && end_ ? 0 : errno;
  if (error == 0) error = os::start_thread(&thread_, [this] { run(); });
  if (error == 0) return;
  inotify_ = Fd();
  spdlog::warn("changes that programs without the library make to the dataset are not noticed: inotify: {}",
               std::strerror(error));
}

void ChangeWatch::stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!::write(end_.get(), &one, sizeof one);
  thread_.join();
}

void ChangeWatch::say_once(const std::string& text) {
  if (!said_)
    spdlog::warn("changes that programs without the library make are noticed in {} directories only: {}",
                 watched_.size(), text);
  said_ = true;
}

bool ChangeWatch::takes_more() {
  if (!inotify_) return false;
  const MutexLock hold(lock_);
  return seen_.size() < most_ || !said_;  // it says so once
}

void ChangeWatch::add(uint32_t root, std::string_view path) {
  if (!inotify_) return;
  // What is moved or closed above it concerns it, too.
  for (size_t at = 0; at < path.size(); at = std::min(path.find('/', at + 1), path.size()))
    add(root, path.substr(0, at), -1, nullptr);
  add(root, path, -1, nullptr);
}

void ChangeWatch::add(uint32_t root, std::string_view path, int dir, const struct stat* st) {
  if (!inotify_) return;
  const Name key(root, path);
  Watched watched;
  watched.names = {key};
  {
    MutexLock hold(lock_);
    for (auto seen = seen_.find(key); seen != seen_.end(); seen = seen_.find(key)) {
      if (seen->second) return;
      added_.wait(&hold);  // by another thread
    }
    if (seen_.size() >= most_) return say_once("watch_directories is reached");
    seen_[key] = false;
  }
  const int watch = watch_directory(dir, st, &watched);
  const int error = errno;
  const MutexLock hold(lock_);
  added_.notify_all();
  if (watch >= 0) {
    const auto known = watched_.find(watch);
    if (known != watched_.end())
      known->second.names.push_back(key);
    else
      watched_.emplace(watch, std::move(watched));
    seen_[key] = true;
    return;
  }
  seen_.erase(key);
  if (!is_gone(error))
    say_once(error == ENOSPC ? "the user's fs.inotify.max_user_watches is reached" : std::strerror(error));
}

// Not under the lock: the file system may let it wait. By descriptor, so that no symbolic link or mount leads
// elsewhere. -1: errno says why.
int ChangeWatch::watch_directory(int dir, const struct stat* st, Watched* watched) const {
  const auto& [number, path] = watched->names.front();
  const char* name = path.empty() ? "." : path.c_str();
  const int root = dataset_->roots[number].fd.get();
  const Fd opened(dir >= 0 ? -1 : os::open_beneath(root, name, O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (dir < 0 && !opened) return -1;
  const int fd = dir >= 0 ? dir : opened.get();
  char link[64];
  std::snprintf(link, sizeof link, "/proc/self/fd/%d/.", fd);
  const int watch = os::inotify_add_watch(inotify_.get(), link, kMask);
  if (watch < 0) return -1;
  if (st)
    watched->values = *st;
  else
    (void)os::fstat(fd, &watched->values);  // without them the first change of access counts
  return watch;
}

void ChangeWatch::run() {
  std::vector<Event> early;
  for (;;) {
    pollfd fds[2] = {{end_.get(), POLLIN, 0}, {inotify_.get(), POLLIN, 0}};
    if (::poll(fds, 2, early.empty() ? -1 : kNapMs) < 0 && errno != EINTR) return;
    if (fds[0].revents) return;
    take_all(&early);
    if (::poll(fds, 1, kNapMs) > 0) return;
  }
}

void ChangeWatch::take_all(std::vector<Event>* early) {
  alignas(inotify_event) char buffer[16384];
  std::vector<Event> events = std::move(*early);
  early->clear();
  ssize_t bytes;
  while ((bytes = ::read(inotify_.get(), buffer, sizeof buffer)) > 0) {
    for (const char* at = buffer; at < buffer + bytes;) {
      const auto* e = reinterpret_cast<const inotify_event*>(at);
      events.push_back({e->wd, e->mask, e->len > 0 ? e->name : ""});
      at += sizeof *e + e->len;
    }
  }
  for (Event& event : events)
    if (!take(event)) early->push_back(std::move(event));
}

bool ChangeWatch::take(const Event& event) {
  if ((event.mask & IN_Q_OVERFLOW) != 0) {
    close("more changes at a time than inotify tells");
    return true;
  }
  Watched directory;
  {
    const MutexLock hold(lock_);
    const auto found = watched_.find(event.watch);
    if (found == watched_.end()) return (event.mask & IN_IGNORED) != 0;
    if ((event.mask & IN_IGNORED) != 0) {
      for (const Name& name : found->second.names) seen_.erase(name);  // it may be made anew
      watched_.erase(found);
      return true;
    }
    directory = found->second;
  }
  if (!event.name.empty()) {
    for (const Name& name : directory.names) take_of_name(name, event);
    return true;
  }
  take_of_itself(&directory, event.mask);
  const MutexLock hold(lock_);
  if (const auto found = watched_.find(event.watch); found != watched_.end())
    found->second.values = directory.values;
  return true;
}

// A directory below a root that is renamed or removed is told of by the one above it as well.
void ChangeWatch::take_of_itself(Watched* directory, uint32_t mask) {
  for (const auto& [root, path] : directory->names)
    if (path.empty() && (mask & (kOfItself | IN_UNMOUNT)) != 0)
      return close(dataset_->roots[root].path + " was moved, removed or unmounted");
  if ((mask & IN_ATTRIB) == 0) return;
  struct stat now;
  const auto& [any_root, any_path] = directory->names.front();
  const char* name = any_path.empty() ? "." : any_path.c_str();
  const bool seen = os::fstatat(dataset_->roots[any_root].fd.get(), name, &now, AT_SYMLINK_NOFOLLOW) == 0;
  // An access control list shows in the group's bits, or concerns others than the job's user.
  if (seen && same_access(directory->values, now)) return;
  if (seen) directory->values = now;
  for (const auto& [root, path] : directory->names) {
    if (path.empty()) return close("the access to " + dataset_->roots[root].path + " was changed");
    mark(path_hash(root, path.data(), path.size()), kChangedDirectories);
  }
}

void ChangeWatch::take_of_name(const Name& directory, const Event& event) {
  const auto& [root, above] = directory;
  const std::string path = above.empty() ? event.name : above + "/" + event.name;
  const uint32_t hash = path_hash(root, path.data(), path.size());
  const bool is_directory = (event.mask & IN_ISDIR) != 0;
  const bool moved = (event.mask & kMoved) != 0;
  if (is_directory && moved) mark(hash, kChangedDirectories);
  if (!is_directory && (moved || (event.mask & (IN_MODIFY | IN_ATTRIB | IN_CLOSE_WRITE)) != 0))
    mark(hash, kChangedFiles);
}

// Each mark has all tasks look at what they hold open, so none is set twice, unless something may have been
// copied in between.
void ChangeWatch::mark(uint32_t hash, Changed kind) {
  const bool set = (board_->header.changed.load(std::memory_order_acquire) & kind) != 0;
  const bool known = is_invalid(*board_, hash);
  if (known && set && changed_at(*board_, hash) > board_->header.copied_at.load()) return;
  set_invalid(board_, hash, kind);
  tell_change(board_);
  if (!known) count(board_, TaskCounter::invalidations);
}

void ChangeWatch::close(std::string_view why) {
  if (board_->header.closed.exchange(kRootChanged, std::memory_order_acq_rel) == kRootChanged) return;
  count(board_, TaskCounter::invalidations);
  tell_change(board_);
  spdlog::warn("nothing is served from tiers any more: {}", why);
}

}  // namespace monarch
