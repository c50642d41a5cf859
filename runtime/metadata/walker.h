// SPDX-License-Identifier: Apache-2.0
// Fills the catalog in the background: one parallel walk over the dataset's directories. File types
// come from readdir(3); a file is examined only where the file system does not tell its type. What the walk
// of another node has read is entered as if it had been read here, and not read again.
#pragma once

#include <dirent.h>
#include <sys/stat.h>

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/layout/board_layout.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/change_watch.h"
#include "runtime/metadata/dataset.h"
#include "runtime/base/throttle.h"

namespace monarch {

// For how long a directory must have had the same times until a change is sure to give it others: longer than
// its file system's clock may stand still. That is up to a second (2 s, to be sure), but where times have
// fractions it is a tick of a kernel, 10 ms at most (0.1 s). ctime tells: no program can set it.
int64_t quiet_ns(const struct stat& st);

struct WalkedName {
  std::string name;
  uint8_t type = DT_UNKNOWN;
  uint64_t ino = 0;
};
// What a walk has read of a directory: all its names, in the order in which readdir(3) gave them.
struct WalkedDirectory {
  enum class Listed : uint8_t {
    kNone,   // nobody keeps one
    kLater,  // not before the directory was quiet with these values
    kNow,    // it had these values, and a later change gives it others
  };
  uint32_t root = 0;
  std::string path;  // relative, empty for the root
  Listed listing = Listed::kNone;
  uint64_t ino = 0;
  int64_t mtime_ns = 0, ctime_ns = 0;
  std::vector<WalkedName> names;
};

// Who is told of a walk. Called by its threads, several at a time.
class WalkSink {
 public:
  virtual ~WalkSink() = default;
  // A directory was read to its end. The same one once more: its listing, after Listed::kLater.
  virtual void read(const WalkedDirectory& directory) = 0;
  // The walk goes on: a long directory is being read, a name looked at, or a directory that goes on changing.
  virtual void reads() = 0;
  // All that could be read was.
  virtual void ended() = 0;
};

class Walker {
 public:
  // Directories listed and files examined keep to the rate `stats`. `found` is called from walking threads
  // whenever a directory's files have been entered. `watch` may be nullptr.
  Walker(Catalog* catalog, const Dataset* dataset, Board* board, Throttle* stats, std::function<void()> found,
         ChangeWatch* watch = nullptr, Clock& clock = system_clock());
  ~Walker() { stop(); }
  // Enters what the walk of another node has read of a directory on the device of its root, before start().
  // False: nothing of it was new, or it is no directory of the dataset's. One thread at a time.
  bool enter(const WalkedDirectory& directory) EXCLUDES(lock_);
  // Reads all that was not entered; tells `sink`, which outlives the walk, unless it is nullptr.
  void start(int threads, WalkSink* sink = nullptr) EXCLUDES(lock_);
  // Ends the walk where it is and waits for its threads; a thread inside a hanging PFS call is waited for.
  void stop() EXCLUDES(lock_);
  // Begins no further directory from now on, or goes on. Any thread.
  void rest(bool rests) EXCLUDES(lock_);
  // Whether all that could be read was, here or by another node. Any thread.
  bool has_ended() EXCLUDES(lock_);

 private:
  struct Directory {
    uint32_t root;
    std::string path;  // relative, empty for the root
  };
  using Name = std::pair<uint32_t, std::string>;  // of a directory: its root, and its path
  // The names of a directory, in the order in which readdir(3) gave them.
  struct Names {
    explicit Names(const Directory& directory);
    const uint32_t root;
    std::string path;  // of the last name
    const size_t base;
    std::vector<NameInDirectory> names;
    bool all_known = true;           // each has an entry with the type that readdir(3) gave
    bool whole = true;               // all were read
    bool full = false;               // the catalog had no room for one
    uint64_t files = 0;              // how many are regular ones, and not excluded
    std::vector<WalkedName> walked;  // the same names, for the sink
  };
  // A directory that changed not long ago by its own clock, and how often it was looked at.
  struct Young {
    Directory directory;
    struct stat values {};
    int looks = 0;
    int64_t due_ns = 0;  // by the clock: when it is read again
  };
  void wait_for_quiet(Young young) EXCLUDES(lock_);
  // Enters the listing of a directory that has not changed meanwhile.
  void look_again(const Young& young);
  // The names of a directory whose names are known; `names->all_known` is false if they are not. False: an
  // error, or the walk is to end.
  bool read_again(DIR* dir, Names* names);
  void run();
  // Waits for a directory to list (`next->looks` is 0), or to look at again. False: the walk is at its end.
  bool take(Young* next) EXCLUDES(lock_);
  // Opens a directory; waits while descriptors or memory are short. Empty: errno says why.
  Fd open(const Directory& directory);
  using Stream = std::unique_ptr<DIR, int (*)(DIR*)>;
  // The same, to be read, and what fstat says of it. nullptr: errno says why.
  Stream open_stream(const Directory& directory, struct stat* st);
  void list(const Directory& directory);
  // Enters what the directory holds into the catalog. False: the walk is to end.
  bool enter(const Directory& directory, DIR* dir, Names* names);
  // Enters the next name, of a file of this type; `told` is what readdir(3) said of that.
  void enter_name(std::string_view name, uint8_t type, uint8_t told, uint64_t ino, Names* names)
      EXCLUDES(lock_);
  void note(const dirent& e, uint8_t type, Names* names);
  void enter_directory(const Directory& directory) EXCLUDES(lock_);
  void keep_listing(const Directory& directory, const struct stat& st, const Names& names);
  void tell(const Directory& directory, WalkedDirectory::Listed listing, const struct stat& st, Names* names);
  // Whether the whole walk has ended. That of the root is marked if it has.
  bool ended_of(uint32_t root) REQUIRES(lock_);
  uint8_t look_at(int dir, const char* name);
  void leave_alone(const Directory& directory);
  void give_up(const Directory& directory, const char* why) EXCLUDES(lock_);

  Catalog* const catalog_;
  const Dataset* const dataset_;
  Board* const board_;
  Throttle* const stats_;
  const std::function<void()> found_;
  ChangeWatch* const watch_;
  Clock& clock_;
  WalkSink* sink_ = nullptr;  // set before the threads start

  Mutex lock_;
  Condition changed_;
  bool started_ GUARDED_BY(lock_) = false;
  bool resting_ GUARDED_BY(lock_) = false;
  // Until then: the directories that are known and were not entered, and the values with which some are to
  // have a listing.
  std::set<Name> left_ GUARDED_BY(lock_);
  std::map<Name, struct stat> owed_ GUARDED_BY(lock_);
  std::set<Name> entered_ GUARDED_BY(lock_);  // not to be read here
  std::deque<Directory> waiting_ GUARDED_BY(lock_);
  std::deque<Young> young_ GUARDED_BY(lock_);  // in the order in which they are due
  std::vector<uint64_t> unfinished_
      GUARDED_BY(lock_);  // per root: directories left, waiting, young or being listed
  std::vector<bool> incomplete_ GUARDED_BY(lock_);  // per root: a directory could not be listed
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_ GUARDED_BY(lock_);
};

}  // namespace monarch
