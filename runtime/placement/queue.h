// SPDX-License-Identifier: Apache-2.0
// What the copy threads do next: what a task waits for; then chunks that are asked for; then large files
// that were begun; then prefetch: in the order in which the job will use files, as far as it has told that,
// and then in the order in which the walk found them.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/placement/context.h"
#include "runtime/placement/order.h"
#include "runtime/placement/staging.h"

namespace monarch {

// All members may be called from any thread.
class WorkQueue {
 public:
  // What the queue asks of the other parts of placement, with its lock held: they must not call it then.
  class Others {
   public:
    virtual ~Others() = default;
    // The next chunk to fill of a large file; nothing: there is nothing to do for it.
    virtual std::optional<uint32_t> next_chunk(Ref large) = 0;
    // As TierHealth's.
    virtual int64_t due() = 0;
    virtual bool is_short() = 0;
    virtual uint32_t least_uses() = 0;
    // As PrefetchCredit's.
    virtual bool affords(uint64_t bytes) = 0;
    virtual Reserved reserve(uint64_t bytes) = 0;
    virtual int64_t next_look_ns() = 0;
  };
  WorkQueue(PlacementContext* context, Others* others);

  // A thread for more takes what somebody waits for, while all others work.
  enum class Thread { kUsual, kMore };
  // Waits until there is work for a thread with this copier, which is the caller's until done(). nullptr: the
  // context is stopping.
  std::unique_ptr<Staging> take(Copier* copier, Thread thread = Thread::kUsual) EXCLUDES(lock_);
  void done(Copier* copier) EXCLUDES(lock_);

  // An open waits for a file: a kQueued one (demand), or one that is in work or in line for nobody (hurry).
  void demand(Ref ref) EXCLUDES(lock_);
  void hurry(Ref ref) EXCLUDES(lock_);
  void demand_chunk(Ref ref, uint32_t chunk) EXCLUDES(lock_);
  // The large file is to be filled: after those that somebody waits for (kWanted), which come first, in their
  // order; before the others, or after them.
  enum class Place { kWanted, kFirst, kLast };
  void fill(Ref ref, Place place) EXCLUDES(lock_);
  // A file that an open found to be a large one, and of which nothing is asked for: it is prefetched after
  // the others (kFill).
  void prefetch_large(Ref ref) EXCLUDES(lock_);

  // The job opened a file that it wrote: it is looked at once that is stage_again seconds ago. `change`: the
  // number of the last change of it.
  void stage_again(Ref ref, uint32_t change) EXCLUDES(lock_);

  // Prefetched files of several pieces are copied few at a time, so that each is whole soon. False: *file,
  // which is opened, was put in line. Who got a turn ends it.
  bool take_turn(std::unique_ptr<Staging>* file, const Copier& copier) EXCLUDES(lock_);
  void end_turn() EXCLUDES(lock_);

  // The job will use these files: they are prefetched before others. False: there is no room for more.
  bool hint(OrderPiece piece) EXCLUDES(lock_);
  // The catalog has grown: there may be more to prefetch.
  void catalog_grew() EXCLUDES(lock_);
  // There is no room for more.
  void end_prefetch() EXCLUDES(lock_);
  // What was passed over may be prefetched now; also if prefetch had ended (kAgain).
  enum class Prefetch { kAsItWas, kAgain };
  void start_over(Prefetch prefetch) EXCLUDES(lock_);
  // A file of so many bytes costs more than prefetch can pay now. Who opens it meanwhile gets it.
  void pass_over(uint64_t bytes) EXCLUDES(lock_);
  // What take() waits for may have come, such as another time at which to look.
  void wake() EXCLUDES(lock_);
  // Whether prefetch rests since it cannot pay for more.
  bool is_poor() EXCLUDES(lock_);

 private:
  // Two threads are kept free for demand, so that it never waits for a large background copy.
  bool has_background_place() const REQUIRES(lock_);
  // All threads but one may fill what somebody waits for as a whole: that one is kept for demand.
  bool has_wanted_place() const REQUIRES(lock_);
  using Next = std::unique_ptr<Staging>;  // nullptr: there is none
  Next next(Thread thread) REQUIRES(lock_);
  void wake_for_demand() REQUIRES(lock_);
  // A chunk of a large file that was begun: of any, or of one that somebody waits for as a whole.
  enum class Fill { kAny, kWanted };
  Next next_to_fill(Fill which) REQUIRES(lock_);
  Next next_background() REQUIRES(lock_);
  bool has_more_to_copy() const REQUIRES(lock_);  // though nobody waits for it
  Next next_in_order() REQUIRES(lock_);
  std::optional<Ref> next_hinted(uint32_t least_uses, size_t* looks) REQUIRES(lock_);
  Next next_to_prefetch() REQUIRES(lock_);
  Next next_in_catalog() REQUIRES(lock_);
  Next next_opened() REQUIRES(lock_);
  bool is_known(Ref ref) const;
  // Sleeps until there may be work. True: it is time to look.
  bool wait_for_work(MutexLock* hold) REQUIRES(lock_);

  PlacementContext* const context_;
  Others* const others_;

  Mutex lock_;
  Condition work_, more_;  // for which threads wait
  std::deque<Next> demanded_ GUARDED_BY(lock_);
  std::deque<Next> in_line_ GUARDED_BY(lock_);  // opened, waiting for their turn
  int turns_ GUARDED_BY(lock_) = 0;             // threads that have one
  std::deque<std::pair<Ref, uint32_t>> demanded_chunks_ GUARDED_BY(lock_);
  std::deque<Ref> filling_ GUARDED_BY(lock_);  // to be filled when nothing is demanded
  ptrdiff_t wanted_ GUARDED_BY(lock_) = 0;     // so many at its front are waited for
  struct Again {
    Ref ref;
    uint32_t change;
    int64_t due;  // by the clock
  };
  std::deque<Again> again_ GUARDED_BY(lock_);  // the first one is due first
  std::set<Ref> waiting_again_ GUARDED_BY(lock_);
  struct Working {
    Copier* copier;
    Ref ref;
    Why why;
    Thread thread;
  };
  int usual_ GUARDED_BY(lock_) = 0;                 // threads that work, but for those for more
  std::vector<Working> working_ GUARDED_BY(lock_);  // who works on what
  Order order_ GUARDED_BY(lock_);                   // what the job will use
  std::deque<Ref> not_ours_ GUARDED_BY(lock_);      // the next of it, of which other nodes are the homes
  uint64_t cursor_ GUARDED_BY(lock_) = 0;           // how far prefetch is in the catalog's log
  std::deque<Ref> opened_large_ GUARDED_BY(lock_);  // see prefetch_large()
  int background_ GUARDED_BY(lock_) = 0;            // threads that work on something that nobody waits for
  bool prefetching_ GUARDED_BY(lock_);
  bool looking_ GUARDED_BY(lock_) = false;  // a thread does
  // The least that was passed over; 0: nothing.
  uint64_t passed_over_ GUARDED_BY(lock_) = 0;
  bool is_poor_ GUARDED_BY(lock_) = false;   // prefetch could not pay when it was asked last
  bool is_short_ GUARDED_BY(lock_) = false;  // memory was short when it was asked last
  bool looks_on_ GUARDED_BY(lock_) = false;  // at more of what the job will use, once others had the lock
  bool is_timed_ GUARDED_BY(lock_) = false;  // a thread waits for that to change
};

}  // namespace monarch
