// SPDX-License-Identifier: Apache-2.0
// Changes of the dataset that no hook sees: by static programs, Go, programs without the library, other
// users, on this node. The kernel tells of them (inotify(7)), within a second; what it tells is marked as the
// job's own changes are (preload/decide/changes.cc), so that from then on the PFS serves it.
//
// Not told: stores to a map until its file is closed, a change under another hard link's name, changes by
// other nodes.
#pragma once

#include <sys/stat.h>

#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/layout/board_layout.h"
#include "runtime/metadata/dataset.h"

namespace monarch {

class ChangeWatch {
 public:
  // `most`: directories, 0 for none. They count against the user's fs.inotify.max_user_watches, so at most
  // half of those are used.
  ChangeWatch(const Dataset* dataset, Board* board, uint64_t most);
  ~ChangeWatch() { stop(); }
  ChangeWatch(const ChangeWatch&) = delete;
  ChangeWatch& operator=(const ChangeWatch&) = delete;

  // Without inotify it watches nothing, which the log says.
  void start();
  void stop();
  // Whether add() may ask the PFS for a directory. Any thread.
  bool takes_more() EXCLUDES(lock_);
  // Watches the directory `path` of root number `root` ("": the root) and those above it, unless they are or
  // cannot be. To be called before anything in it is read. Any thread.
  void add(uint32_t root, std::string_view path);
  // The same of one directory, of which there is a descriptor, so that the PFS is not asked again, and what
  // fstat says of it.
  void add(uint32_t root, std::string_view path, int dir, const struct stat* st);

 private:
  using Name = std::pair<uint32_t, std::string>;  // a root's number, and a path below it
  struct Watched {
    std::vector<Name> names;  // several where roots are the same directories, by a mount
    struct stat values {};
  };
  struct Event {
    int watch = 0;
    uint32_t mask = 0;
    std::string name;
  };
  int watch_directory(int dir, const struct stat* st, Watched* watched) const;
  void run();
  // False: the watch is not known yet, since its directory is just being added.
  bool take(const Event& event) EXCLUDES(lock_);
  // Takes what the kernel has told, and what it told `early`, of directories that are just being added.
  void take_all(std::vector<Event>* early) EXCLUDES(lock_);
  void take_of_itself(Watched* directory, uint32_t mask);
  void take_of_name(const Name& directory, const Event& event);
  void mark(uint32_t hash, Changed kind);
  void close(std::string_view why);
  void say_once(const std::string& text) REQUIRES(lock_);

  const Dataset* const dataset_;
  Board* const board_;
  const uint64_t most_;
  Fd inotify_, end_;
  std::thread thread_;

  Mutex lock_;
  Condition added_;
  std::map<Name, bool> seen_ GUARDED_BY(lock_);  // whether it is watched by now
  std::unordered_map<int, Watched> watched_ GUARDED_BY(lock_);
  bool said_ GUARDED_BY(lock_) = false;
};

}  // namespace monarch
