// SPDX-License-Identifier: Apache-2.0
//
// slowfs [OPTION...] SOURCE MOUNTPOINT: shows a directory at a mount point as a slow, faulty, shared file
// system would, and counts what reaches it. Tests and measurements use it as the parallel file system. It
// returns when the mount is there, and ends at umount or by a signal. When root runs it, all users may use
// the mount.
//   --foreground      do not become a daemon
//   --cache           allow the page cache and mmap(MAP_SHARED): each open drops the pages of earlier ones
//   --keep-cache      the same, and pages stay for later opens, as where a client holds a lock
//   --attr-ttl S      how long the kernel caches names and attributes, seconds (default 1)
//   --match TEXT      faults strike only paths below SOURCE that contain TEXT
//   --SETTING N       each of `settings` below
//
// The control file `.slowfs` in the mount's root (not listed; never counted, delayed or made to fail) reads
// as
//   NAME VALUE        one line for each counter
// and takes these commands, one a line, as one write; an unknown one makes that write fail with EINVAL:
//   set KEY VALUE     change a setting; also restarts the counting of an ...-every
//   reset             zero the counters and restart the counting of all ...-every
//   release           set hang 0, and let the requests that hang go on
//
// Counters are exact: a request is counted before it is served. `lookup` is the resolution of one name,
// `getattr` a stat without that. `faults` counts injected faults, `errors` all errors but ENOENT, `hanging`
// is the number of requests that hang now.
//
// Without --cache each read call of an application arrives as it is (in pieces of at most 1 MiB). The kernel
// resolves a path again after ESTALE, so an open fails only when two strike in a row (estale-open-every 1). A
// process that waits for a hanging request cannot be killed, unless hang-killable is set. The root directory
// never hangs. Renames and removals below SOURCE are seen once the kernel's caches have expired.
//
// Threads: one for each request in progress. Locks: `Nodes::mutex_` and those of Bandwidth, Hang; none is
// held while another is taken or while a system call on SOURCE runs.
#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

// ---- settings

enum Key {
  kOpenUs,
  kReadUs,
  kMetaUs,
  kBandwidth,
  kEioEvery,
  kEioOpenEvery,
  kEstaleEvery,
  kEstaleOpenEvery,
  kShortEvery,
  kFaultLimit,
  kHang,
  kHangEvery,
  kHangMeta,
  kHangKillable,
  kWholeSeconds,
  kSizePercent,
  kShiftNumbers,
  kKeyCount
};

struct Setting {
  const char* name;
  std::atomic<uint64_t> value;
  std::atomic<uint64_t> seen;  // requests counted by an ...-every since it was set
};

constexpr uint64_t kForever = UINT32_MAX;

Setting settings[kKeyCount] = {
    {"open-us", 0, 0},         // latency of each open and create, microseconds
    {"read-us", 0, 0},         // latency of each read
    {"meta-us", 0, 0},         // latency of each lookup, getattr, opendir, readdir and change of a directory
    {"bw-mib", 0, 0},          // bandwidth of all reads and writes together, MiB/s (0: no limit)
    {"eio-every", 0, 0},       // each Nth read fails with EIO (0: none)
    {"eio-open-every", 0, 0},  // each Nth open fails with EIO
    {"estale-every", 0, 0},    // each Nth read fails with ESTALE
    {"estale-open-every", 0, 0},  // each Nth open fails with ESTALE
    {"short-every", 0, 0},        // each Nth read returns half of what it could
    {"fault-limit", 0, 0},        // inject at most N faults, hangs included, then no more (0: no limit)
    {"hang", 0, 0},               // opens and reads hang for N seconds, or `forever` (0: none)
    {"hang-every", 1, 0},         // only each Nth open or read hangs
    {"hang-meta", 0, 0},          // 1: lookup, getattr, opendir and readdir hang too
    {"hang-killable", 0, 0},      // 1: who waits for a hanging request can be interrupted
    {"whole-seconds", 0, 0},      // 1: times of files have no fractions
    {"size-percent", 100, 0},     // of a file's length is said to be its size
    {"shift-numbers", 0, 0},      // files' inode numbers are so much higher than those of their names
};

uint64_t setting(Key key) { return settings[key].value.load(std::memory_order_relaxed); }

struct Options {
  int root_fd = -1;
  bool cache = false, keep_cache = false;
  bool foreground = false;
  double attr_ttl = 1.0;
  std::string source, mountpoint;
};
Options options;

std::mutex match_mutex;
std::string match;  // faults strike only paths that contain it

