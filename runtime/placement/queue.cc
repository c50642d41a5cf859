// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/queue.h"

#include <algorithm>

#include "runtime/base/memory.h"
#include "runtime/base/patience.h"

namespace monarch {
namespace {

// How many prefetched files are copied at a time that have several pieces in flight each, and how many more
// are opened meanwhile.
constexpr int kTurns = 2;
constexpr size_t kMostInLine = 4;
constexpr size_t kMostWaiting = 100000;  // files that the job wrote and that wait to be looked at
constexpr size_t kHintedPerNode = 16;    // so many hinted files, for each node of the job, are looked through
constexpr size_t kMostLooks = 4096;      // at hinted files, until others have the lock

std::unique_ptr<Staging> staging_of(Ref ref, Why why) {
  auto file = std::make_unique<Staging>();
  file->ref = ref;
  file->why = why;
  return file;
}

std::unique_ptr<Staging> chunk_of(Ref large, Why why, uint32_t chunk) {
  auto file = staging_of(large, why);
  file->chunk = chunk;
  return file;
}

template <typename Element>
Element take_first(std::deque<Element>* queue) {
  Element first = std::move(queue->front());
  queue->pop_front();
  return first;
}

// 0: none.
uint64_t lesser_size(uint64_t a, uint64_t b) { return a == 0 ? b : std::min(a, b); }

}  // namespace

WorkQueue::WorkQueue(PlacementContext* context, Others* others)
    : context_(context),
      others_(others),
      prefetching_(context->config.prefetch != AgentConfig::Prefetch::kOff) {}

// A thread for more may sleep for long, and holds no memory then; one that is needed again soon keeps it,
// since the kernel clears pages anew.
std::unique_ptr<Staging> WorkQueue::take(Copier* copier, Thread thread) {
  MutexLock hold(lock_);
  Next file;
  int64_t rests_at = 0;
  bool rested = false;
  while (!context_->stopping && !(file = next(thread))) {
    if (thread == Thread::kMore) {
      const int64_t now = context_->clock.now_ns();
      if (rests_at == 0) rests_at = now + patience::kShortLookNs;
      if (rested) {
        more_.wait(&hold);
      } else if (now < rests_at) {
        context_->clock.wait_until(&more_, &hold, rests_at);
      } else {
        hold.unlock();
        copier->rest();
        hold.lock();
        rested = true;
      }
      continue;
    }
    if (!wait_for_work(&hold)) continue;
    looking_ = true;
    return staging_of(0, Why::kLook);
  }
  if (context_->stopping) return nullptr;
  working_.push_back({copier, file->ref, file->why, thread});
  usual_ += thread == Thread::kUsual;
  copier->begin();
  background_ += file->background();
  return file;
}

void WorkQueue::done(Copier* copier) {
  const MutexLock hold(lock_);
  const auto at =
      std::find_if(working_.begin(), working_.end(), [&](const Working& w) { return w.copier == copier; });
  if (at == working_.end()) {  // it has looked
    looking_ = false;
    return;
  }
  const Working was = *at;
  working_.erase(at);
  usual_ -= was.thread == Thread::kUsual;
  background_ -= is_background(was.why);
  if (was.why == Why::kAgain) waiting_again_.erase(was.ref);
  if (is_background(was.why)) work_.notify_one();  // a place for it is free again
}

void WorkQueue::demand(Ref ref) {
  const MutexLock hold(lock_);
  demanded_.push_back(staging_of(ref, Why::kDemand));
  wake_for_demand();
}

void WorkQueue::hurry(Ref ref) {
  const MutexLock hold(lock_);
  const auto at =
      std::find_if(in_line_.begin(), in_line_.end(), [&](const Next& file) { return file->ref == ref; });
  if (at != in_line_.end()) {
    demanded_.push_back(std::move(*at));
    demanded_.back()->why = Why::kDemand;
    in_line_.erase(at);
    return wake_for_demand();
  }
  for (const Working& working : working_)
    if (working.ref == ref) working.copier->hurry();
}

void WorkQueue::demand_chunk(Ref ref, uint32_t chunk) {
  const MutexLock hold(lock_);
  demanded_chunks_.emplace_back(ref, chunk);
  wake_for_demand();
}

void WorkQueue::fill(Ref ref, Place place) {
  const MutexLock hold(lock_);
  filling_.insert(place == Place::kLast ? filling_.end() : filling_.begin() + wanted_, ref);
  if (place == Place::kWanted) ++wanted_;
  work_.notify_all();
}

void WorkQueue::prefetch_large(Ref ref) {
  const MutexLock hold(lock_);
  if (context_->config.prefetch == AgentConfig::Prefetch::kOff) return;
  opened_large_.push_back(ref);
  work_.notify_one();
}

void WorkQueue::stage_again(Ref ref, uint32_t change) {
  const int64_t wait = int64_t{context_->config.stage_again} * 1000000000;
  const MutexLock hold(lock_);
  if (wait == 0 || again_.size() >= kMostWaiting) return;
  if (!waiting_again_.insert(ref).second) return;
  again_.push_back({ref, change, context_->clock.now_ns() + wait});
  work_.notify_one();  // which sleeps until then
}

bool WorkQueue::take_turn(std::unique_ptr<Staging>* file, const Copier& copier) {
  const MutexLock hold(lock_);
  if (turns_ < kTurns || copier.hurried()) {
    ++turns_;
    return true;
  }
  in_line_.push_back(std::move(*file));
  return false;
}

void WorkQueue::end_turn() {
  const MutexLock hold(lock_);
  --turns_;  // done() tells the next one
}

// Where prefetch is off, or has ended, an order has no use. The files are looked at without the lock, for
// which tasks may wait.
bool WorkQueue::hint(OrderPiece piece) {
  {
    const MutexLock hold(lock_);
    if (!prefetching_) return true;
    if (!order_.has_room(piece)) return false;
  }
  for (Ref& ref : piece.refs) {
    const Ref told = std::exchange(ref, 0);
    if (!context_->catalog->is_entry(told)) continue;
    context_->uses.add(told, piece.epoch);
    if (is_known(told))
      ref = told;
    else
      context_->uses.begun(told);
  }
  const MutexLock hold(lock_);
  work_.notify_all();
  return order_.add(std::move(piece));
}

void WorkQueue::catalog_grew() {
  const MutexLock hold(lock_);
  if (prefetching_) work_.notify_all();
}

void WorkQueue::end_prefetch() {
  const MutexLock hold(lock_);
  prefetching_ = false;
}

void WorkQueue::start_over(Prefetch prefetch) {
  const MutexLock hold(lock_);
  if (prefetch == Prefetch::kAgain) prefetching_ = context_->config.prefetch != AgentConfig::Prefetch::kOff;
  cursor_ = 0;
  work_.notify_all();
}

void WorkQueue::wake() {
  const MutexLock hold(lock_);
  work_.notify_all();
  more_.notify_all();
}

bool WorkQueue::is_poor() {
  const MutexLock hold(lock_);
  return prefetching_ && is_poor_;
}

// Something was put into the queue. A thread that works comes back by itself.
void WorkQueue::wake_for_demand() {
  if (demanded_.size() + demanded_chunks_.size() + static_cast<size_t>(usual_) <=
      static_cast<size_t>(context_->threads))
    work_.notify_one();
  else
    more_.notify_one();
}

WorkQueue::Next WorkQueue::next(Thread thread) {
  looks_on_ = false;
  if (!demanded_.empty()) return take_first(&demanded_);
  if (!demanded_chunks_.empty()) {
    const auto [ref, chunk] = take_first(&demanded_chunks_);
    return chunk_of(ref, Why::kChunk, chunk);
  }
  if (thread == Thread::kMore) return nullptr;
  Next file = has_wanted_place() ? next_to_fill(Fill::kWanted) : nullptr;
  return file || !has_background_place() ? std::move(file) : next_background();
}

bool WorkQueue::has_background_place() const { return background_ < std::max(1, context_->threads - 2); }

// What nobody waits for may keep all its places for long, where the admin's rate is low.
bool WorkQueue::has_wanted_place() const {
  return wanted_ > 0 && usual_ < std::max(1, context_->threads - 1);
}

WorkQueue::Next WorkQueue::next_to_fill(Fill which) {
  while (which == Fill::kWanted ? wanted_ > 0 : !filling_.empty()) {
    if (const std::optional<uint32_t> chunk = others_->next_chunk(filling_.front()))
      return chunk_of(filling_.front(), Why::kFill, *chunk);
    filling_.pop_front();
    if (wanted_ > 0) --wanted_;
  }
  return nullptr;
}

WorkQueue::Next WorkQueue::next_background() {
  if (context_->resting) return nullptr;
  const bool again = !again_.empty() && again_.front().due <= context_->clock.now_ns();
  if (!again && !has_more_to_copy()) return nullptr;
  is_short_ = memory_is_short();
  if (is_short_) return next_to_fill(Fill::kWanted);
  Next file = next_to_fill(Fill::kAny);
  if (file) return file;
  if (again) {
    file = staging_of(again_.front().ref, Why::kAgain);
    file->change = take_first(&again_).change;
    return file;
  }
  if (!in_line_.empty() && turns_ < kTurns) {
    ++turns_;
    return take_first(&in_line_);
  }
  if (!prefetching_ || others_->is_short() || in_line_.size() >= kMostInLine) return nullptr;
  file = next_in_order();
  if (!file && !looks_on_) file = next_to_prefetch();
  return file || looks_on_ ? std::move(file) : next_opened();
}

bool WorkQueue::has_more_to_copy() const { return !filling_.empty() || prefetching_ || !in_line_.empty(); }

// The job asks for these files, so that nothing is reserved for them.
WorkQueue::Next WorkQueue::next_in_order() {
  const uint32_t least_uses = others_->least_uses();
  size_t looks = 0;
  while (const std::optional<Ref> ref = next_hinted(least_uses, &looks)) {
    context_->uses.begun(*ref);
    if (!context_->catalog->move(*ref, state_word(State::kKnown), state_word(State::kStaging))) continue;
    Next file = staging_of(*ref, Why::kPrefetch);
    file->hinted = true;
    is_poor_ = false;
    add(context_->board, AgentCounter::hinted_files);
    return file;
  }
  return nullptr;
}

// Those of which this node is the home come before the others near them: nodes with the same order read other
// files each, and find there what the others have read.
std::optional<Ref> WorkQueue::next_hinted(uint32_t least_uses, size_t* looks) {
  for (; not_ours_.size() < kHintedPerNode * std::max(1u, context_->config.nodes); ++*looks) {
    looks_on_ = *looks == kMostLooks;
    if (looks_on_) break;
    const std::optional<Ref> ref = order_.next();
    if (!ref) break;
    if (!is_known(*ref) || context_->uses.of(*ref) < least_uses)
      context_->uses.begun(*ref);
    else if (context_->source->is_ours(*ref))
      return ref;
    else
      not_ours_.push_back(*ref);
  }
  if (not_ours_.empty()) return {};
  const Ref ref = not_ours_.front();
  not_ours_.pop_front();
  return ref;
}

WorkQueue::Next WorkQueue::next_to_prefetch() {
  if (passed_over_ != 0 && others_->affords(passed_over_)) {
    passed_over_ = 0;
    cursor_ = 0;
  }
  const bool was_poor = std::exchange(is_poor_, false);
  Next file = next_in_catalog();
  is_poor_ = !file && (is_poor_ || passed_over_ != 0);
  if (file && was_poor) work_.notify_all();  // more may be afforded
  return file;
}

void WorkQueue::pass_over(uint64_t bytes) {
  const MutexLock hold(lock_);
  passed_over_ = lesser_size(passed_over_, bytes);
}

bool WorkQueue::is_known(Ref ref) const {
  return context_->catalog->entry(ref).state.load(std::memory_order_relaxed) == state_word(State::kKnown);
}

WorkQueue::Next WorkQueue::next_in_catalog() {
  Next file;
  bool poor = false;
  uint64_t passed_over = passed_over_;
  const auto take_one = [&](Ref ref) {
    if (file || poor) return false;
    if (!is_known(ref) || !context_->source->is_ours(ref)) return true;
    const uint64_t bytes = context_->catalog->entry(ref).size.load(std::memory_order_relaxed);
    Reserved reserved = others_->reserve(bytes);
    if (!reserved) {
      poor = bytes == 0;
      if (!poor) passed_over = lesser_size(passed_over, bytes);
      return !poor;
    }
    if (context_->catalog->move(ref, state_word(State::kKnown), state_word(State::kStaging))) {
      file = staging_of(ref, Why::kPrefetch);
      file->reserved = std::move(reserved);
    }
    return true;
  };
  cursor_ = context_->catalog->walk(cursor_, take_one);
  passed_over_ = passed_over;
  is_poor_ = poor;
  return file;
}

// Those that were begun meanwhile are filled already.
WorkQueue::Next WorkQueue::next_opened() {
  for (; !opened_large_.empty(); opened_large_.pop_front()) {
    const Ref ref = opened_large_.front();
    const Entry& e = context_->catalog->entry(ref);
    if (e.state.load(std::memory_order_relaxed) != large_word(0) || !context_->source->is_ours(ref)) continue;
    Reserved reserved = others_->reserve(e.size.load(std::memory_order_relaxed));
    is_poor_ |= !reserved;
    if (!reserved) return nullptr;
    opened_large_.pop_front();
    Next file = staging_of(ref, Why::kFill);
    file->reserved = std::move(reserved);
    return file;
  }
  return nullptr;
}

// An idle agent sleeps without a limit. It looks again by itself only while a tier is closed, or memory or
// descriptors are short, or the job has opened what it wrote, or prefetch has read more than the job.
bool WorkQueue::wait_for_work(MutexLock* hold) {
  const int64_t now = context_->clock.now_ns();
  int64_t due = others_->due();
  if (due <= now && !looking_) return true;
  if (looks_on_) due = std::min(due, now + patience::kFirstPollNs);
  const bool again = !again_.empty() && has_background_place();
  if (is_short_ && (again || has_more_to_copy()))
    due = std::min(due, now + patience::kLookNs);
  else if (again)
    due = std::min(due, again_.front().due);
  const auto wait_until = [&](int64_t until_ns) {
    if (until_ns == INT64_MAX)
      work_.wait(hold);
    else
      context_->clock.wait_until(&work_, hold, until_ns);
  };
  if (is_poor_ && !is_timed_ && prefetching_ && has_background_place()) {
    is_timed_ = true;
    wait_until(now + std::min(std::max<int64_t>(0, due - now), others_->next_look_ns()));
    is_timed_ = false;
  } else {
    wait_until(looking_ ? INT64_MAX : due);
  }
  return false;
}

}  // namespace monarch
