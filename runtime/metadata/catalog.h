// SPDX-License-Identifier: Apache-2.0
// The metadata container (MONARCH, section III): which files the dataset has and where each one is.
// Written by the agent alone, read by all tasks through CatalogReader; see layout/catalog_layout.h.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/base/result.h"
#include "runtime/layout/board_layout.h"
#include "runtime/layout/catalog_reader.h"

namespace monarch {

struct TierView {
  std::string name;
  std::string path;  // where the copies are
  uint64_t dev;
  bool unsafe = false;  // others can put another directory in its place
  uint64_t ino = 0;     // of that directory; 0: tasks do not look for it elsewhere
};

struct RootView {
  uint64_t dev;
};

// A path under which tasks reach a root; `below` is empty for the root itself.
struct PrefixView {
  uint32_t root;
  std::string path;
  std::string below;
  uint64_t dev;
  uint64_t ino;
};

// What tasks go by; see CatalogHeader.
struct ReadPolicy {
  uint64_t stage_wait_max = 0;
  uint64_t stage_wait_ns = 0;
  bool check_at_open = false;
  bool serve_metadata = false;  // the walk keeps listings, and tasks answer from the catalog
  bool stages_again = false;
  uint64_t max_entries = UINT64_MAX;  // that add() makes
};

// A name that readdir(3) gave: the Ref of its entry (or kDot, kDotDot), and d_ino.
struct NameInDirectory {
  Ref entry;
  uint64_t ino;
};

class Catalog {
 public:
  // Makes the catalog's files in `run_dir`, all space allocated. The catalog is ready for readers when
  // this returns.
  static Result<std::unique_ptr<Catalog>> create(const std::string& run_dir,
                                                 const std::vector<RootView>& roots,
                                                 const std::vector<PrefixView>& prefixes,
                                                 const std::vector<TierView>& tiers,
                                                 const ReadPolicy& policy);
  // Goes on with the one that an agent which was killed has left there, of the same roots and tiers: all
  // entries have the states that they had, until take_over(). Nobody else writes it.
  static Result<std::unique_ptr<Catalog>> resume(const std::string& run_dir,
                                                 const std::vector<RootView>& roots,
                                                 const std::vector<TierView>& tiers,
                                                 const ReadPolicy& policy);
  ~Catalog();
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  // The entry of `path`, made (kKnown) if there is none; 0 if the run directory is full, or there are as many
  // as there may be. Any thread. One that was made without a type gets this one, if that is a
  // regular file's, a directory's or a symbolic link's.
  Ref add(const RelPath& path, uint8_t type);
  // Publishes what a directory holds, which had the values `st` before and after its names were read. All of
  // them have entries. False: the run directory is full, or `path` is not entered as a directory.
  bool add_listing(const RelPath& path, const struct stat& st, const std::vector<NameInDirectory>& names);

  // A second entry of the same path, a regular file, with anew_word(): for its copy since the job wrote it.
  // No path leads to it until again_word() in the first one does. If it comes to nothing it gets again_word()
  // of the first one, and is the one that the next call returns. 0: the run directory is full, there were
  // kMostAgain, or it is still in work.
  Ref add_again(Ref before);

  const CatalogReader& reader() const { return reader_; }
  const CatalogHeader& header() const { return *header_; }

  // Whether `ref`, which may be anything, is an entry.
  bool is_entry(Ref ref);
  // The changeable side of an entry; of what is no entry of this catalog, one that nobody reads. Lock-free.
  Entry& entry(Ref ref);
  // The number of its root: of a root that there is, whatever the job's owner wrote into the entry.
  uint32_t root_of(Ref ref);
  // Its path relative to its root.
  std::string path_of(Ref ref);

  // Moves the state word from `from` to `to`; false if it was another one by then.
  bool move(Ref ref, uint64_t from, uint64_t to);