int stat_at(const std::string& path, struct stat* attributes) {
  if (fstatat(options.root_fd, path.c_str(), attributes, AT_SYMLINK_NOFOLLOW) != 0) return -1;
  if (setting(kWholeSeconds) != 0)
    attributes->st_atim.tv_nsec = attributes->st_mtim.tv_nsec = attributes->st_ctim.tv_nsec = 0;
  attributes->st_ino += setting(kShiftNumbers);
  if (S_ISREG(attributes->st_mode))
    attributes->st_size = attributes->st_size * static_cast<off_t>(setting(kSizePercent)) / 100;
  return 0;
}

// ---- counters

enum Counter {
  kLookup,
  kGetattr,
  kSetattr,
  kOpen,
  kCreate,
  kRelease,
  kRead,
  kReadBytes,
  kWrite,
  kWriteBytes,
  kOpendir,
  kReaddir,
  kOther,
  kErrors,
  kFaults,
  kHanging,
  kCounterCount
};
const char* const kCounterNames[kCounterCount] = {
    "lookup", "getattr",     "setattr", "open",    "create", "release", "read",   "read_bytes",
    "write",  "write_bytes", "opendir", "readdir", "other",  "errors",  "faults", "hanging"};
std::atomic<uint64_t> counters[kCounterCount];
std::atomic<uint64_t> faults_left{0};  // with a fault-limit

void count(Counter counter, uint64_t n = 1) { counters[counter].fetch_add(n, std::memory_order_relaxed); }

std::string render_control() {
  std::ostringstream out;
  for (int i = 0; i < kCounterCount; i++) out << kCounterNames[i] << ' ' << counters[i].load() << '\n';
  return out.str();
}

// ---- slowness

// A virtual clock: each transfer takes its place on a time line that moves on at the configured rate, and
// that lags behind the present by at most one burst.
class Bandwidth {
 public:
  void pass(size_t bytes) {
    const double rate = static_cast<double>(setting(kBandwidth)) * 1048576.0;
    if (rate <= 0 || bytes == 0) return;
    Clock::time_point ready;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      next_ = std::max(next_, Clock::now() - time_for(256 * 1024.0, rate));
      next_ += time_for(static_cast<double>(bytes), rate);
      ready = next_;
    }
    std::this_thread::sleep_until(ready);
  }

 private:
  static Clock::duration time_for(double bytes, double rate) {
    return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(bytes / rate));
  }
  std::mutex mutex_;
  Clock::time_point next_{};
};
Bandwidth bandwidth;

void take_time(Key latency, size_t bytes = 0) {
  const uint64_t us = setting(latency);
  if (us > 0) std::this_thread::sleep_for(std::chrono::microseconds(us));
  bandwidth.pass(bytes);
}

// ---- nodes: what the kernel holds references to

constexpr char kRootPath[] = ".";  // SOURCE itself

struct Node {
  std::string path{};  // below SOURCE
  ino_t ino = 0;       // the source's inode number when it was looked up
  uint64_t references = 0;
  bool gone = false;        // path no longer means this file
  std::vector<int> open{};  // descriptors of it; the way to a file that is gone
};

// Nodes are found by path and not held open, so a big dataset needs no descriptors.  A node whose path has
// come to mean another file is `gone`; its node number stays with the kernel until it is forgotten.
class Nodes {
 public:
  Node* get(fuse_ino_t number) { return number == FUSE_ROOT_ID ? &root_ : reinterpret_cast<Node*>(number); }

  std::string path(fuse_ino_t number) {
    std::lock_guard<std::mutex> guard(mutex_);
    return get(number)->path;
  }

  std::string child_path(fuse_ino_t parent, const char* name) {
    return parent == FUSE_ROOT_ID ? name : path(parent) + "/" + name;
  }

  // Takes a reference to the node at path, whose inode number is ino now.
  fuse_ino_t reference(const std::string& path, ino_t ino) {
    std::lock_guard<std::mutex> guard(mutex_);
    if (const auto it = by_path_.find(path); it != by_path_.end() && it->second->ino != ino) drop(path);
    std::unique_ptr<Node>& node = by_path_[path];
    if (!node) node.reset(new Node{path, ino});
    node->references++;
    return reinterpret_cast<fuse_ino_t>(node.get());
  }

  void forget(fuse_ino_t number, uint64_t references) {
    if (number == FUSE_ROOT_ID) return;
    std::lock_guard<std::mutex> guard(mutex_);
    Node* node = get(number);
    node->references -= references;
    if (node->references > 0) return;
    if (node->gone)
      gone_.erase(node);
    else
      by_path_.erase(std::string(node->path));
  }

