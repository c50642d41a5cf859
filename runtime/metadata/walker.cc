// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/walker.h"

#include <dirent.h>
#include <fcntl.h>

#include <algorithm>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/metadata/board.h"

namespace monarch {
namespace {

constexpr int64_t kSecondNs = 1000000000;
constexpr size_t kManyNames = 4096;  // of one directory: the sink hears that it is being read

bool same_directory(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && ns_of(a.st_mtim) == ns_of(b.st_mtim) &&
         ns_of(a.st_ctim) == ns_of(b.st_ctim);
}

// Whether a change from now on will show in the directory's times, whose clock may tick once a second,
// however much that clock and ours differ. Those of a day do not.
bool is_quiet(const struct stat& st) {
  constexpr int64_t kMostSkewNs = 86400 * int64_t{1000000000};
  const int64_t now = os::clock_ns(CLOCK_REALTIME);
  return ns_of(st.st_mtim) <= now - kMostSkewNs && ns_of(st.st_ctim) <= now - kMostSkewNs;
}

constexpr int kLooks = 3;  // at a directory that goes on changing
constexpr char kFull[] = "the catalog is full: the rest is read from the PFS";

}  // namespace

int64_t quiet_ns(const struct stat& st) {
  return st.st_ctim.tv_nsec != 0 ? patience::kTickNs : patience::kCoarseTickNs;
}

Walker::Walker(Catalog* catalog, const Dataset* dataset, Board* board, Throttle* stats,
               std::function<void()> found, ChangeWatch* watch, Clock& clock)
    : catalog_(catalog),
      dataset_(dataset),
      board_(board),
      stats_(stats),
      found_(std::move(found)),
      watch_(watch),
      clock_(clock),
      unfinished_(dataset->roots.size(), 1),
      incomplete_(dataset->roots.size(), false) {
  const MutexLock hold(lock_);
  for (uint32_t root = 0; root < dataset_->roots.size(); ++root) left_.emplace(root, "");
}

Walker::Names::Names(const Directory& directory)
    : root(directory.root), path(directory.path.empty() ? "" : directory.path + "/"), base(path.size()) {}

bool Walker::enter(const WalkedDirectory& walked) {
  using Listed = WalkedDirectory::Listed;
  if (walked.root >= dataset_->roots.size() || stopping_) return false;
  const Name name = {walked.root, walked.path};
  bool first = false;
  {
    const MutexLock hold(lock_);
    first = entered_.count(name) == 0;
    if (started_ || (!first && (walked.listing != Listed::kNow || owed_.count(name) == 0))) return false;
  }
  if (first && watch_ && watch_->takes_more()) {
    if (!stats_->wait(1, [this] { return stopping_.load(); })) return false;
    watch_->add(walked.root, walked.path);
  }
  // It may be told of before the directory that it is in.
  if (!walked.path.empty())
    (void)catalog_->add(rel_path(walked.root, walked.path.data(), walked.path.size()), DT_DIR);
  const Directory directory = {walked.root, walked.path};
  Names names(directory);
  for (const WalkedName& n : walked.names) enter_name(n.name, n.type, n.type, n.ino, &names);
  struct stat st {};
  st.st_dev = dataset_->roots[walked.root].dev;
  st.st_ino = walked.ino;
  st.st_mtim = {walked.mtime_ns / kSecondNs, walked.mtime_ns % kSecondNs};
  st.st_ctim = {walked.ctime_ns / kSecondNs, walked.ctime_ns % kSecondNs};
  if (walked.listing == Listed::kNow && names.all_known) keep_listing(directory, st, names);
  if (first) add(board_, AgentCounter::walk_files, names.files);
  {
    const MutexLock hold(lock_);
    entered_.insert(name);
    unfinished_[walked.root] -= left_.erase(name);
    if (walked.listing == Listed::kLater)
      owed_[name] = st;
    else
      owed_.erase(name);
  }
  if (names.full) give_up(directory, kFull);
  found_();
  return true;
}

void Walker::start(int threads, WalkSink* sink) {
  bool ended = true;
  {
    const MutexLock hold(lock_);
    if (stopping_) return;
    started_ = true;
    sink_ = sink;
    for (const auto& [root, path] : left_) waiting_.push_back({root, path});
    for (const auto& [name, values] : owed_) {
      const int64_t due = clock_.now_ns() + quiet_ns(values);
      young_.push_back({{name.first, name.second}, values, 1, due});
      ++unfinished_[name.first];
    }
    left_.clear();
    owed_.clear();
    for (uint32_t root = 0; root < unfinished_.size(); ++root) ended = ended_of(root);
    for (int i = 0; !ended && i < threads; ++i) {
      std::thread thread;
      if (const int error = os::start_thread(&thread, [this] { run(); }); error != 0) {
        spdlog::warn("walk: {} threads instead of {}: {}", i, threads, std::strerror(error));
        break;
      }
      threads_.push_back(std::move(thread));
    }
  }
  if (ended && sink) sink->ended();
}

void Walker::stop() {
  std::vector<std::thread> threads;
  {
    const MutexLock hold(lock_);
    stopping_ = true;
    threads.swap(threads_);
  }
  changed_.notify_all();
  for (std::thread& t : threads) t.join();
}

void Walker::rest(bool rests) {
  {
    const MutexLock hold(lock_);
    resting_ = rests;
  }
  changed_.notify_all();
}

bool Walker::has_ended() {
  const MutexLock hold(lock_);
  return std::all_of(unfinished_.begin(), unfinished_.end(), [](uint64_t n) { return n == 0; });
}

bool Walker::ended_of(uint32_t root) {
  if (unfinished_[root] == 0 && !stopping_ && !incomplete_[root]) catalog_->set_walked(root);
  const bool all = std::all_of(unfinished_.begin(), unfinished_.end(), [](uint64_t n) { return n == 0; });
  if (all) entered_.clear();
  return all;
}

bool Walker::take(Young* next) {
  MutexLock hold(lock_);
  while (!stopping_ && (resting_ || waiting_.empty())) {
    if (resting_) {
      changed_.wait(&hold);
      continue;
    }
    const int64_t now = clock_.now_ns();
    if (!young_.empty() && young_.front().due_ns <= now) {
      *next = std::move(young_.front());
      young_.pop_front();
      return true;
    }
    if (std::all_of(unfinished_.begin(), unfinished_.end(), [](uint64_t n) { return n == 0; })) return false;
    if (young_.empty()) {
      changed_.wait(&hold);
    } else {
      clock_.wait_until(&changed_, &hold, young_.front().due_ns);
    }
  }
  if (stopping_) return false;
  // Depth first: the list of waiting directories stays short.
  *next = {std::move(waiting_.back())};
  waiting_.pop_back();
  return true;
}

void Walker::run() {
  Young next;
  const Directory& directory = next.directory;
  while (take(&next)) {
    if (next.looks == 0)
      list(directory);
    else
      look_again(next);
    bool ended = false;
    {
      const MutexLock hold(lock_);
      if (--unfinished_[directory.root] == 0) {
        ended = ended_of(directory.root) && !stopping_;
        changed_.notify_all();
      }
    }
    if (ended && sink_) sink_->ended();
  }
}

Fd Walker::open(const Directory& directory) {
  const char* name = directory.path.empty() ? "." : directory.path.c_str();
  for (;;) {
    Fd fd(
        os::open_beneath(dataset_->roots[directory.root].fd.get(), name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (fd || !is_shortage(errno)) return fd;
    MutexLock hold(lock_);
    const int64_t end = clock_.now_ns() + patience::kLookNs;
    while (!stopping_ && clock_.now_ns() < end) clock_.wait_until(&changed_, &hold, end);
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
  if (!dir && errno == EXDEV) return leave_alone(directory);
  if (!dir) return give_up(directory, std::strerror(errno));
  add(board_, AgentCounter::walk_dirs);
  if (watch_) watch_->add(directory.root, directory.path, ::dirfd(dir.get()), &before);

  Names names(directory);
  if (!enter(directory, dir.get(), &names)) return;
  using Listed = WalkedDirectory::Listed;
  Listed listing = Listed::kNone;
  struct stat after {};
  if (names.all_known && catalog_->header().serve_metadata != 0 && os::fstat(::dirfd(dir.get()), &after) == 0)
    listing = is_quiet(after) && same_directory(before, after) ? Listed::kNow : Listed::kLater;
  if (listing == Listed::kNow) keep_listing(directory, before, names);
  tell(directory, listing, after, &names);
  if (listing == Listed::kLater) wait_for_quiet({directory, after, 1, 0});
  found_();
}

// Without one, tasks ask the PFS.
void Walker::keep_listing(const Directory& directory, const struct stat& st, const Names& names) {
  const RelPath path = rel_path(directory.root, directory.path.data(), directory.path.size());
  if (catalog_->header().serve_metadata != 0) (void)catalog_->add_listing(path, st, names.names);
}

// Another node has the root on a device of another number, and one that is not the root's (a subvolume) under
// a number that nobody here knows.
void Walker::tell(const Directory& directory, WalkedDirectory::Listed listing, const struct stat& st,
                  Names* names) {
  if (!sink_ || !names->whole) return;
  if (st.st_dev != dataset_->roots[directory.root].dev) listing = WalkedDirectory::Listed::kNone;
  sink_->read({directory.root, directory.path, listing, st.st_ino, ns_of(st.st_mtim), ns_of(st.st_ctim),
               std::move(names->walked)});
}

// The directory's clock is not ours. But once it has had these values for quiet_ns() of our time, its clock
// has moved on as far, and a later change gives it others.
void Walker::wait_for_quiet(Young young) {
  young.due_ns = clock_.now_ns() + quiet_ns(young.values);
  const uint32_t root = young.directory.root;
  const MutexLock hold(lock_);
  young_.push_back(std::move(young));
  ++unfinished_[root];
  changed_.notify_one();  // who waits without a limit now has one
}

void Walker::look_again(const Young& young) {
  if (!stats_->wait(1, [this] { return stopping_.load(); })) return;
  struct stat before, after;
  const Stream dir = open_stream(young.directory, &before);
  if (!dir) return;
  if (sink_) sink_->reads();
  const bool same = same_directory(young.values, before);
  Names names(young.directory);
  if (same) {
    add(board_, AgentCounter::walk_dirs);
    if (!read_again(dir.get(), &names) || !names.all_known) return;
    if (os::fstat(::dirfd(dir.get()), &after) == 0 && same_directory(before, after)) {
      keep_listing(young.directory, before, names);
      tell(young.directory, WalkedDirectory::Listed::kNow, before, &names);
      return;
    }
  }
  if (young.looks < kLooks) wait_for_quiet({young.directory, before, young.looks + 1, 0});
}

bool Walker::read_again(DIR* dir, Names* names) {
  errno = 0;
  while (const dirent* e = os::readdir(dir)) {
    if (stopping_) return false;
    const std::string_view name = e->d_name;
    const bool dots = name == "." || name == "..";
    names->path.resize(names->base);
    names->path += name;
    const Found known =
        dots || names->path.size() >= kPathBytes
            ? Found{}
            : catalog_->reader().find(rel_path(names->root, names->path.data(), names->path.size()));
    const Ref ref = name == "." ? kDot : name == ".." ? kDotDot : known.ref;
    names->all_known &= dots
                            ? e->d_type == DT_DIR
                            : known && catalog_->entry(ref).type.load(std::memory_order_relaxed) == e->d_type;
    names->names.push_back({ref, e->d_ino});
    note(*e, e->d_type, names);
    errno = 0;
  }
  return errno == 0;
}

// Something is mounted there, which may be another dataset.
void Walker::leave_alone(const Directory& directory) {
  const std::vector<DatasetRoot>& roots = dataset_->roots;
  const std::string& path = directory.path;
  const std::string full = roots[directory.root].path + "/" + path;
  if (std::any_of(roots.begin(), roots.end(), [&](const DatasetRoot& root) { return root.path == full; }))
    return;
  if (const Found found = catalog_->reader().find(rel_path(directory.root, path.data(), path.size())))
    catalog_->move(found.ref, state_word(State::kPass, Reason::kNotRegular),
                   state_word(State::kPass, Reason::kOtherDevice));
  spdlog::warn("walk: {} is a mount, and is read from the PFS: name it as a dataset, too", full);
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
  if (!entered_.empty() && entered_.count({directory.root, directory.path}) > 0) return;
  if (!started_) {
    unfinished_[directory.root] += left_.emplace(directory.root, directory.path).second;
    return;
  }
  waiting_.push_back(directory);
  ++unfinished_[directory.root];
  changed_.notify_one();
}

void Walker::note(const dirent& e, uint8_t type, Names* names) {
  if (!sink_) return;
  names->walked.push_back({e.d_name, type, e.d_ino});
  if (names->walked.size() % kManyNames == 0) sink_->reads();
}

void Walker::enter_name(std::string_view name, uint8_t type, uint8_t told, uint64_t ino, Names* names) {
  if (name == "." || name == "..") {
    names->names.push_back({name == "." ? kDot : kDotDot, ino});
    names->all_known &= told == DT_DIR;
    return;
  }
  names->path.resize(names->base);
  names->path += name;
  const bool fits = names->path.size() < kPathBytes;  // else no task can name it
  const RelPath path = rel_path(names->root, names->path.data(), names->path.size());
  const Ref ref = fits ? catalog_->add(path, type) : 0;
  names->full |= fits && !ref;
  names->all_known &= ref && catalog_->entry(ref).type.load(std::memory_order_relaxed) == told;
  names->names.push_back({ref, ino});
  const bool excluded = ref && type == DT_REG && dataset_->excludes(names->root, names->path);
  if (excluded) catalog_->move(ref, state_word(State::kKnown), state_word(State::kPass, Reason::kExcluded));
  names->files += type == DT_REG && !excluded;
  if (ref && type == DT_DIR) enter_directory({names->root, names->path});
}

bool Walker::enter(const Directory& directory, DIR* dir, Names* names) {
  errno = 0;
  while (const dirent* e = os::readdir(dir)) {
    if (stopping_) return false;
    const std::string_view name = e->d_name;
    const bool look = e->d_type == DT_UNKNOWN && name != "." && name != "..";
    const uint8_t type = look ? look_at(::dirfd(dir), e->d_name) : e->d_type;
    if (look && sink_) sink_->reads();
    enter_name(name, type, e->d_type, e->d_ino, names);
    note(*e, type, names);
    errno = 0;
  }
  names->whole = errno == 0;
  if (errno != 0 || names->full) {
    names->all_known = false;
    give_up(directory, names->full ? kFull : std::strerror(errno));
  }
  add(board_, AgentCounter::walk_files, names->files);
  return true;
}

}  // namespace monarch
