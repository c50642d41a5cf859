// SPDX-License-Identifier: Apache-2.0
// The placement handler (MONARCH, section III): decides which tier takes a file, and copies it there
// with a pool of background threads. What a task waits for comes first; then the rest of the dataset in the
// order in which the walk found it, until all is placed or the tiers are full.
//
// A file up to stage_wait_max is copied whole while its opens wait. A larger one is staged in chunks: those
// that reads with an offset ask for first, the others after them, unless the job reads the file natively.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/layout/board_layout.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"

namespace monarch {

class PlacementHandler {
 public:
  PlacementHandler(Catalog* catalog, Hierarchy* hierarchy, const Dataset* dataset, Board* board,
                   const AgentConfig& config);
  ~PlacementHandler() { stop(); }

  void start();
  // Lets each thread finish the piece of a file that it is copying, and waits for it. A thread inside a
  // hanging PFS call is waited for.
  void stop();

  // A task asks for `path`: enters it into the catalog if need be and stages it before all prefetch.
  // Makes no PFS call. Any thread.
  void demand(const RelPath& path);
  // A task asks for chunk `chunk` of a large file, or says (kReadNatively) that it reads the file by calls
  // that chunks cannot serve. Makes no PFS call. Any thread.
  void demand_chunk(const RelPath& path, uint32_t chunk);
  // The catalog has grown: there may be more to prefetch. Any thread.
  void catalog_grew();

 private:
  enum class Why { kDemand, kPrefetch, kChunk, kFill };
  struct Work {
    Ref ref;
    Why why;
    uint32_t chunk;
  };

  // A large file that is being staged in chunks.
  struct LargeFile {
    Ref ref = 0;
    Fd source, copy;
    struct stat st {};
    int tier = 0;
    uint64_t reserved = 0;  // bytes; less than the file's if only a part is kept
    Ref chunks = 0;
    uint32_t count = 0;
    uint32_t allowed = 0;  // how many chunks may be kept
    // Guarded by lock_:
    std::vector<bool> claimed;
    uint32_t begun = 0, done = 0;
    uint32_t next = 0;     // all before it are claimed
    bool filling = false;  // it was put into filling_
    bool native = false, failed = false;
  };
  using Large = std::shared_ptr<LargeFile>;

  void run();
  // What to do next; `lock_` held. False: nothing now.
  bool next(Work* work);
  bool next_background(Work* work);
  void stage(const Work& work, std::vector<char>* buffer);
  void place(const Work& work, const Fd& source, const struct stat& st, std::vector<char>* buffer);
  // Reads `size` bytes of `source` at `offset` and writes them to the same place of `copy`. Errors of the
  // source say so in their text (see is_source_error).
  Status copy(int source, const Fd& copy, uint64_t offset, uint64_t size, std::vector<char>* buffer);
  // Stores the verdict and wakes who waits for it.
  void settle(Ref ref, uint64_t word);
  void no_room(const Work& work);
  void note_rate(uint64_t bytes, int64_t nanoseconds);

  // The large file's staging, begun if need be; nullptr if it cannot be.
  Large large_file(Ref ref);
  Large start_large(Ref ref, Fd source, const struct stat& st);
  void stage_chunk(const Work& work, std::vector<char>* buffer);
  void finish_large(const Large& file);
  void give_up_large(const Large& file, AgentCounter counter, uint64_t word);

  Catalog* const catalog_;
  Hierarchy* const hierarchy_;
  const Dataset* const dataset_;
  Board* const board_;
  const AgentConfig config_;
  std::atomic<uint64_t> files_seen_{0}, bytes_seen_{0};
  std::atomic<int> misfits_{0};  // files in a row for which there was no room

  std::mutex starting_large_;  // one at a time; taken before lock_
  std::mutex lock_;            // guards what follows
  std::condition_variable work_;
  std::deque<Ref> demanded_;
  std::deque<std::pair<Ref, uint32_t>> demanded_chunks_;
  std::map<Ref, Large> large_;  // those being staged
  std::deque<Large> filling_;   // those to be filled when nothing is demanded
  std::map<Ref, bool> native_;  // large files that the job reads natively
  uint64_t cursor_ = 0;         // how far prefetch is in the catalog's log
  int background_ = 0;          // threads that work on something that nobody waits for
  bool prefetching_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace monarch