  void removed(const std::string& path) {
    std::lock_guard<std::mutex> guard(mutex_);
    drop(path);
  }

  void renamed(const std::string& from, const std::string& to, unsigned flags) {
    std::lock_guard<std::mutex> guard(mutex_);
    std::vector<std::unique_ptr<Node>> displaced;
    if (flags & RENAME_EXCHANGE)
      displaced = take(to);
    else
      drop(to);
    put(take(from), from, to);
    put(std::move(displaced), to, from);
  }

  void opened(fuse_ino_t number, int fd) {
    std::lock_guard<std::mutex> guard(mutex_);
    get(number)->open.push_back(fd);
  }

  void closed(fuse_ino_t number, int fd) {
    std::lock_guard<std::mutex> guard(mutex_);
    std::erase(get(number)->open, fd);
  }

  // The attributes; 0 or an errno.
  int stat(fuse_ino_t number, struct stat* attributes) {
    std::string path;
    {
      std::lock_guard<std::mutex> guard(mutex_);
      const Node* node = get(number);
      if (node->gone) return stat_open(node, attributes);
      path = node->path;
    }
    if (stat_at(path, attributes) == 0) return 0;
    if (errno != ENOENT) return errno;
    std::lock_guard<std::mutex> guard(mutex_);
    return stat_open(get(number), attributes);
  }

 private:
  static int stat_open(const Node* node, struct stat* attributes) {
    if (node->open.empty()) return ENOENT;
    return fstat(node->open.front(), attributes) == 0 ? 0 : errno;
  }

  void drop(const std::string& path) {
    const auto it = by_path_.find(path);
    if (it == by_path_.end()) return;
    Node* node = it->second.get();
    node->gone = true;
    gone_[node] = std::move(it->second);
    by_path_.erase(it);
  }

  // Takes the node at path and those below it out of the map.
  std::vector<std::unique_ptr<Node>> take(const std::string& path) {
    std::vector<std::unique_ptr<Node>> taken;
    const std::string prefix = path + "/";
    const auto take_at = [&](auto it) {
      taken.push_back(std::move(it->second));
      return by_path_.erase(it);
    };
    if (const auto it = by_path_.find(path); it != by_path_.end()) take_at(it);
    for (auto it = by_path_.lower_bound(prefix); it != by_path_.end() && it->first.starts_with(prefix);)
      it = take_at(it);
    return taken;
  }

  void put(std::vector<std::unique_ptr<Node>> taken, const std::string& from, const std::string& to) {
    for (std::unique_ptr<Node>& node : taken) {
      node->path = to + node->path.substr(from.size());
      by_path_[node->path] = std::move(node);
    }
  }

  std::mutex mutex_;
  Node root_{kRootPath, 0};
  std::map<std::string, std::unique_ptr<Node>> by_path_;
  std::map<Node*, std::unique_ptr<Node>> gone_;
};
Nodes nodes;

constexpr char kControlName[] = ".slowfs";
Node control_node;  // only its address is used, as the control file's node number
const fuse_ino_t kControl = reinterpret_cast<fuse_ino_t>(&control_node);

// ---- faults

std::atomic<bool> closing{false};