  // Records the PFS identity of a copy with inode `tier_ino` on `tier` and publishes the entry as
  // kPlaced. The copy must have its name already. False if the run directory is full; nothing is published
  // then. Call with the entry kStaging or kLarge, from the thread that stages it.
  // `change`: what the job changed later than that concerns this copy (placed_word()).
  bool place(Ref ref, uint32_t tier, uint64_t tier_ino, const struct stat& source, uint32_t change = 0);
  // The same of another name of a file that is placed, by a link to its copy. The inode leads to the first
  // one.
  bool place_link(Ref ref, uint32_t tier, uint64_t tier_ino, const struct stat& source);
  // Begins the partial copy of a large file on `tier`: records its PFS identity and which chunks are there
  // (none), and publishes the entry as kLarge with that. 0 if the run directory is full.
  Ref start_chunks(Ref ref, uint32_t tier, const struct stat& source);
  // Publishes that chunk `n` is in the partial copy.
  void set_chunk(Ref chunks, uint32_t n);
  // Publishes that no further chunk will come.
  void close_chunks(Ref chunks);

  // Enters what a task saw of a file that has no identity: anything may be in it. Refused unless the entry
  // exists, is of this type, on its root's device, and not dropped. False: it was not entered, also where the
  // run directory is full.
  bool add_seen(const Seen& seen);

  // The copy of an entry is gone: its inode leads to the entry no more. Who still has it open sees the copy's
  // own values from then on.
  void retire(Ref ref);
  // Takes a placed entry back, with this state (kDropped, or kNoFit to try again) and reason: readers that
  // look now go to the PFS. The copy may be removed afterwards.
  void drop(Ref ref, State state, Reason reason);
  // Says whether the tier's device has failed: then readers open no copy on it.
  void set_tier_failed(uint32_t tier, bool failed);

  // Calls `visit` with each entry from `cursor` on, in the order they were added, until it returns false
  // or the end; returns the cursor at which to go on. Start with 0.
  uint64_t walk(uint64_t cursor, const std::function<bool(Ref)>& visit);

  void set_walked(uint32_t root);

 private:
  Catalog(std::string run_dir, uint64_t max_entries);

  struct SpaceState {
    uint64_t used = 8;       // the first 8 bytes stay unused, so that Ref 0 is none
    Fd newest;               // the newest segment's file
    uint64_t allocated = 0;  // bytes of it
  };

