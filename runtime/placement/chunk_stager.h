// SPDX-License-Identifier: Apache-2.0
// Stages files larger than stage_wait_max: in chunks, which reads with an offset are served from before the
// file is whole. Chunks that are asked for come first, the others after them.
#pragma once

#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/placement/context.h"
#include "runtime/placement/queue.h"
#include "runtime/placement/tier_health.h"

namespace monarch {

// All members may be called from any thread; with the queue's lock held, next_chunk() only.
class ChunkStager {
 public:
  ChunkStager(PlacementContext* context, WorkQueue* queue, TierHealth* health)
      : context_(context), queue_(queue), health_(health) {}

  // A kStaging file was opened and turned out to be a large one: says so, and begins to fill it if nobody
  // waits for it.
  void begin(Staging* work);
  // A task asks for a chunk, or says (kReadNatively) that it reads the file in another way. Makes no PFS
  // call.
  void demand(Ref ref, uint32_t chunk);
  // A task waits for the whole file: what is missing comes before what others may want, at full rate.
  void demand_whole(Ref ref);
  // Gives up what there is of a file on that tier, and stores `word` as its state: it is not filled any more,
  // and no task finds it. The partial copy, and the space that it has reserved, which is returned, are the
  // caller's to remove; what copies for it has it open until it ends. Nothing: none of it is there, or it is
  // becoming whole just now.
  std::optional<uint64_t> evict(Ref ref, int tier, uint64_t word);
  // Does a piece of work of kind kChunk or kFill.
  void stage(Staging* work, Copier* copier);
  // The next chunk to fill; nothing: all that may be kept is claimed, or the file is not to be filled.
  std::optional<uint32_t> next_chunk(Ref ref);

 private:
  // The two ends of a file's copying.
  struct Ends {
    std::unique_ptr<SourceFile> source;
    Fd copy;
  };
  struct Progress {
    std::shared_ptr<Ends> ends;  // empty while it is parked, so that descriptors stay bounded
    std::vector<bool> claimed;
    uint32_t begun = 0, done = 0;
    uint32_t in_flight = 0;  // runs of chunks being copied
    uint32_t next = 0;       // all before it are claimed
    uint64_t placed = 0;     // bytes
    uint64_t promised = 0;   // of the tier's space: what is not written yet, where nothing was allocated
    bool filling = false;    // the queue knows of it
    bool failed = false;
  };
  struct LargeFile {
    Ref ref = 0;
    struct stat st {};
    int tier = 0;
    uint64_t reserved = 0;  // bytes; less than the file's if only a part is kept
    Ref chunks = 0;
    uint32_t count = 0;
    uint32_t allowed = 0;  // how many chunks may be kept
    Writing writing = Writing::kBuffered;
    bool paid = false;                 // see PrefetchCredit::take()
    std::atomic<bool> removed{false};  // the partial copy's name, once it was given up
    Progress guarded;                  // see progress()
  };
  using Large = std::shared_ptr<LargeFile>;
  // Chunks in a row that one thread copies together.
  struct Run {
    uint32_t first = 0, count = 0;
    std::shared_ptr<Ends> ends;
  };

  Progress& progress(const Large& file) REQUIRES(lock_) { return file->guarded; }

  // The file's staging, begun if need be, and its open ends; nullptr if it cannot be.
  Large large_file(Staging* work, Copier* copier, std::shared_ptr<Ends>* ends) EXCLUDES(starting_, lock_);
  // nullptr: it is not being staged.
  Large known(Ref ref) REQUIRES(lock_);
  Large known(Ref ref, std::shared_ptr<Ends>* ends) EXCLUDES(lock_);
  // False: errno says why.
  bool open_source(Staging* work, const Copier& copier);
  Large open(Staging* work, Copier* copier, std::shared_ptr<Ends>* ends) REQUIRES(starting_);
  Large start(Staging* work, std::shared_ptr<Ends>* ends) REQUIRES(starting_) EXCLUDES(lock_);
  void enter(const Large& file, std::shared_ptr<Ends> ends) REQUIRES(lock_);
  bool unpark(const Large& file, Staging* work, Copier* copier, std::shared_ptr<Ends>* ends)
      REQUIRES(starting_) EXCLUDES(lock_);
  void hold_ends(const Large& file, std::shared_ptr<Ends> ends) REQUIRES(lock_);
  bool claim(const Large& file, const Staging& work, Run* run) REQUIRES(lock_);
  bool is_native(Ref ref) EXCLUDES(lock_);
  bool is_wanted(Ref ref) EXCLUDES(lock_);
  void copy_and_publish(const Large& file, const Run& run, const Staging& work, Copier* copier)
      EXCLUDES(lock_);
  Status copy(const Large& file, const Run& run, bool paced, Copier* copier);
  void publish(const Large& file, const Run& run) EXCLUDES(lock_);
  void end(const Large& file) EXCLUDES(lock_);
  void finish(const Large& file, const Run& last) EXCLUDES(lock_);
  void give_up(const Large& file, AgentCounter counter, uint64_t word) EXCLUDES(lock_);
  void wake_all(Ref ref, uint32_t chunks) const;
  void close_sources() EXCLUDES(lock_);
  bool put_off(const Large& file, int error) EXCLUDES(lock_);  // false
  void take_promise(const Large& file, uint64_t space) EXCLUDES(lock_);
  void release(const Large& file, uint64_t placed) EXCLUDES(lock_);

  PlacementContext* const context_;
  WorkQueue* const queue_;
  TierHealth* const health_;

  Mutex starting_;  // one file at a time; taken before the queue's and lock_
  Mutex lock_;      // guards what follows, and the Progress of each file; no other is taken with it held
  std::map<Ref, Large> large_ GUARDED_BY(lock_);  // those being staged
  std::map<Ref, Large> kept_ GUARDED_BY(lock_);   // those of which a part is kept, all that it will be
  std::deque<Large> opened_ GUARDED_BY(lock_);    // those whose ends are open, the longest first
  // Of files that were given up by who must not wait for the PFS: a copy thread closes them.
  std::vector<std::unique_ptr<SourceFile>> to_close_ GUARDED_BY(lock_);
  std::set<Ref> native_ GUARDED_BY(lock_);  // files that the job reads natively: through the page cache
  std::set<Ref> wanted_ GUARDED_BY(lock_);  // files that somebody waits for as a whole
};

}  // namespace monarch