// Requests that hang wait here.
class Hang {
 public:
  // Waits until the time is over, `release`, the end of slowfs or (if hang-killable) an interrupt; false for
  // that.
  bool wait(fuse_req_t req) {
    const Clock::time_point end = Clock::now() + std::chrono::seconds(setting(kHang));
    std::unique_lock<std::mutex> lock(mutex_);
    const uint64_t epoch = epoch_;
    bool interrupted = false;
    count(kHanging);
    while (epoch == epoch_ && !closing && !interrupted && Clock::now() < end) {
      released_.wait_for(lock, std::chrono::milliseconds(20));
      interrupted = setting(kHangKillable) && fuse_req_interrupted(req);
    }
    counters[kHanging]--;
    return !interrupted;
  }
  void release() {
    std::lock_guard<std::mutex> guard(mutex_);
    settings[kHang].value = 0;
    epoch_++;
    released_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable released_;
  uint64_t epoch_ = 0;
};
Hang hang;

bool within_fault_limit() {
  if (setting(kFaultLimit) == 0) return true;
  uint64_t left = faults_left.load();
  while (left > 0 && !faults_left.compare_exchange_weak(left, left - 1)) {
  }
  return left > 0;
}

bool matches(const std::string& path) {
  std::lock_guard<std::mutex> guard(match_mutex);
  return match.empty() || path.find(match) != std::string::npos;
}

// Does the fault that `every` paces strike this request?
bool strikes(Key every, const std::string& path) {
  const uint64_t n = setting(every);
  if (n == 0 || !matches(path) || (settings[every].seen.fetch_add(1) + 1) % n != 0) return false;
  if (!within_fault_limit()) return false;
  count(kFaults);
  return true;
}

// Hangs if this request shall.  False: interrupted, answer EINTR.
bool pass_hang(fuse_req_t req, const std::string& path) {
  return setting(kHang) == 0 || !strikes(kHangEvery, path) || hang.wait(req);
}

bool pass_hang_meta(fuse_req_t req, const std::string& path) {
  return setting(kHangMeta) == 0 || path == kRootPath || pass_hang(req, path);
}

// ---- control file

bool parse_number(const std::string& text, uint64_t* value) {
  if (text == "forever") {
    *value = kForever;
    return true;
  }
  char* end = nullptr;
  errno = 0;
  *value = strtoull(text.c_str(), &end, 10);
  return !text.empty() && text[0] >= '0' && text[0] <= '9' && *end == '\0' && errno == 0;
}

// False: there is no such key, or the value is none for it.
bool change_setting(const std::string& name, const std::string& text) {
  if (name == "match") {
    std::lock_guard<std::mutex> guard(match_mutex);
    match = text;
    return true;
  }
  for (Setting& s : settings) {
    if (name != s.name) continue;
    uint64_t value = 0;
    if (!parse_number(text, &value)) return false;
    if (&s == &settings[kHangEvery] && value == 0) return false;
    if (&s == &settings[kFaultLimit]) faults_left = value;
    s.value = value;
    s.seen = 0;
    return true;
  }
  return false;
}

bool run_command(const std::string& line) {
  std::istringstream in(line);
  std::string verb, key, value;
  in >> verb >> key >> std::ws;
  std::getline(in, value);
  if (verb.empty()) return true;
  if (verb == "set") return change_setting(key, value);
  if (verb == "release" && key.empty()) {
    hang.release();
    return true;
  }
  if (verb == "reset" && key.empty()) {
    for (int i = 0; i < kCounterCount; i++)
      if (i != kHanging) counters[i] = 0;
    for (Setting& s : settings) s.seen = 0;
    return true;
  }
  return false;
}

bool run_commands(const std::string& text) {
  std::istringstream in(text);
  bool good = true;
  for (std::string line; std::getline(in, line);) good = run_command(line) && good;
  return good;
}

struct stat control_attributes() {
  struct stat st {};
  st.st_ino = kControl;
  st.st_mode = S_IFREG | 0644;
  st.st_nlink = 1;
  st.st_uid = geteuid();
  st.st_gid = getegid();
  return st;
}

// ---- replies

void reply_error(fuse_req_t req, int error) {
  if (error != 0 && error != ENOENT) count(kErrors);
  fuse_reply_err(req, error);
}

// The entry at path, with a new reference; 0 or an errno.
int make_entry(const std::string& path, fuse_entry_param* entry) {
  *entry = {};
  if (stat_at(path, &entry->attr) != 0) return errno;
  entry->ino = nodes.reference(path, entry->attr.st_ino);
  entry->attr_timeout = entry->entry_timeout = options.attr_ttl;
  return 0;
}

void reply_entry(fuse_req_t req, const std::string& path) {
  fuse_entry_param entry;
  if (const int error = make_entry(path, &entry)) return reply_error(req, error);
  if (fuse_reply_entry(req, &entry) != 0) nodes.forget(entry.ino, 1);
}

// What root creates for another user belongs to that user.
void give_to_caller(fuse_req_t req, const std::string& path) {
  if (geteuid() != 0) return;
  const fuse_ctx* caller = fuse_req_ctx(req);
  struct stat parent {};
  const std::string directory =
      path.find('/') == std::string::npos ? kRootPath : path.substr(0, path.rfind('/'));
  const bool inherit =
      fstatat(options.root_fd, directory.c_str(), &parent, 0) == 0 && (parent.st_mode & S_ISGID);
  (void)!fchownat(options.root_fd, path.c_str(), caller->uid, inherit ? static_cast<gid_t>(-1) : caller->gid,
                  AT_SYMLINK_NOFOLLOW);
}

// ---- operations: names and attributes

void op_init(void*, fuse_conn_info* connection) {
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_HANDLE_KILLPRIV);
}

void op_lookup(fuse_req_t req, fuse_ino_t parent, const char* name) {
  if (parent == FUSE_ROOT_ID && strcmp(name, kControlName) == 0) {
    fuse_entry_param entry{};
    entry.ino = kControl;
    entry.attr = control_attributes();
    fuse_reply_entry(req, &entry);
    return;
  }
  count(kLookup);
  const std::string path = nodes.child_path(parent, name);
  if (!pass_hang_meta(req, path)) return reply_error(req, EINTR);
  take_time(kMetaUs);
  reply_entry(req, path);
}

