// SPDX-License-Identifier: Apache-2.0
// Fills the catalog in the background: one parallel walk over the dataset's directories. File types
// come from readdir(3); a file is examined only where the file system does not tell its type.
#pragma once

#include <dirent.h>
#include <sys/stat.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

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

class Walker {
 public:
  // Directories listed and files examined keep to the rate `stats`. `found` is called from walking threads
  // whenever a directory's files have been entered. `watch` may be nullptr.
  Walker(Catalog* catalog, const Dataset* dataset, Board* board, Throttle* stats, std::function<void()> found,
         ChangeWatch* watch = nullptr);
  ~Walker() { stop(); }
  void start(int threads);
  // Ends the walk where it is and waits for its threads; a thread inside a hanging PFS call is waited for.
  void stop();

 private:
  struct Directory {
    uint32_t root;
    std::string path;  // relative, empty for the root
  };
  // The names of a directory, in the order in which readdir(3) gave them.
  struct Names {
    std::vector<NameInDirectory> names;
    bool all_known = true;  // each has an entry with the type that readdir(3) gave
  };
  // A directory that changed not long ago by its own clock, and how often it was looked at.
  struct Young {
    Directory directory;
    struct stat values {};
    int looks = 0;
    int64_t due_ns = 0;  // CLOCK_MONOTONIC: when it is read again
  };
  void wait_for_quiet(Young young) EXCLUDES(lock_);
  // Enters the listing of a directory that has not changed meanwhile.
  void look_again(const Young& young);
  // The names of a directory whose names are known; `names->all_known` is false if they are not. False: an
  // error, or the walk is to end.
  bool read_again(const Directory& directory, DIR* dir, Names* names);
  void run();
  // Waits for a directory to list, or to look at again (`young->looks` is not 0). False: the walk is at its
  // end.
  bool take(Directory* directory, Young* young) EXCLUDES(lock_);
  // Opens a directory; waits while descriptors or memory are short. Empty: errno says why.
  Fd open(const Directory& directory);
  using Stream = std::unique_ptr<DIR, int (*)(DIR*)>;
  // The same, to be read, and what fstat says of it. nullptr: errno says why.
  Stream open_stream(const Directory& directory, struct stat* st);
  void list(const Directory& directory);
  // Enters what the directory holds into the catalog. False: the walk is to end.
  bool enter(const Directory& directory, DIR* dir, Names* names);
  void enter_directory(const Directory& directory);
  uint8_t look_at(int dir, const char* name);
  void give_up(const Directory& directory, const char* why);

  Catalog* const catalog_;
  const Dataset* const dataset_;
  Board* const board_;
  Throttle* const stats_;
  const std::function<void()> found_;
  ChangeWatch* const watch_;

  Mutex lock_;
  Condition changed_;
  std::deque<Directory> waiting_ GUARDED_BY(lock_);
  std::deque<Young> young_ GUARDED_BY(lock_);  // in the order in which they are due
  std::vector<uint64_t> unfinished_
      GUARDED_BY(lock_);                            // per root: directories waiting, young or being listed
  std::vector<bool> incomplete_ GUARDED_BY(lock_);  // per root: a directory could not be listed
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace monarch
