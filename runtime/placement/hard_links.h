// SPDX-License-Identifier: Apache-2.0
// The names of one file on the PFS share one copy: the first that is staged has it made, the others link to
// it. So its bytes are read once, and take their space once.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {

// All members may be called from any thread. A name is the Ref of its entry.
class HardLinks {
 public:
  // A published copy.
  struct Copy {
    Ref maker = 0;  // the name that had it made
    int tier = 0;
    uint64_t inode = 0;  // the copy's
  };
  // Gives another name a published copy; false: that cannot be. Called with a lock held: must not call back.
  using Link = std::function<bool(Ref name, const Copy& copy)>;
  enum class Turn {
    kCopy,    // the caller copies the file, and says published() or ended()
    kLinked,  // the name has its copy
    kWaits,   // published() links it, or ended() returns it
  };

  // A name of the file `st` is to be staged.
  Turn begin(Ref name, const struct stat& st, const Link& link);
  // The copy is there. Returns the names that waited for it and cannot have it.
  std::vector<Ref> published(const Copy& copy, const Link& link);
  // The copy of this name will not come, or was given up. All names that waited for it, or had it.
  struct Names {
    std::vector<Ref> waiting, linked;
    int tier = 0;  // where those are that had it
  };
  // `take` is called for each that had it, as Link is: from before it counts as a name of its own, so that
  // nobody takes it for one that has its own copy.
  using Take = std::function<void(Ref linked)>;
  Names ended(Ref maker, const Take& take);
  // Whose copy the name waits for; 0: none.
  Ref awaited_by(Ref name) const;
  // Whose copy the name shares, or waits for; itself: its own, or none.
  Ref maker_of(Ref name) const;

 private:
  // So many names of files with several are known, makers among them; further ones have copies of their own.
  static constexpr size_t kMostNames = 65536;
  using Key = std::pair<uint64_t, uint64_t>;  // device and inode on the PFS
  struct File {
    struct stat st {};  // when it was copied
    Copy copy;
    bool there = false;
    Names names;
  };

  mutable Mutex lock_;
  std::map<Key, File> files_ GUARDED_BY(lock_);
  std::unordered_map<Ref, Key> makers_ GUARDED_BY(lock_);
  std::unordered_map<Ref, Ref> shared_ GUARDED_BY(lock_);  // makers, by those that wait or are linked
  size_t names_ GUARDED_BY(lock_) = 0;
};

}  // namespace monarch