void op_forget(fuse_req_t req, fuse_ino_t number, uint64_t references) {
  if (number != kControl) nodes.forget(number, references);
  fuse_reply_none(req);
}

void op_getattr(fuse_req_t req, fuse_ino_t number, fuse_file_info*) {
  struct stat st = control_attributes();
  if (number == kControl) {
    fuse_reply_attr(req, &st, 0);
    return;
  }
  count(kGetattr);
  if (!pass_hang_meta(req, nodes.path(number))) return reply_error(req, EINTR);
  take_time(kMetaUs);
  if (const int error = nodes.stat(number, &st)) return reply_error(req, error);
  fuse_reply_attr(req, &st, options.attr_ttl);
}

timespec requested_time(int to_set, int flag, int now_flag, timespec value) {
  if (to_set & now_flag) return {0, UTIME_NOW};
  return to_set & flag ? value : timespec{0, UTIME_OMIT};
}

// Through the descriptor if there is one, else by path. 0 or an errno.
int change_attributes(fuse_ino_t number, int fd, const struct stat& wanted, int to_set) {
  const std::string path = nodes.path(number);
  const std::string name = fd >= 0 ? "/proc/self/fd/" + std::to_string(fd) : path;
  if (to_set & FUSE_SET_ATTR_MODE && fchmodat(options.root_fd, name.c_str(), wanted.st_mode, 0) != 0)
    return errno;
  const uid_t uid = to_set & FUSE_SET_ATTR_UID ? wanted.st_uid : static_cast<uid_t>(-1);
  const gid_t gid = to_set & FUSE_SET_ATTR_GID ? wanted.st_gid : static_cast<gid_t>(-1);
  if (to_set & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID) &&
      fchownat(options.root_fd, path.c_str(), uid, gid, AT_SYMLINK_NOFOLLOW) != 0)
    return errno;
  if (to_set & FUSE_SET_ATTR_SIZE) {
    const int own = fd >= 0 ? dup(fd) : openat(options.root_fd, path.c_str(), O_WRONLY | O_CLOEXEC);
    if (own < 0) return errno;
    const int error = ftruncate(own, wanted.st_size) == 0 ? 0 : errno;
    close(own);
    if (error) return error;
  }
  if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_MTIME)) {
    const timespec times[2] = {
        requested_time(to_set, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW, wanted.st_atim),
        requested_time(to_set, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW, wanted.st_mtim)};
    if (utimensat(options.root_fd, name.c_str(), times, fd >= 0 ? 0 : AT_SYMLINK_NOFOLLOW) != 0) return errno;
  }
  return 0;
}

void op_setattr(fuse_req_t req, fuse_ino_t number, struct stat* wanted, int to_set, fuse_file_info* file) {
  struct stat st = control_attributes();
  if (number == kControl) {  // O_TRUNC of a shell's redirection
    fuse_reply_attr(req, &st, 0);
    return;
  }
  count(kSetattr);
  take_time(kMetaUs);
  const int fd = file ? static_cast<int>(file->fh) : -1;
  if (const int error = change_attributes(number, fd, *wanted, to_set)) return reply_error(req, error);
  if (const int error = nodes.stat(number, &st)) return reply_error(req, error);
  fuse_reply_attr(req, &st, options.attr_ttl);
}

void count_change() {
  count(kOther);
  take_time(kMetaUs);
}

void op_readlink(fuse_req_t req, fuse_ino_t number) {
  char target[PATH_MAX + 1];
  count_change();
  const ssize_t n = readlinkat(options.root_fd, nodes.path(number).c_str(), target, sizeof target - 1);
  if (n < 0) return reply_error(req, errno);
  target[n] = '\0';
  fuse_reply_readlink(req, target);
}

void reply_created(fuse_req_t req, const std::string& path, int rc) {
  if (rc != 0) return reply_error(req, errno);
  give_to_caller(req, path);
  reply_entry(req, path);
}

void op_mknod(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, dev_t device) {
  count_change();
  const std::string path = nodes.child_path(parent, name);
  reply_created(req, path, mknodat(options.root_fd, path.c_str(), mode, device));
}

void op_mkdir(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode) {
  count_change();
  const std::string path = nodes.child_path(parent, name);
  reply_created(req, path, mkdirat(options.root_fd, path.c_str(), mode));
}

