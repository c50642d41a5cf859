// SPDX-License-Identifier: Apache-2.0
// The placement handler (MONARCH, section III): decides which tier takes a file, and copies it there
// with a pool of background threads. Files that an open waits for come first; then the rest of the
// dataset in the order in which the walk found it, until all is placed or the tiers are full.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/config.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/layout/board_layout.h"
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
  // The catalog has grown: there may be more to prefetch. Any thread.
  void catalog_grew();

 private:
  enum class Why { kDemand, kPrefetch, kLarge };
  struct Work {
    Ref ref;
    Why why;
  };

  void run();
  // What to do next; `lock_` held. False: nothing now.
  bool next(Work* work);
  void stage(const Work& work, std::vector<char>* buffer);
  // Copies `size` bytes of `source` to `copy`, and notices when there are fewer or more.
  Status copy(int source, const Fd& copy, uint64_t size, std::vector<char>* buffer);
  // Stores the verdict and wakes who waits for it.
  void settle(Ref ref, uint64_t word);
  void place(const Work& work, Ref ref, const Fd& source, const struct stat& st, std::vector<char>* buffer);
  void note_rate(uint64_t bytes, int64_t nanoseconds);

  Catalog* const catalog_;
  Hierarchy* const hierarchy_;
  const Dataset* const dataset_;
  Board* const board_;
  const AgentConfig config_;

  std::mutex lock_;  // guards what follows
  std::condition_variable work_;
  std::deque<Ref> demanded_;
  std::deque<Ref> large_;      // demanded files that no open waits for
  uint64_t cursor_ = 0;        // how far prefetch is in the catalog's log
  int background_ = 0;         // threads that work on something no open waits for
  int misfits_ = 0;            // prefetched files in a row for which there was no room
  bool prefetching_;
  std::atomic<bool> stopping_{false};
  std::vector<std::thread> threads_;
};

}  // namespace monarch