  // A new, allocated, zeroed file of the run directory, mapped; nullptr if there is no space.
  char* make_file(const std::string& name, uint64_t bytes) REQUIRES(lock_);
  // The same, of which only the first bytes are allocated, and its descriptor.
  char* make_file(const std::string& name, uint64_t bytes, uint64_t allocated, Fd* file) REQUIRES(lock_);
  // One of resume(), whole; nullptr: it is not there, or of another size.
  char* open_file(const std::string& name, uint64_t bytes, Fd* file) REQUIRES(lock_);
  // These are resume()'s. False: the catalog cannot be gone on with.
  bool open_header(const std::vector<RootView>& roots, const std::vector<TierView>& tiers) REQUIRES(lock_);
  bool open_indices() REQUIRES(lock_);
  bool open_segments(Space space, uint64_t used) REQUIRES(lock_);
  uint64_t find_entries_end() const REQUIRES(lock_);
  bool resume_entries() REQUIRES(lock_);
  void resume_entry(Ref ref) REQUIRES(lock_);
  void resume_directory(Ref ref) REQUIRES(lock_);
  // Allocates segment `k`, made if need be, up to `end`; false if there is no room.
  bool allocate_in_segment(Space space, uint32_t k, uint64_t end) REQUIRES(lock_);
  // `bytes` of a space; 0 if there is no room.
  Ref allocate(Space space, uint64_t bytes) REQUIRES(lock_);
  // The record of `bytes` at `ref`, within what is allocated; nullptr: there can be none. Whoever runs as the
  // job's owner can write any reference into the mapped files.
  char* at(Space space, Ref ref, uint64_t bytes);
  template <typename Record>
  Record* record(Space space, Ref ref) {
    return reinterpret_cast<Record*>(at(space, ref, sizeof(Record)));
  }
  void note_entry(Ref ref) REQUIRES(lock_);
  std::atomic<uint64_t>* entry_bits(uint32_t segment) const;
  // The DirPath, made if need be.
  Ref directory(uint32_t root, const char* path, uint32_t len) REQUIRES(lock_);
  Ref add_locked(const RelPath& path, uint8_t type) REQUIRES(lock_);
  Ref make_entry(const RelPath& path, uint8_t type, uint64_t state) REQUIRES(lock_);
  void end_entries() REQUIRES(lock_);  // all that were made are complete
  void set_type(Ref ref, uint8_t type) REQUIRES(lock_);
  Ref add_blocks(const std::vector<NameInDirectory>& names) REQUIRES(lock_);
  bool index_entry(uint32_t hash, Ref ref) REQUIRES(lock_);
  bool index_identity(uint32_t tier, uint64_t ino, Ref ref) REQUIRES(lock_);
  Ref attributes_of(const struct stat& st) REQUIRES(lock_);
  // Enters where the copy is in the identity of an entry, made if need be, and returns that; 0: no room.
  Ref enter_copy(Ref ref, uint32_t tier, uint64_t tier_ino, const struct stat& source) REQUIRES(lock_);
  Ref add_identity(Ref ref, const struct stat& source) REQUIRES(lock_);
  // The identity of an entry whose last copy, if it had one, is gone; made if need be. 0: no room.
  Ref identity_for(Ref ref, const struct stat& source) REQUIRES(lock_);
  // Its inode does not lead to this identity any more.
  void forget_copy(Ref identity) REQUIRES(lock_);
  void fill(Identity* id, Ref entry, Ref attributes, const struct stat& source);

  const std::string run_dir_;
  const uint64_t max_entries_;
  CatalogReader reader_;
  CatalogHeader* header_ = nullptr;
  uint32_t roots_ = 0;
  bool resumed_ = false;
  // Which Refs are entries, a bit each, for each segment of their space; the shared index is not believed. A
  // segment's bits are made before its first entry, and read without lock_.
  std::atomic<std::atomic<uint64_t>*> entry_bits_[kMaxSegments] = {};
  std::atomic<uint64_t> entries_end_{8};  // offset behind the entries that are complete
  const std::unique_ptr<Entry> nobodys_ = std::make_unique<Entry>();

  std::atomic<char*> segments_[kSpaces][kMaxSegments] = {};  // set once, with lock_ held; read without
  std::atomic<uint64_t> ends_[kSpaces] = {};                 // offset behind what is allocated; likewise

  Mutex lock_;  // readers need none
  SpaceState spaces_[kSpaces] GUARDED_BY(lock_);
  std::atomic<uint64_t>* index_ GUARDED_BY(lock_) = nullptr;  // the newest generation
  uint32_t index_generation_ GUARDED_BY(lock_) = 0;
  uint64_t index_used_ GUARDED_BY(lock_) = 0;
  uint64_t added_ GUARDED_BY(lock_) = 0;  // by add()
  std::atomic<uint32_t>* inodes_ GUARDED_BY(lock_) = nullptr;
  uint32_t inode_generation_ GUARDED_BY(lock_) = 0;
  uint64_t inodes_used_ GUARDED_BY(lock_) = 0;
  std::vector<Ref> attributes_ GUARDED_BY(lock_);  // all distinct ones
  // DirPaths by the hash of (root, path).
  std::unordered_multimap<uint32_t, Ref> directories_ GUARDED_BY(lock_);
  struct Again {
    int turn = 0;  // which entry of its path one is, of those of add_again()
    Ref next = 0;  // the one that was made to replace it
  };
  std::unordered_map<Ref, Again> again_ GUARDED_BY(lock_);
  std::vector<std::pair<void*, uint64_t>> mappings_ GUARDED_BY(lock_);
};

}  // namespace monarch
