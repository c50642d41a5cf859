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

// 0: none.
uint64_t lesser_size(uint64_t a, uint64_t b) { return a == 0 ? b : std::min(a, b); }

}  // namespace

WorkQueue::WorkQueue(PlacementContext* context, Others* others)
    : context_(context),
      others_(others),
      prefetching_(context->config.prefetch != AgentConfig::Prefetch::kOff) {}

// A thread for more may sleep for long, and holds no memory then; one that is needed again soon keeps it,
// since the kernel clears pages anew.
std::optional<Work> WorkQueue::take(Copier* copier, Thread thread) {
  MutexLock hold(lock_);
  Work work;
  int64_t rests_at = 0;
  bool rested = false;
  while (!context_->stopping && !next(thread, &work)) {
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
    return Work{0, Why::kLook};
  }
  if (context_->stopping) return {};
  working_.push_back({copier, work.ref, thread});
  usual_ += thread == Thread::kUsual;
  copier->begin();
  background_ += work.background();
  return work;
}

void WorkQueue::done(const Work& work, Copier* copier) {
  const MutexLock hold(lock_);
  if (work.why == Why::kLook) {
    looking_ = false;
    return;
  }
  const auto at =
      std::find_if(working_.begin(), working_.end(), [&](const Working& w) { return w.copier == copier; });
  usual_ -= at->thread == Thread::kUsual;
  working_.erase(at);
  background_ -= work.background();
  if (work.why == Why::kAgain) waiting_again_.erase(work.ref);
  if (work.background()) work_.notify_one();  // a place for background work is free again
}

void WorkQueue::demand(Ref ref) {
  const MutexLock hold(lock_);
  demanded_.push_back({ref, Why::kDemand});
  wake_for_demand();
}

