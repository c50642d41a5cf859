// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/placement.h"

#include <dirent.h>

#include <cstring>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/hierarchy/locality.h"

namespace monarch {

PlacementHandler::PlacementHandler(Catalog* catalog, Hierarchy* hierarchy, const Dataset* dataset,
                                   Board* board, const AgentConfig& config, Rates* rates, Source* source,
                                   ChangeWatch* watch, Clock& clock)
    : rates_(rates),
      context_{catalog, hierarchy, dataset, board, config, source, watch, clock},
      queue_(&context_, this),
      health_(&context_, &queue_),
      credit_(&context_, &health_),
      chunks_(&context_, &queue_, &health_),
      files_(&context_, &queue_, &health_, &credit_, &chunks_),
      evictor_(&context_, &health_, &files_, &chunks_) {}

Status PlacementHandler::start() {
  context_.threads = context_.config.threads;
  for (int i = 0; i < context_.config.threads; ++i) {
    if (const int error = add_worker(WorkQueue::Thread::kUsual); error != 0) {
      if (workers_.empty()) return errno_error("start a copy thread", error);
      spdlog::warn("{} copy threads instead of {}: {}", workers_.size(), context_.config.threads,
                   std::strerror(error));
      context_.threads = static_cast<int>(workers_.size());
      break;
    }
  }
  for (int i = 0; i < context_.source->more_at_a_time(); ++i)
    if (add_worker(WorkQueue::Thread::kMore) != 0) break;
  return {};
}

int PlacementHandler::add_worker(WorkQueue::Thread kind) {
  workers_.push_back(std::make_unique<Worker>(&context_, rates_));
  Worker* worker = workers_.back().get();
  worker->kind = kind;
  const int error = os::start_thread(&worker->thread, [this, worker] { run(worker); });
  if (error != 0) workers_.pop_back();
  return error;
}

void PlacementHandler::move_to(const std::string& processors) {
  const MutexLock hold(lock_);
  processors_ = processors;
  ++moves_;
}

void PlacementHandler::stop() {
  context_.stopping = true;
  queue_.wake();
  files_.stop();
  evictor_.stop();
  for (const auto& worker : workers_)
    if (worker->thread.joinable()) worker->thread.join();
}

void PlacementHandler::rest(bool rests) {
  if (context_.resting.exchange(rests) && !rests) queue_.wake();
}

void PlacementHandler::room_grew() { health_.room_grew(); }

void PlacementHandler::demand(const RelPath& path) {
  const Ref ref = context_.catalog->add(path, DT_UNKNOWN);
  if (!ref) return;  // the catalog is full: the task sees that there is no entry and reads the PFS
  const uint64_t word = context_.word_of(ref);
  if (context_.catalog->move(ref, state_word(State::kKnown), state_word(State::kQueued)))
    queue_.demand(ref);
  else if (state_of(word) == State::kPlaced || again_of(word) != 0)
    files_.ask_again(path);  // it was changed, or its copy is not there
  else
    hurry(ref, path);
}

// The file is in work, or settled.
void PlacementHandler::hurry(Ref ref, const RelPath& path) {
  queue_.hurry(ref);
  files_.hurry(ref);
  if (state_of(context_.catalog->entry(ref).state.load(std::memory_order_acquire)) == State::kLarge)
    chunks_.demand_whole(ref);
  // It was put back meanwhile.
  if (context_.catalog->move(ref, state_word(State::kKnown), state_word(State::kQueued))) queue_.demand(ref);
  if (is_invalid(*context_.board, path.hash)) files_.ask_again(path);
}

void PlacementHandler::demand_chunk(const RelPath& path, uint32_t chunk) {
  Catalog* catalog = context_.catalog;
  const Ref ref = catalog->reader().find(path).ref;
  if (!ref) return;
  if (state_of(catalog->entry(ref).state.load(std::memory_order_acquire)) == State::kLarge) {
    chunks_.demand(ref, chunk);
  } else {  // another node follows, while it is copied here at the rate of prefetch
    queue_.hurry(ref);
    files_.hurry(ref);
  }
}

void PlacementHandler::run(Worker* worker) {
  while (std::unique_ptr<Staging> file = queue_.take(&worker->copier, worker->kind)) {
    set_io_priority(file->background() ? context_.config.background_io : AgentConfig::Io::kNormal);
    if (worker->moves != moves_) move(worker);
    take_on(std::move(file), &worker->copier);
    queue_.done(&worker->copier);
  }
}

void PlacementHandler::move(Worker* worker) {
  std::string processors;
  int moves = 0;
  {
    const MutexLock hold(lock_);
    processors = processors_;
    moves = moves_;
  }
  (void)run_on(processors).ok();  // where the job may not run it is no loss
  worker->moves = moves;
}

// What nothing was asked for has reserved its price, and is paid for as other files that are prefetched.
void PlacementHandler::fill(Staging* file, Copier* copier) {
  if (file->reserved)
    file->paid = credit_.take(context_.catalog->entry(file->ref).size.load(std::memory_order_relaxed),
                              &file->reserved);
  chunks_.stage(file, copier);
}

void PlacementHandler::take_on(std::unique_ptr<Staging> file, Copier* copier) {
  switch (file->why) {
    case Why::kDemand:
    case Why::kPrefetch:
      return files_.stage(std::move(file), copier);
    case Why::kAgain:
      return files_.stage_again(std::move(file), copier);
    case Why::kFill:
      return fill(file.get(), copier);
    case Why::kChunk:
      return chunks_.stage(file.get(), copier);
    case Why::kLook:
      return health_.look();
  }
}

}  // namespace monarch