void op_symlink(fuse_req_t req, const char* target, fuse_ino_t parent, const char* name) {
  count_change();
  const std::string path = nodes.child_path(parent, name);
  reply_created(req, path, symlinkat(target, options.root_fd, path.c_str()));
}

void op_link(fuse_req_t req, fuse_ino_t number, fuse_ino_t parent, const char* name) {
  count_change();
  const std::string path = nodes.child_path(parent, name);
  if (linkat(options.root_fd, nodes.path(number).c_str(), options.root_fd, path.c_str(), 0) != 0)
    return reply_error(req, errno);
  reply_entry(req, path);
}

void remove_name(fuse_req_t req, fuse_ino_t parent, const char* name, int flags) {
  count_change();
  const std::string path = nodes.child_path(parent, name);
  if (unlinkat(options.root_fd, path.c_str(), flags) != 0) return reply_error(req, errno);
  nodes.removed(path);
  reply_error(req, 0);
}
void op_unlink(fuse_req_t req, fuse_ino_t parent, const char* name) { remove_name(req, parent, name, 0); }
void op_rmdir(fuse_req_t req, fuse_ino_t parent, const char* name) {
  remove_name(req, parent, name, AT_REMOVEDIR);
}

void op_rename(fuse_req_t req, fuse_ino_t from_parent, const char* from_name, fuse_ino_t to_parent,
               const char* to_name, unsigned flags) {
  count_change();
  const std::string from = nodes.child_path(from_parent, from_name),
                    to = nodes.child_path(to_parent, to_name);
  if (renameat2(options.root_fd, from.c_str(), options.root_fd, to.c_str(), flags) != 0)
    return reply_error(req, errno);
  nodes.renamed(from, to, flags);
  reply_error(req, 0);
}

void op_statfs(fuse_req_t req, fuse_ino_t) {
  struct statvfs st {};
  count_change();
  if (fstatvfs(options.root_fd, &st) != 0) return reply_error(req, errno);
  fuse_reply_statfs(req, &st);
}

// ---- operations: directories

// The stream of an opened directory; it is read on from where the last request ended, unless that asks
// elsewhere.
struct Directory {
  DIR* stream;
  dirent* entry = nullptr;  // read but not yet given
  off_t offset = 0;         // after the last entry given
};

