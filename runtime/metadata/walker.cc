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

constexpr auto kShortagePause = std::chrono::seconds(1);

}  // namespace

Walker::Walker(Catalog* catalog, const Dataset* dataset, Board* board, Throttle* stats,
               std::function<void()> found)
    : catalog_(catalog),
      dataset_(dataset),
      board_(board),
      stats_(stats),
      found_(std::move(found)),
      unfinished_(dataset->roots.size(), 1),
      incomplete_(dataset->roots.size(), false) {}

void Walker::start(int threads) {
  {
    std::lock_guard<std::mutex> hold(lock_);
    for (uint32_t root = 0; root < dataset_->roots.size(); ++root) waiting_.push_back({root, ""});
  }
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { run(); });
}

void Walker::stop() {
  {
    std::lock_guard<std::mutex> hold(lock_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& t : threads_) t.join();
  threads_.clear();
}

void Walker::run() {
  std::unique_lock<std::mutex> hold(lock_);
  for (;;) {
    changed_.wait(hold, [&] {
      return stopping_ || !waiting_.empty() ||
             std::all_of(unfinished_.begin(), unfinished_.end(), [](uint64_t n) { return n == 0; });
    });
    if (stopping_ || waiting_.empty()) return;
    // Depth first: the list of waiting directories stays short.
    const Directory directory = std::move(waiting_.back());
    waiting_.pop_back();
    hold.unlock();
    list(directory);
    hold.lock();
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
    std::unique_lock<std::mutex> hold(lock_);
    if (changed_.wait_for(hold, kShortagePause, [this] { return stopping_.load(); })) {
      errno = EINTR;
      return fd;
    }
  }
}

void Walker::list(const Directory& directory) {
  const DatasetRoot& root = dataset_->roots[directory.root];
  const auto give_up = [this] { return stopping_.load(); };
  if (!stats_->wait(1, give_up)) return;
  Fd fd = open(directory);
  if (!fd && errno == EXDEV) return;  // another file system below: left alone
  const int raw = fd.get();
  std::unique_ptr<DIR, int (*)(DIR*)> dir(fd ? ::fdopendir(raw) : nullptr, &::closedir);
  if (!dir) {
    add(board_, AgentCounter::walk_errors);
    spdlog::warn("walk: {}/{}: {}", root.path, directory.path, std::strerror(errno));
    std::lock_guard<std::mutex> hold(lock_);
    incomplete_[directory.root] = true;
    return;
  }
  fd.release();  // closedir closes it
  add(board_, AgentCounter::walk_dirs);

  std::string path = directory.path.empty() ? "" : directory.path + "/";
  const size_t base = path.size();
  uint64_t files = 0;
  bool full = false;
  errno = 0;
  while (const dirent* e = ::readdir(dir.get())) {
    if (stopping_) return;
    const std::string_view entry = e->d_name;
    if (entry == "." || entry == "..") continue;
    uint8_t type = e->d_type;
    if (type == DT_UNKNOWN) {
      struct stat st;
      if (!stats_->wait(1, give_up)) return;
      if (::fstatat(raw, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0) type = IFTODT(st.st_mode);
    }
    path.resize(base);
    path += entry;
    if (path.size() >= kPathBytes) continue;  // no task can name it
    if (!catalog_->add(rel_path(directory.root, path.data(), path.size()), type)) full = true;
    if (type == DT_REG) ++files;
    if (type == DT_DIR) {
      std::lock_guard<std::mutex> hold(lock_);
      waiting_.push_back({directory.root, path});
      ++unfinished_[directory.root];
      changed_.notify_one();
    }
    errno = 0;
  }
  if (errno != 0 || full) {
    add(board_, AgentCounter::walk_errors);
    spdlog::warn("walk: {}/{}: {}", root.path, directory.path,
                 full ? "the catalog is full: the rest is read from the PFS" : std::strerror(errno));
    std::lock_guard<std::mutex> hold(lock_);
    incomplete_[directory.root] = true;
  }
  add(board_, AgentCounter::walk_files, files);
  found_();
}

}  // namespace monarch
