// SPDX-License-Identifier: Apache-2.0
// What this node has of the job's files, and what it is getting: for the nodes that ask for it.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/peer/messages.h"
#include "runtime/peer/serve.h"

namespace monarch {

struct HoldingsOptions {
  Catalog* catalog = nullptr;  // these outlive it
  Hierarchy* hierarchy = nullptr;
  const Board* board = nullptr;
  uint32_t roots = 0;
  uint32_t nodes = 1;  // of the job
  // A task of another node waits for a piece of a file that this one is getting. Any thread.
  std::function<void(const RelPath& path, uint32_t piece)> wanted;
  // The copy of an entry, open at `copy`, is not what was read on the PFS: no task is to find it. Any thread.
  std::function<void(Ref ref, Fd copy)> spoilt;
};

// All members may be called from any thread.
class Holdings {
 public:
  explicit Holdings(HoldingsOptions options, Clock& clock = system_clock())
      : options_(std::move(options)), clock_(clock) {}
  ~Holdings() { stop(); }

  // A file that comes, from a first begin() until copied() or given_up().
  struct Coming;
  // This node begins to get a file, or goes on: those who ask are served from `copy`, as long as the caller
  // keeps it. `names`: the file has several; see key_of_inode().
  std::shared_ptr<Coming> begin(Ref ref, const FileIdentity& identity, bool names,
                                const std::shared_ptr<Fd>& copy) EXCLUDES(lock_);
  // A piece of it is in the copy; of one that has ended meanwhile it is in none.
  void piece(Coming* coming, uint64_t number, uint64_t check) EXCLUDES(lock_);
  // The copy is whole, and has its name on the tier. Nothing: the pieces that are known are not all.
  std::optional<FileIdentity> copied(Ref ref, int tier) EXCLUDES(lock_);
  // Nothing of it will come, or it is gone. Its key, if it was a whole one.
  std::optional<FileKey> given_up(Ref ref) EXCLUDES(lock_);
  // Its bytes are to be looked at before they are sent again: each piece once, when it is asked for.
  void doubt(const FileKey& key) EXCLUDES(lock_);
  // Looks at all that is doubted, in a thread of its own; what comes is looked at once it is whole. Of what
  // is not held nothing is kept.
  void look() EXCLUDES(lock_);
  // Waits for that thread, at most for one piece.
  void stop() EXCLUDES(lock_);

  // For a node that asks; see ServeOptions.
  std::unique_ptr<ServedFile> open(const Get& get, GetResult* why) EXCLUDES(lock_);
  // What this node has of the share that is asked for, and is taken, from a place in its log on, and not more
  // than takes some milliseconds. Another log than that of the question is begun anew.
  HeldPage page(const Gather& gather, const std::function<bool(const FileKey&)>& takes) EXCLUDES(lock_);

 private:
  class FileOnTier;
  class DoubtedFile;
  class FileThatComes;
  struct Held {
    FileIdentity identity;
    int tier = 0;
    bool names = false;
    uint64_t first = 0;                                // check value of the first piece
    std::shared_ptr<const std::vector<uint64_t>> all;  // of all, if there are several
  };

  // What came to be held of the share of a home, also what is not any more.
  struct Log {
    uint64_t number = 1;
    std::vector<Ref> refs;
    size_t held = 0;  // of the share
  };

  struct Doubt {
    std::set<uint64_t> right;  // pieces
    bool looked = false;       // the thread has, or is looking
  };

  void run() EXCLUDES(lock_);
  void look_at(std::set<FileKey> keys) EXCLUDES(lock_);
  void look_at(const FileKey& key, Ref ref, const Held& held) EXCLUDES(lock_);
  void look_again(const FileKey& key) REQUIRES(lock_);
  bool is_stopping() EXCLUDES(lock_);
  // What its log has of the share from there on, also what is not held any more: that has no bytes.
  std::vector<std::pair<Ref, Held>> logged(const Gather& gather, HeldPage* page) EXCLUDES(lock_);
  // A piece of a copy that is doubted is what was read on the PFS.
  void found_right(const FileKey& key, uint64_t piece, uint64_t pieces) EXCLUDES(lock_);
  FileKey key_of(Ref ref, bool names, const FileIdentity& identity) const;
  // The file has not this name here any more; its key.
  FileKey forget(Ref ref, bool names, const FileIdentity& identity) REQUIRES(lock_);
  // Under which name this node has what is asked for.
  Ref entry_of(const Get& get, const FileKey& key) EXCLUDES(lock_);
  // A piece was found wrong: nobody gets the copy any more.
  void drop(Ref ref, Fd copy) EXCLUDES(lock_);
  Log& log_of(const FileKey& key) REQUIRES(lock_) { return logs_[home_of(key, options_.nodes)]; }
  void note_held(Ref ref, Held held) REQUIRES(lock_);

  const HoldingsOptions options_;
  Clock& clock_;
  Mutex lock_;
  Condition grew_;
  std::unordered_map<Ref, Held> held_ GUARDED_BY(lock_);
  // A share each: many nodes ask at a time, once a home is gone, and each for a part of its share.
  std::unordered_map<NodeIndex, Log> logs_ GUARDED_BY(lock_);
  std::map<Ref, std::shared_ptr<Coming>> coming_ GUARDED_BY(lock_);
  std::map<FileKey, Ref> named_ GUARDED_BY(lock_);  // files with several names
  std::map<FileKey, Doubt> doubted_ GUARDED_BY(lock_);
  Condition doubts_;
  bool stopping_ GUARDED_BY(lock_) = false;
  std::thread thread_ GUARDED_BY(lock_);  // started when it is needed first
};

// Used with the lock of its Holdings held.
struct Holdings::Coming {
  FileIdentity identity;  // does not change
  std::weak_ptr<Fd> copy;
  std::vector<std::optional<uint64_t>> checks;
  std::vector<bool> wanted;  // pieces that were asked of `wanted`
  uint64_t missing = 0;
  bool names = false;
  bool ended = false;
};

// What a file was on the PFS; its check value is 0.
FileIdentity identity_of(const struct stat& st);
// Whether two are the same, as far as the PFS tells.
bool is_same_file(FileIdentity a, FileIdentity b);

}  // namespace monarch
