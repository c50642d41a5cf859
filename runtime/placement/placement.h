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
#include <string>
#include <thread>
#include <vector>

#include "runtime/config/config.h"
#include "runtime/hierarchy/hierarchy.h"
#include "runtime/layout/board_layout.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"
#include "runtime/placement/copier.h"
#include "runtime/placement/write_back.h"

namespace monarch {

class PlacementHandler {
 public:
  PlacementHandler(Catalog* catalog, Hierarchy* hierarchy, const Dataset* dataset, Board* board,
                   const AgentConfig& config, Rates* rates);
  ~PlacementHandler() { stop(); }

  void start();
  // Lets each thread finish the piece of a file that it is copying, and waits for it. A thread inside a
  // hanging PFS call is waited for.
  void stop();

  // The copy threads are to run on these processors, as far as the job may; see processors_near().
  void move_to(const std::string& processors);

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
  // A file that was opened and is copied later.
  struct Opened {
    Fd source;
    struct stat st {};
  };
  struct Work {
    Ref ref = 0;
    Why why = Why::kDemand;
    uint32_t chunk = 0;
    std::shared_ptr<Opened> opened = nullptr;  // set: its turn has come
  };
  static bool background(const Work& work) { return work.why == Why::kPrefetch || work.why == Why::kFill; }

  // A copy thread. The scheduler's side of it is guarded by lock_.
  struct Worker {
    Worker(Board* board, Rates* rates, const std::atomic<bool>* stopping) : copier(board, rates, stopping) {}
    Copier copier;
    Ref ref = 0;          // what it works on; guarded by lock_
    std::string move_to;  // processors to run on from the next work on; empty: no change; guarded by lock_
    std::thread thread;
  };

  // The two ends of a large file's copying.
  struct Ends {
    Fd source, copy;
  };
  // A large file that is being staged in chunks.
  struct LargeFile {
    Ref ref = 0;
    struct stat st {};
    int tier = 0;
    uint64_t reserved = 0;  // bytes; less than the file's if only a part is kept
    Ref chunks = 0;
    uint32_t count = 0;
    uint32_t allowed = 0;  // how many chunks may be kept
    Writing writing = Writing::kBuffered;
    // Guarded by lock_:
    std::shared_ptr<Ends> ends;  // empty while it is parked, so that descriptors stay bounded
    std::vector<bool> claimed;
    uint32_t begun = 0, done = 0;
    uint32_t in_flight = 0;  // runs of chunks being copied
    uint32_t next = 0;       // all before it are claimed
    uint64_t placed = 0;     // bytes
    bool filling = false;    // it was put into filling_
    bool native = false, failed = false;
  };
  using Large = std::shared_ptr<LargeFile>;
  // Chunks in a row that one thread copies together.
  struct Run {
    uint32_t first = 0, count = 0;
    std::shared_ptr<Ends> ends;
  };

  void run(Worker* worker);
  // What to do next; `lock_` held. False: nothing now.
  bool next(Work* work);
  bool next_background(Work* work);
  // Sleeps until there may be work; `lock_` held. Tries closed tiers again when that is due.
  void wait_for_work(std::unique_lock<std::mutex>* hold);
  void probe_tiers(std::unique_lock<std::mutex>* hold);
  void do_work(const Work& work, Worker* worker);
  void stage(const Work& work, Worker* worker);
  void place(const Work& work, const Fd& source, const struct stat& st, Worker* worker);
  Status make_copy(const Work& work, const Fd& source, const struct stat& st, Tier* tier, const Fd& copy,
                   Writing writing, Worker* worker);
  // Opens the source of an entry, paced if nobody waits for it. Empty: errno says why.
  Fd open_source(const Entry& e, const std::string& path, bool paced, Worker* worker);
  // Stores the verdict and wakes who waits for it.
  void settle(Ref ref, uint64_t word);
  void no_room(const Work& work);
  // The agent lacks descriptors or memory: prefetch rests, and what was put off is tried again later.
  void ran_short(int error);
  void put_off(Ref ref, int error);
  void tier_failed(int tier, const Error& error);
  void copy_lost(Ref ref, int tier, uint64_t bytes, const Error& error);
  // What is copied for nobody, or stands in line for that: now somebody waits. `lock_` held.
  void hurry(Ref ref);
  // Prefetched files of several pieces are copied few at a time, so that each is whole soon. False: `work`
  // was put in line.
  bool take_turn(const Work& work, Fd* source, const struct stat& st, const Worker& worker);
  void end_turn();
  Tier& tier(int number) { return hierarchy_->tiers()[static_cast<size_t>(number)]; }

  // The large file's staging, begun if need be; nullptr if it cannot be.
  Large large_file(const Work& work, Worker* worker);
  Fd open_large_source(const Work& work, Worker* worker, struct stat* st);
  Large start_large(const Work& work, Fd source, const struct stat& st);
  bool unpark(const Large& file, const Work& work, Worker* worker);
  void hold_ends(const Large& file, std::shared_ptr<Ends> ends);  // `lock_` held
  void park_some();                                               // `lock_` held
  void stage_chunks(const Work& work, Worker* worker);
  bool claim(const Large& file, const Work& work, Run* run);  // `lock_` held
  Status copy_run(const Large& file, const Run& run, bool paced, Worker* worker);
  void publish_run(const Large& file, const Run& run);
  void end_run(const Large& file);
  void finish_large(const Large& file, const Run& last);
  void give_up_large(const Large& file, AgentCounter counter, uint64_t word);
  bool put_off_large(const Large& file, int error);  // false
  void release_large(const Large& file);

  Catalog* const catalog_;
  Hierarchy* const hierarchy_;
  const Dataset* const dataset_;
  Board* const board_;
  const AgentConfig config_;
  Rates* const rates_;
  std::vector<std::unique_ptr<WriteBack>> write_back_;  // by tier
  std::atomic<uint64_t> files_seen_{0}, bytes_seen_{0};
  std::atomic<int> misfits_{0};  // files in a row for which there was no room
  // When what was put off is tried again, by CLOCK_MONOTONIC; 0: nothing was.
  std::atomic<int64_t> short_until_ns_{0};
  std::atomic<int64_t> shortage_ns_{0};  // how long the last pause was

  std::mutex starting_large_;  // one at a time; taken before lock_
  std::mutex lock_;            // guards what follows
  std::condition_variable work_;
  std::deque<Work> demanded_;
  std::deque<Work> in_line_;  // opened and kStaging, waiting for their turn
  int turns_ = 0;             // threads that have one
  std::deque<std::pair<Ref, uint32_t>> demanded_chunks_;
  std::map<Ref, Large> large_;  // those being staged
  std::deque<Large> filling_;   // those to be filled when nothing is demanded
  std::deque<Large> opened_;    // those whose ends are open, the longest first
  std::map<Ref, bool> native_;  // large files that the job reads natively
  uint64_t cursor_ = 0;         // how far prefetch is in the catalog's log
  int background_ = 0;          // threads that work on something that nobody waits for
  bool prefetching_;
  bool probing_ = false;  // a thread tries a closed tier
  std::atomic<bool> stopping_{false};
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace monarch