void WorkQueue::hurry(Ref ref) {
  const MutexLock hold(lock_);
  const auto at = std::find_if(in_line_.begin(), in_line_.end(), [&](const Work& w) { return w.ref == ref; });
  if (at != in_line_.end()) {
    demanded_.push_back(std::move(*at));
    demanded_.back().why = Why::kDemand;
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
  Work work{ref, Why::kAgain};
  work.change = change;
  if (!waiting_again_.insert(ref).second) return;
  again_.push_back({work, context_->clock.now_ns() + wait});
  work_.notify_one();  // which sleeps until then
}

bool WorkQueue::take_turn(const Work& work, const Copier& copier, std::unique_ptr<SourceFile>* source,
                          const struct stat& st) {
  const MutexLock hold(lock_);
  if (turns_ < kTurns || copier.hurried()) {
    ++turns_;
    return true;
  }
  const auto opened = std::make_shared<Opened>(Opened{std::move(*source), st});
  in_line_.push_back({.ref = work.ref, .why = work.why, .opened = opened, .paid = work.paid});
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

bool WorkQueue::next(Thread thread, Work* work) {
  looks_on_ = false;
  if (!demanded_.empty()) {
    *work = std::move(demanded_.front());
    demanded_.pop_front();
    return true;
  }
  if (!demanded_chunks_.empty()) {
    *work = {demanded_chunks_.front().first, Why::kChunk, demanded_chunks_.front().second};
    demanded_chunks_.pop_front();
    return true;
  }
  if (thread == Thread::kMore) return false;
  return (has_wanted_place() && next_to_fill(Fill::kWanted, work)) ||
         (has_background_place() && next_background(work));
}

bool WorkQueue::has_background_place() const { return background_ < std::max(1, context_->threads - 2); }

// What nobody waits for may keep all its places for long, where the admin's rate is low.
bool WorkQueue::has_wanted_place() const {
  return wanted_ > 0 && usual_ < std::max(1, context_->threads - 1);
}

bool WorkQueue::next_to_fill(Fill which, Work* work) {
  while (which == Fill::kWanted ? wanted_ > 0 : !filling_.empty()) {
    if (const std::optional<uint32_t> chunk = others_->next_chunk(filling_.front())) {
      *work = {filling_.front(), Why::kFill, *chunk};
      return true;
    }
    filling_.pop_front();
    if (wanted_ > 0) --wanted_;
  }
  return false;
}

bool WorkQueue::next_background(Work* work) {
  if (context_->resting) return false;
  const bool again = !again_.empty() && again_.front().due <= context_->clock.now_ns();
  if (!again && !has_more_to_copy()) return false;
  is_short_ = memory_is_short();
  if (is_short_) return next_to_fill(Fill::kWanted, work);
  if (next_to_fill(Fill::kAny, work)) return true;
  if (again) {
    *work = again_.front().work;
    again_.pop_front();
    return true;
  }
  if (!in_line_.empty() && turns_ < kTurns) {
    ++turns_;
    *work = std::move(in_line_.front());
    in_line_.pop_front();
    return true;
  }
  if (!prefetching_ || others_->is_short() || in_line_.size() >= kMostInLine) return false;
  return next_in_order(work) || (!looks_on_ && (next_to_prefetch(work) || next_opened(work)));
}

bool WorkQueue::has_more_to_copy() const { return !filling_.empty() || prefetching_ || !in_line_.empty(); }

// The job asks for these files, so that nothing is reserved for them.
bool WorkQueue::next_in_order(Work* work) {
  const uint32_t least_uses = others_->least_uses();
  size_t looks = 0;
  while (const std::optional<Ref> ref = next_hinted(least_uses, &looks)) {
    context_->uses.begun(*ref);
    if (!context_->catalog->move(*ref, state_word(State::kKnown), state_word(State::kStaging))) continue;
    *work = {.ref = *ref, .why = Why::kPrefetch, .hinted = true};
    is_poor_ = false;
    add(context_->board, AgentCounter::hinted_files);
    return true;
  }
  return false;
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

bool WorkQueue::next_to_prefetch(Work* work) {
  if (passed_over_ != 0 && others_->affords(passed_over_)) {
    passed_over_ = 0;
    cursor_ = 0;
  }
  const bool was_poor = std::exchange(is_poor_, false);
  const bool found = next_in_catalog(work);
  is_poor_ = !found && (is_poor_ || passed_over_ != 0);
  if (found && was_poor) work_.notify_all();  // more may be afforded
  return found;
}

void WorkQueue::pass_over(uint64_t bytes) {
  const MutexLock hold(lock_);
  passed_over_ = lesser_size(passed_over_, bytes);
}

bool WorkQueue::is_known(Ref ref) const {
  return context_->catalog->entry(ref).state.load(std::memory_order_relaxed) == state_word(State::kKnown);
}

bool WorkQueue::next_in_catalog(Work* work) {
  bool found = false, poor = false;
  uint64_t passed_over = passed_over_;
  const auto take_one = [&](Ref ref) {
    if (found || poor) return false;
    if (!is_known(ref) || !context_->source->is_ours(ref)) return true;
    const uint64_t bytes = context_->catalog->entry(ref).size.load(std::memory_order_relaxed);
    const uint64_t reserved = others_->reserve(bytes);
    if (reserved == 0) {
      poor = bytes == 0;
      if (!poor) passed_over = lesser_size(passed_over, bytes);
      return !poor;
    }
    if (context_->catalog->move(ref, state_word(State::kKnown), state_word(State::kStaging))) {
      *work = {.ref = ref, .why = Why::kPrefetch, .reserved = reserved};
      found = true;
    } else {
      others_->give_back(reserved);
    }
    return true;
  };
  cursor_ = context_->catalog->walk(cursor_, take_one);
  passed_over_ = passed_over;
  is_poor_ = poor;
  return found;
}

// Those that were begun meanwhile are filled already.
bool WorkQueue::next_opened(Work* work) {
  for (; !opened_large_.empty(); opened_large_.pop_front()) {
    const Ref ref = opened_large_.front();
    const Entry& e = context_->catalog->entry(ref);
    if (e.state.load(std::memory_order_relaxed) != large_word(0) || !context_->source->is_ours(ref)) continue;
    const uint64_t reserved = others_->reserve(e.size.load(std::memory_order_relaxed));
    is_poor_ |= reserved == 0;
    if (reserved == 0) return false;
    *work = {.ref = ref, .why = Why::kFill, .reserved = reserved};
    opened_large_.pop_front();
    return true;
  }
  return false;
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
