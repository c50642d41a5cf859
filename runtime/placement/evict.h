// SPDX-License-Identifier: Apache-2.0
// Gives space back where a tier's quota is lowered, as that of a tier which is charged to its job: removes
// copies until no more is used than that.
//
// Of those that are used in as many epochs, as far as the job has told its order, the last placed go first,
// so that what stays is the same subset each time; those used in fewer epochs go before. Before them all go
// those that serve nobody, since the job has changed the file, and, as far as the tier tells (atime), those
// that nobody has read. A copy takes its space as long as somebody has it open: such a one is passed over,
// and looked at again; if after some seconds the others do not suffice, it is removed, too, and counts until
// it is closed.
//
// A copy that was found spoilt goes the same way, whatever the quota.
#pragma once

#include <cstdint>
#include <list>
#include <thread>
#include <vector>

#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/placement/chunk_stager.h"
#include "runtime/placement/context.h"
#include "runtime/placement/file_stager.h"
#include "runtime/placement/tier_health.h"

namespace monarch {

// All members may be called from any thread. None waits for the PFS.
class Evictor {
 public:
  Evictor(PlacementContext* context, TierHealth* health, FileStager* files, ChunkStager* chunks);
  ~Evictor() { stop(); }
  Evictor(const Evictor&) = delete;
  Evictor& operator=(const Evictor&) = delete;

  // A tier has that quota. From now on nothing is reserved beyond it; what is used beyond it is removed by a
  // thread, from the next keep_to_quotas() on. True: it is more than before.
  bool set_quota(size_t tier, uint64_t quota);
  // The copy of an entry, which is open at `copy`, is not what was read on the PFS: from now on no task finds
  // it, by any of its names, and no other name gets it. The files stay on the PFS; the copy is removed by the
  // thread. Nothing is done if the entry has another copy by now.
  void withdraw(Ref ref, Fd copy) EXCLUDES(lock_);
  // To be called now and then. Where more is used than a quota allows, or a copy was withdrawn, sees to it
  // that the thread is at work: it may be that none could be made.
  void keep_to_quotas() EXCLUDES(lock_);
  // Waits for the thread, at most for one copy.
  void stop() EXCLUDES(lock_);

 private:
  // Whose turn it is to be removed.
  enum class Turn {
    kUnread,  // what nobody has open, or has read
    kClosed,  // what nobody has open
    kAny,
  };
  struct Candidate {
    bool serves = true;  // tasks open it
    uint32_t uses = 0;   // see Uses
    Ref rank = 0;        // grows with the time at which the entry was placed first
    Ref ref = 0;         // 0: it is no candidate any more
  };
  // A copy that no task finds any more, which takes its space as long as it has a name or is open.
  struct Leaving {
    Ref ref = 0;
    std::vector<Ref> links;   // other entries that shared it
    Fd fd;                    // of it; empty: it was gone already
    uint64_t space = 0;       // counted for it
    bool part = false;        // a partial one, which the agent itself may have open still
    bool superseded = false;  // the file was staged again since
    int64_t since = 0;        // by the clock
    // Of its entries, once it is free.
    uint64_t then = state_word(State::kNoFit);
  };
  // What the thread knows of a tier.
  struct Shrinking {
    int64_t since = 0;                  // by the clock; 0: no more is used than the quota allows
    uint64_t placed = 0;                // how much had been placed when candidates were looked for
    uint64_t removed = 0;               // copies
    std::vector<Candidate> candidates;  // the next one is the last
    std::list<Leaving> leaving;
  };

  void run() EXCLUDES(lock_);
  bool is_over(size_t tier) const;
  bool is_any_over() const;
  // Whether the thread has something to begin with.
  bool is_wanted() const REQUIRES(lock_);
  void start() REQUIRES(lock_);
  // Sleeps until there may be something to do. False: the end.
  bool wait(int64_t pause_ns) EXCLUDES(lock_);
  // Does what can be done now.
  void shrink(size_t tier);
  void begin(size_t tier, Shrinking* s);
  void end(size_t tier, Shrinking* s);
  void find_candidates(size_t tier, Shrinking* s);
  bool is_candidate(size_t tier, Ref ref, Candidate* candidate) const;
  void take_turn(size_t tier, Turn turn, Shrinking* s);
  // Whether no more is used than the quota allows, or will be soon.
  bool is_enough(size_t tier, Turn turn, const Shrinking& s) const;
  // Both return false if the copy stays for now; else it is none, or is leaving.
  bool evict(size_t tier, Ref ref, Turn turn, Shrinking* s);
  bool evict_part(size_t tier, Ref ref, Shrinking* s);
  bool was_read(const Entry& e, const struct stat& copy) const;
  // Sees to it that no task finds the copy, of which ref and superseded are known, any more, by any of its
  // names; notes these and its space. False: the state is not `word` any more.
  bool take_away(size_t tier, uint64_t word, uint64_t bytes, Leaving* copy);
  void leave(size_t tier, Leaving copy, Shrinking* s);
  // Of one that has no name any more, and that nobody has open.
  void forget(Leaving* copy);
  // Removes its names; frees it, if nobody has it open. False: not yet.
  bool try_to_release(size_t tier, Leaving* copy);

  PlacementContext* const context_;
  TierHealth* const health_;
  FileStager* const files_;
  ChunkStager* const chunks_;
  // The thread's alone.
  std::vector<Shrinking> shrinking_;  // by tier
  bool freed_ = false;                // there may be room now for what did not fit

  Mutex lock_;
  Condition changed_;
  bool stopping_ GUARDED_BY(lock_) = false;
  std::thread thread_ GUARDED_BY(lock_);  // started when it is needed first
  // By tier, until the thread takes them over.
  std::vector<std::list<Leaving>> withdrawn_ GUARDED_BY(lock_);
};

}  // namespace monarch