void op_opendir(fuse_req_t req, fuse_ino_t number, fuse_file_info* file) {
  count(kOpendir);
  if (!pass_hang_meta(req, nodes.path(number))) return reply_error(req, EINTR);
  take_time(kMetaUs);
  const int fd = openat(options.root_fd, nodes.path(number).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return reply_error(req, errno);
  auto directory = std::make_unique<Directory>(Directory{fdopendir(fd)});
  file->fh = reinterpret_cast<uint64_t>(directory.get());
  if (fuse_reply_open(req, file) == 0) {
    (void)directory.release();
  } else {
    closedir(directory->stream);
  }
}

void op_readdir(fuse_req_t req, fuse_ino_t number, size_t size, off_t offset, fuse_file_info* file) {
  count(kReaddir);
  if (!pass_hang_meta(req, nodes.path(number))) return reply_error(req, EINTR);
  take_time(kMetaUs);
  auto* directory = reinterpret_cast<Directory*>(file->fh);
  if (offset != directory->offset) {
    seekdir(directory->stream, offset);
    directory->entry = nullptr;
    directory->offset = offset;
  }
  std::vector<char> buffer(size);
  size_t used = 0;
  for (;;) {
    errno = 0;
    if (!directory->entry) directory->entry = readdir(directory->stream);
    if (!directory->entry) {
      if (errno != 0 && used == 0) return reply_error(req, errno);
      break;
    }
    const dirent* entry = directory->entry;
    struct stat st {};
    st.st_ino = entry->d_ino;
    st.st_mode = static_cast<mode_t>(entry->d_type) << 12;
    const size_t needed =
        fuse_add_direntry(req, buffer.data() + used, size - used, entry->d_name, &st, entry->d_off);
    if (needed > size - used) break;
    used += needed;
    directory->offset = entry->d_off;
    directory->entry = nullptr;
  }
  fuse_reply_buf(req, buffer.data(), used);
}

void op_releasedir(fuse_req_t req, fuse_ino_t, fuse_file_info* file) {
  std::unique_ptr<Directory> directory(reinterpret_cast<Directory*>(file->fh));
  closedir(directory->stream);
  fuse_reply_err(req, 0);
}

// ---- operations: files

// Opens by path; a descriptor or -errno.  The kernel has the offsets, so O_APPEND is its affair.
int open_source(const std::string& path, int flags, mode_t mode) {
  flags &= ~(O_DIRECT | O_APPEND);
  const int fd = openat(options.root_fd, path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, mode);
  return fd >= 0 ? fd : -errno;
}

void use_descriptor(fuse_file_info* file, int fd) {
  file->fh = static_cast<uint64_t>(fd);
  file->direct_io = !options.cache;
  file->keep_cache = options.keep_cache;
  file->noflush = 1;
}

void open_control(fuse_req_t req, fuse_file_info* file) {
  auto text = std::make_unique<std::string>(render_control());
  file->fh = reinterpret_cast<uint64_t>(text.get());
  file->direct_io = 1;
  file->noflush = 1;
  if (fuse_reply_open(req, file) == 0) (void)text.release();
}

void op_open(fuse_req_t req, fuse_ino_t number, fuse_file_info* file) {
  if (number == kControl) return open_control(req, file);
  count(kOpen);
  const std::string path = nodes.path(number);
  if (!pass_hang(req, path)) return reply_error(req, EINTR);
  take_time(kOpenUs);
  if (strikes(kEioOpenEvery, path)) return reply_error(req, EIO);
  if (strikes(kEstaleOpenEvery, path)) return reply_error(req, ESTALE);
  const int fd = open_source(path, file->flags & ~O_CREAT, 0);
  if (fd < 0) return reply_error(req, -fd);
  use_descriptor(file, fd);
  nodes.opened(number, fd);
  if (fuse_reply_open(req, file) != 0) {
    nodes.closed(number, fd);
    close(fd);
  }
}

void op_create(fuse_req_t req, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* file) {
  count(kCreate);
  take_time(kOpenUs);
  const std::string path = nodes.child_path(parent, name);
  struct stat before {};
  const bool existed = fstatat(options.root_fd, path.c_str(), &before, AT_SYMLINK_NOFOLLOW) == 0;
  const int fd = open_source(path, file->flags | O_CREAT, mode);
  if (fd < 0) return reply_error(req, -fd);
  if (!existed) give_to_caller(req, path);
  fuse_entry_param entry;
  if (const int error = make_entry(path, &entry)) {
    close(fd);
    return reply_error(req, error);
  }
  use_descriptor(file, fd);
  nodes.opened(entry.ino, fd);
  if (fuse_reply_create(req, &entry, file) != 0) {
    nodes.closed(entry.ino, fd);
    nodes.forget(entry.ino, 1);
    close(fd);
  }
}

void op_release(fuse_req_t req, fuse_ino_t number, fuse_file_info* file) {
  if (number == kControl) {
    delete reinterpret_cast<std::string*>(file->fh);
  } else {
    const int fd = static_cast<int>(file->fh);
    count(kRelease);
    nodes.closed(number, fd);
    close(fd);
  }
  fuse_reply_err(req, 0);
}

void read_control(fuse_req_t req, size_t size, off_t offset, fuse_file_info* file) {
  const auto& text = *reinterpret_cast<std::string*>(file->fh);
  // A copy: the reader may close, and so free the text, before the call that replies has returned.
  const std::string part = text.substr(std::min(static_cast<size_t>(offset), text.size()), size);
  fuse_reply_buf(req, part.data(), part.size());
}

void op_read(fuse_req_t req, fuse_ino_t number, size_t size, off_t offset, fuse_file_info* file) {
  if (number == kControl) return read_control(req, size, offset, file);
  count(kRead);
  const std::string path = nodes.path(number);
  if (!pass_hang(req, path)) return reply_error(req, EINTR);
  const Key error_faults[] = {kEioEvery, kEstaleEvery};
  for (const Key fault : error_faults) {
    if (!strikes(fault, path)) continue;
    take_time(kReadUs);
    return reply_error(req, fault == kEioEvery ? EIO : ESTALE);
  }
  const std::unique_ptr<char[]> buffer(new char[size]);
  ssize_t n = pread(static_cast<int>(file->fh), buffer.get(), size, offset);
  if (n < 0) return reply_error(req, errno);
  if (n > 1 && strikes(kShortEvery, path)) n /= 2;
  count(kReadBytes, static_cast<uint64_t>(n));
  take_time(kReadUs, static_cast<size_t>(n));
  fuse_reply_buf(req, buffer.get(), static_cast<size_t>(n));
}

void op_write(fuse_req_t req, fuse_ino_t number, const char* data, size_t size, off_t offset,
              fuse_file_info* file) {
  if (number == kControl) {
    if (run_commands(std::string(data, size)))
      fuse_reply_write(req, size);
    else
      fuse_reply_err(req, EINVAL);
    return;
  }
  count(kWrite);
  const ssize_t n = pwrite(static_cast<int>(file->fh), data, size, offset);
  if (n < 0) return reply_error(req, errno);
  count(kWriteBytes, static_cast<uint64_t>(n));
  bandwidth.pass(static_cast<size_t>(n));
  fuse_reply_write(req, static_cast<size_t>(n));
}

fuse_lowlevel_ops operations() {
  fuse_lowlevel_ops ops{};
  ops.init = op_init;
  ops.lookup = op_lookup;
  ops.forget = op_forget;
  ops.getattr = op_getattr;
  ops.setattr = op_setattr;
  ops.readlink = op_readlink;
  ops.mknod = op_mknod;
  ops.mkdir = op_mkdir;
  ops.symlink = op_symlink;
  ops.link = op_link;
  ops.unlink = op_unlink;
  ops.rmdir = op_rmdir;
  ops.rename = op_rename;
  ops.statfs = op_statfs;
  ops.opendir = op_opendir;
  ops.readdir = op_readdir;
  ops.releasedir = op_releasedir;
  ops.open = op_open;
  ops.create = op_create;
  ops.release = op_release;
  ops.read = op_read;
  ops.write = op_write;
  return ops;
}

// ---- start and end

[[noreturn]] void refuse(const std::string& why) {
  fprintf(stderr, "slowfs: %s\n", why.c_str());
  exit(2);
}

void parse_arguments(int argc, char** argv) {
  enum { kForeground = 256, kCache, kKeepCache, kTtl, kSetting };
  std::vector<option> table = {{"foreground", no_argument, nullptr, kForeground},
                               {"cache", no_argument, nullptr, kCache},
                               {"keep-cache", no_argument, nullptr, kKeepCache},
                               {"attr-ttl", required_argument, nullptr, kTtl},
                               {"match", required_argument, nullptr, kSetting}};
  for (const Setting& s : settings) table.push_back({s.name, required_argument, nullptr, kSetting});
  table.push_back({nullptr, 0, nullptr, 0});
  int index = 0;
  for (int c; (c = getopt_long(argc, argv, "", table.data(), &index)) != -1;) {
    const char* const name = table[static_cast<size_t>(index)].name;
    if (c == '?') refuse("there is no such option");
    if (c == kForeground) options.foreground = true;
    if (c == kKeepCache) options.keep_cache = true;
    if (c == kCache || c == kKeepCache) options.cache = true;
    if (c == kTtl) options.attr_ttl = strtod(optarg, nullptr);
    if (c == kSetting && !change_setting(name, optarg))
      refuse(std::string("--") + name + ": '" + optarg + "' is no value for it");
  }
  if (argc - optind != 2) refuse("give SOURCE and MOUNTPOINT");
  options.source = argv[optind];
  options.mountpoint = std::filesystem::absolute(argv[optind + 1]);
}

fuse_session* session;

void on_signal(int) {
  closing = true;
  fuse_session_exit(session);
}

// libfuse blocks these signals in its workers; the main thread, in the session's loop, is woken by them.
void catch_signals() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaction(signal, &action, nullptr);
  signal(SIGPIPE, SIG_IGN);
}

