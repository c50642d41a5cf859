// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/evict.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/base/patience.h"
#include "runtime/base/size.h"
#include "runtime/placement/copying.h"

namespace monarch {
namespace {

constexpr int64_t kRest = 20;  // so many times the processor's time of a look is the next one put off
// Of those that somebody has open: a descriptor is kept of each.
constexpr size_t kMostLeaving = 256;
// With parts: only who takes one finds whether it is but this agent that has it open.
constexpr size_t kMostWithParts = 2 * kMostLeaving;

// Not to be tried again before it is free: who still has the copy open finds this entry by its inode.
constexpr uint64_t kLeavingWord = state_word(State::kNoFit, Reason::kEvicted);
constexpr uint64_t kSpoiltWord = state_word(State::kNoFit, Reason::kTierError);

}  // namespace

Evictor::Evictor(PlacementContext* context, TierHealth* health, FileStager* files, ChunkStager* chunks)
    : context_(context),
      health_(health),
      files_(files),
      chunks_(chunks),
      shrinking_(context->hierarchy->tiers().size()),
      withdrawn_(shrinking_.size()) {}

bool Evictor::is_over(size_t n) const {
  const Tier& tier = context_->hierarchy->tiers()[n];
  return tier.used() > tier.quota() && !tier.has_ended();
}

bool Evictor::is_any_over() const {
  for (size_t n = 0; n < shrinking_.size(); ++n)
    if (is_over(n)) return true;
  return false;
}

bool Evictor::set_quota(size_t n, uint64_t quota) {
  context_->board->granted[n].store(quota, std::memory_order_relaxed);
  return context_->hierarchy->tiers()[n].set_quota(quota);
}

bool Evictor::is_wanted() const {
  return is_any_over() || std::any_of(withdrawn_.begin(), withdrawn_.end(),
                                      [](const auto& copies) { return !copies.empty(); });
}

void Evictor::keep_to_quotas() {
  const MutexLock hold(lock_);
  if (is_wanted()) start();
}

void Evictor::withdraw(Ref ref, Fd copy) {
  struct stat st = {};
  if (os::fstat(copy.get(), &st) != 0 || files_->refuse(ref, st.st_ino, &copy)) return;
  const Entry& e = context_->catalog->entry(ref);
  const uint64_t word = e.state.load(std::memory_order_acquire);
  const Identity* id = context_->catalog->reader().identity_of(e);
  if (state_of(word) != State::kPlaced || !id || id->tier_ino != st.st_ino) return;
  Leaving leaving;
  leaving.ref = ref;
  const size_t n = tier_of(word);
  leaving.fd = context_->hierarchy->tiers()[n].hold(std::move(copy));
  leaving.then = kSpoiltWord;
  leaving.since = context_->clock.now_ns();
  if (!take_away(n, word, e.size.load(std::memory_order_relaxed), &leaving)) return;
  const MutexLock hold(lock_);
  withdrawn_[n].push_back(std::move(leaving));
  start();
}

void Evictor::start() {
  if (stopping_) return;
  if (!thread_.joinable() && os::start_thread(&thread_, [this] { run(); }) != 0) return;
  changed_.notify_all();
}

void Evictor::stop() {
  std::thread thread;
  {
    const MutexLock hold(lock_);
    stopping_ = true;
    thread.swap(thread_);
  }
  changed_.notify_all();
  if (thread.joinable()) thread.join();
}

void Evictor::run() {
  int64_t pause = patience::kFirstLookNs;
  do {
    const int64_t begun = os::clock_ns(CLOCK_THREAD_CPUTIME_ID);  // an agent can be stopped meanwhile
    for (size_t n = 0; n < shrinking_.size(); ++n) shrink(n);
    const bool over = is_any_over(), freed = freed_;
    if (freed && !over) {
      freed_ = false;
      health_->room_is_left();
    }
    const int64_t took = os::clock_ns(CLOCK_THREAD_CPUTIME_ID) - begun;
    pause = freed ? patience::kFirstLookNs
                  : std::min(2 * pause, over ? patience::kLookNs : patience::kIdleLookNs);
    pause = std::max(pause, kRest * took);
  } while (wait(pause));
}

bool Evictor::wait(int64_t pause_ns) {
  const bool leaving = std::any_of(shrinking_.begin(), shrinking_.end(),
                                   [](const Shrinking& s) { return !s.leaving.empty(); });
  MutexLock hold(lock_);
  if (leaving || is_any_over()) {
    if (!stopping_) context_->clock.wait_until(&changed_, &hold, context_->clock.now_ns() + pause_ns);
  } else {
    while (!stopping_ && !is_wanted()) changed_.wait(&hold);
  }
  return !stopping_;
}

void Evictor::shrink(size_t n) {
  Shrinking& s = shrinking_[n];
  {
    const MutexLock hold(lock_);
    s.leaving.splice(s.leaving.end(), withdrawn_[n]);
  }
  s.leaving.remove_if([&](Leaving& copy) { return try_to_release(n, &copy); });
  if (!is_over(n)) return end(n, &s);
  begin(n, &s);
  find_candidates(n, &s);
  take_turn(n, Turn::kUnread, &s);
  take_turn(n, Turn::kClosed, &s);
  if (context_->clock.now_ns() - s.since >= patience::kReadersNs) take_turn(n, Turn::kAny, &s);
  if (!is_over(n)) end(n, &s);
}

void Evictor::begin(size_t n, Shrinking* s) {
  if (s->since != 0) return;
  const Tier& tier = context_->hierarchy->tiers()[n];
  spdlog::info("tier {}: {} are used, and the job may use {} now", tier.name(), format_size(tier.used()),
               format_size(tier.quota()));
  s->since = context_->clock.now_ns();
}

void Evictor::end(size_t n, Shrinking* s) {
  if (s->since == 0) return;
  const Tier& tier = context_->hierarchy->tiers()[n];
  spdlog::info("tier {}: {} copies were removed, {} are used", tier.name(), s->removed,
               format_size(tier.used()));
  s->since = 0;
  s->removed = 0;
  s->placed = 0;
  std::vector<Candidate>().swap(s->candidates);
}

// Those that were passed over are looked at again; others there are only once something was placed.
void Evictor::find_candidates(size_t n, Shrinking* s) {
  const Board& board = *context_->board;
  const uint64_t placed =
      1 + total(board, AgentCounter::staged_files) + total(board, AgentCounter::staged_chunks);
  if (s->placed == placed) return;
  s->candidates.clear();
  context_->catalog->walk(0, [&](Ref ref) {
    Candidate candidate;
    if (is_candidate(n, ref, &candidate)) s->candidates.push_back(candidate);
    return !context_->stopping;
  });
  std::sort(s->candidates.begin(), s->candidates.end(), [](const Candidate& a, const Candidate& b) {
    return std::tie(b.serves, b.uses, a.rank, a.ref) < std::tie(a.serves, a.uses, b.rank, b.ref);
  });
  s->placed = placed;
}

bool Evictor::is_candidate(size_t n, Ref ref, Candidate* candidate) const {
  const Entry& e = context_->catalog->entry(ref);
  const uint64_t word = e.state.load(std::memory_order_acquire);
  const bool whole = state_of(word) == State::kPlaced && tier_of(word) == n;
  const bool part = state_of(word) == State::kLarge && chunks_of(word) != 0;
  bool superseded = false;
  if (again_of(word) != 0) {
    const Identity* id = context_->catalog->reader().identity_of(e);
    superseded = id && id->tier.load(std::memory_order_relaxed) == n;
  }
  *candidate = {!superseded && !is_changed_since(*context_->board, e.hash, change_of(word)),
                context_->uses.of(ref), e.identity.load(std::memory_order_relaxed), ref};
  return whole || part || superseded;
}

void Evictor::take_turn(size_t n, Turn turn, Shrinking* s) {
  std::vector<Candidate>& all = s->candidates;
  for (size_t i = all.size(); i-- > 0 && !context_->stopping;) {
    if (is_enough(n, turn, *s) || (turn == Turn::kAny && s->leaving.size() >= kMostLeaving)) break;
    if (evict(n, all[i].ref, turn, s)) all[i].ref = 0;
  }
  std::erase_if(all, [](const Candidate& c) { return c.ref == 0; });
}

bool Evictor::is_enough(size_t n, Turn turn, const Shrinking& s) const {
  const Tier& tier = context_->hierarchy->tiers()[n];
  const uint64_t used = tier.used();
  uint64_t coming = 0;
  if (!s.leaving.empty()) {
    const int64_t recent = context_->clock.now_ns() - patience::kReadersNs;
    for (const Leaving& copy : s.leaving)
      if (turn == Turn::kAny || (copy.part && copy.since > recent)) coming += copy.space;
  }
  return used - std::min(used, coming) <= tier.quota();
}

bool Evictor::was_read(const Entry& e, const struct stat& copy) const {
  const Identity* id = context_->catalog->reader().identity_of(e);
  return id && ns_of(copy.st_atim) != id->atime;
}

bool Evictor::evict(size_t n, Ref ref, Turn turn, Shrinking* s) {
  Catalog* catalog = context_->catalog;
  const Entry& e = catalog->entry(ref);
  const uint64_t word = e.state.load(std::memory_order_acquire);
  if (state_of(word) == State::kLarge) return evict_part(n, ref, s);
  const bool superseded = again_of(word) != 0;
  if (!superseded && (state_of(word) != State::kPlaced || tier_of(word) != n)) return true;
  if (files_->maker_of(ref) != ref) return true;  // it goes with the other name
  Tier& tier = context_->hierarchy->tiers()[n];
  Leaving leaving;
  leaving.fd = tier.open_copy(ref);
  struct stat st = {};
  const bool there = leaving.fd && os::fstat(leaving.fd.get(), &st) == 0;
  if (!there && is_shortage(errno)) return false;
  if (!there && superseded) return true;
  if (there && turn == Turn::kUnread && was_read(e, st)) return false;
  leaving.fd = tier.hold(std::move(leaving.fd));
  if (there && turn != Turn::kAny && tier.is_open(ref, leaving.fd)) return false;
  const auto bytes = there ? static_cast<uint64_t>(st.st_size) : e.size.load(std::memory_order_relaxed);
  leaving.ref = ref;
  leaving.superseded = superseded;
  if (!take_away(n, word, bytes, &leaving)) return true;
  // What was staged again has its file still, and each name of a copy was staged.
  if (!superseded) add(context_->board, AgentCounter::evicted_files, 1 + leaving.links.size());
  leave(n, std::move(leaving), s);
  return true;
}

bool Evictor::take_away(size_t n, uint64_t word, uint64_t bytes, Leaving* copy) {
  const Ref ref = copy->ref;
  if (!copy->superseded && !context_->catalog->move(ref, word, kLeavingWord)) return false;
  copy->links = files_->take_links(ref, kLeavingWord);
  const Tier& tier = context_->hierarchy->tiers()[n];
  copy->space = context_->sparse.remove(tier, ref, bytes) + copy->links.size() * tier.name_space();
  context_->source->given_up(ref);
  context_->board->placed_bytes[n].fetch_sub(bytes, std::memory_order_relaxed);
  return true;
}

bool Evictor::evict_part(size_t n, Ref ref, Shrinking* s) {
  Tier& tier = context_->hierarchy->tiers()[n];
  Result<Fd> fd = tier.open_part(ref);
  if (!fd.ok() && is_shortage(fd.error().code)) return false;
  if (fd.ok()) fd = tier.hold(fd.take());
  if (fd.ok() && s->leaving.size() >= kMostWithParts && tier.is_open(ref, *fd)) return false;
  const std::optional<uint64_t> space = chunks_->evict(ref, static_cast<int>(n), kLeavingWord);
  if (!space) return true;
  Leaving leaving;
  leaving.ref = ref;
  leaving.part = true;
  leaving.space = tier.space_of(*space);
  if (fd.ok()) leaving.fd = fd.take();
  leave(n, std::move(leaving), s);
  return true;
}

// The inode's number is free once `fd` is closed: a task's own file with that number is nobody's copy. Until
// then the catalog knows it, for those who have it open.
void Evictor::forget(Leaving* copy) {
  context_->catalog->retire(copy->ref);
  for (const Ref link : copy->links) context_->catalog->retire(link);
  copy->fd.reset();
}

// No task finds the copy any more.
void Evictor::leave(size_t n, Leaving copy, Shrinking* s) {
  ++s->removed;
  copy.since = context_->clock.now_ns();
  if (!try_to_release(n, &copy)) s->leaving.push_back(std::move(copy));
}

bool Evictor::try_to_release(size_t n, Leaving* copy) {
  Catalog* catalog = context_->catalog;
  Tier& tier = context_->hierarchy->tiers()[n];
  bool gone = tier.remove(copy->ref);
  for (const Ref link : copy->links) gone = tier.remove(link) && gone;
  if (!gone || tier.is_open(copy->ref, copy->fd)) return false;
  for (const Ref link : copy->links)
    if (tier.is_open(link, copy->fd)) return false;
  forget(copy);
  tier.release_space(std::min(copy->space, tier.used()));
  for (const Ref link : copy->links) catalog->move(link, kLeavingWord, copy->then);
  catalog->move(copy->ref, kLeavingWord, copy->then);
  freed_ = true;
  return true;
}

}  // namespace monarch
