// SPDX-License-Identifier: Apache-2.0
// The placement handler (MONARCH, section III): decides which tier takes a file, and copies it there
// with a pool of background threads. What a task waits for comes first; then what the job has told that it
// will use; then the rest of the dataset in the order in which the walk found it, until all is placed or the
// tiers are full.
//
// It owns the threads; what they do next is the queue's to say (queue.h), how a file is copied the stagers'
// (file_stager.h, chunk_stager.h), and whether tiers take any the tiers' health (tier_health.h).
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/mutex.h"
#include "runtime/placement/chunk_stager.h"
#include "runtime/placement/context.h"
#include "runtime/placement/credit.h"
#include "runtime/placement/evict.h"
#include "runtime/placement/file_stager.h"
#include "runtime/placement/queue.h"
#include "runtime/placement/tier_health.h"

namespace monarch {

class PlacementHandler : private WorkQueue::Others {
 public:
  PlacementHandler(Catalog* catalog, Hierarchy* hierarchy, const Dataset* dataset, Board* board,
                   const AgentConfig& config, Rates* rates, Source* source, ChangeWatch* watch = nullptr,
                   Clock& clock = system_clock());
  ~PlacementHandler() override { stop(); }

  // Makes the threads, or fewer where no more can be made. Error: not one.
  Status start();
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
  // A tier has another quota, a larger one or a smaller one; see Evictor. True: it is more than before.
  // Any thread.
  bool set_quota(size_t tier, uint64_t quota) { return evictor_.set_quota(tier, quota); }
  // The copy of an entry, which is open at `copy`, is not what was read on the PFS; see Evictor. Any thread.
  void withdraw(Ref ref, Fd copy) { evictor_.withdraw(ref, std::move(copy)); }
  // Once quotas were set, and now and then: removes copies where they are too many. Any thread.
  void keep_to_quotas() { evictor_.keep_to_quotas(); }
  // A tier's quota has grown: what did not fit is tried again. Any thread.
  void room_grew();
  // The job will use these files: they are prefetched first, in this order. False: there is no room for more.
  // Any thread.
  bool hint(OrderPiece piece) { return queue_.hint(std::move(piece)); }
  // The catalog has grown: there may be more to prefetch. Any thread.
  void catalog_grew() { queue_.catalog_grew(); }
  // What nobody waits for is left alone from now on, but for the pieces that are being copied; or it goes on.
  // Any thread.
  void rest(bool rests);
  // Whether prefetch was told to rest, or has read what it may until the job has read more. Any thread.
  bool prefetch_rests() { return context_.resting || queue_.is_poor(); }

 private:
  struct Worker {
    Worker(PlacementContext* context, Rates* rates) : copier(context->board, rates, &context->stopping) {}
    Copier copier;
    WorkQueue::Thread kind = WorkQueue::Thread::kUsual;
    int moves = 0;  // how many of move_to() it has followed
    std::thread thread;
  };

  std::optional<uint32_t> next_chunk(Ref large) override { return chunks_.next_chunk(large); }
  int64_t due() override { return health_.due(); }
  bool is_short() override { return health_.is_short(); }
  uint32_t least_uses() override { return health_.least_uses(); }
  bool affords(uint64_t bytes) override { return credit_.affords(bytes); }
  Reserved reserve(uint64_t bytes) override { return credit_.reserve(bytes); }
  int64_t next_look_ns() override { return credit_.next_look_ns(); }

  // 0, or an error.
  int add_worker(WorkQueue::Thread kind);
  void hurry(Ref ref, const RelPath& path);
  void run(Worker* worker);
  void take_on(std::unique_ptr<Staging> file, Copier* copier);
  void fill(Staging* file, Copier* copier);
  void move(Worker* worker) EXCLUDES(lock_);

  Rates* const rates_;
  PlacementContext context_;
  WorkQueue queue_;
  TierHealth health_;
  PrefetchCredit credit_;
  ChunkStager chunks_;
  FileStager files_;
  Evictor evictor_;
  std::vector<std::unique_ptr<Worker>> workers_;

  Mutex lock_;
  std::string processors_ GUARDED_BY(lock_);  // where threads are to run
  std::atomic<int> moves_{0};                 // how often that was said
};

}  // namespace monarch