// Mounts and serves until the end. The exit code.
int serve() {
  std::string mount_options = "fsname=slowfs,subtype=slowfs,default_permissions";
  if (geteuid() == 0) mount_options += ",allow_other";
  std::vector<std::string> words = {"slowfs", "-o", mount_options};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  fuse_args arguments = FUSE_ARGS_INIT(static_cast<int>(pointers.size()), pointers.data());

  const fuse_lowlevel_ops ops = operations();
  session = fuse_session_new(&arguments, &ops, sizeof ops, nullptr);
  fuse_opt_free_args(&arguments);
  if (!session) return 1;
  catch_signals();
  if (fuse_session_mount(session, options.mountpoint.c_str()) != 0) return 1;
  if (fuse_daemonize(options.foreground) != 0) return 1;
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(config, 10000);  // a hanging request keeps its thread
  fuse_loop_cfg_set_idle_threads(config, 64);
  fuse_session_loop_mt(session, config);
  fuse_loop_cfg_destroy(config);
  fuse_session_unmount(session);
  fuse_session_destroy(session);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  parse_arguments(argc, argv);
  options.root_fd = open(options.source.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (options.root_fd < 0) refuse("cannot open " + options.source + ": " + strerror(errno));
  umask(0);
  prctl(PR_SET_TIMERSLACK, 1UL);  // inherited by all threads: latencies to the microsecond, not to 50
  return serve();
}
