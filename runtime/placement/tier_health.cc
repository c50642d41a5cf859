// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/tier_health.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/log.h"
#include "runtime/base/patience.h"

namespace monarch {
namespace {

constexpr int kMisfitsToStop = 8;

}  // namespace

// A tier that is closed may take files later, so nothing is final then.
void TierHealth::no_room(Ref ref) {
  Board* board = context_->board;
  context_->count(ref, AgentCounter::no_fit_files);
  if (before(context_->uses.of(ref)) > 0) kept_ = true;
  const auto& tiers = context_->hierarchy->tiers();
  const bool for_now = std::any_of(tiers.begin(), tiers.end(), [](const Tier& t) { return t.may_recover(); });
  context_->settle(ref, for_now ? state_word(State::kNoFit, Reason::kTierError) : state_word(State::kNoFit));
  if (++misfits_ < kMisfitsToStop || has_room()) return;
  if (board->header.full.exchange(1, std::memory_order_relaxed) == 0)
    spdlog::info("{}", for_now ? "no tier takes files now"
                               : "the tiers are full; the rest of the dataset stays on the PFS");
  queue_->end_prefetch();
  room_is_left();  // just now
}

uint64_t TierHealth::before(uint32_t uses) const {
  return context_->uses.waiting(uses) * context_->tier(0).space_of(usual_size());
}

uint32_t TierHealth::least_uses() const {
  uint32_t uses = 0;
  for (uint64_t bytes; (bytes = before(uses)) > 0 && !context_->hierarchy->has_room(usual_size(), bytes);)
    ++uses;
  return uses;
}

bool TierHealth::has_room() const { return context_->hierarchy->room() >= usual_size(); }

void TierHealth::room_is_left() {
  if (has_room()) room_grew();
}

void TierHealth::room_grew() {
  context_->board->header.full.store(0, std::memory_order_relaxed);
  misfits_ = 0;
  context_->catalog->walk(0, [&](Ref ref) {
    context_->catalog->move(ref, state_word(State::kNoFit), state_word(State::kKnown));
    return true;
  });
  queue_->start_over(WorkQueue::Prefetch::kAgain);
}

void TierHealth::failed(int tier, const Error& error) {
  if (is_of_one_file(error.code)) {
    spdlog::warn("a file stays on the PFS: {}", error.text);
    add(context_->board, AgentCounter::tier_errors);
    return;
  }
  context_->tier(tier).close(error.text);
  if (error.code == EIO) context_->catalog->set_tier_failed(static_cast<uint32_t>(tier), true);
  add(context_->board, AgentCounter::tier_errors);
  queue_->wake();  // somebody has to wait for the time to try it again
}

void TierHealth::ran_short(int error) {
  add(context_->board, AgentCounter::put_off_files);
  const int64_t pause = std::clamp(2 * shortage_ns_.load(), patience::kLookNs, patience::kMostPauseNs);
  int64_t none = 0;
  if (!short_until_ns_.compare_exchange_strong(none, context_->clock.now_ns() + pause)) return;
  shortage_ns_ = pause;
  spdlog::warn("prefetch rests for {} s, and files are read from the PFS: {}", pause / 1'000'000'000,
               std::strerror(error));
  queue_->wake();  // somebody has to wait for its end
}

// Settled first: who ends the pause then finds it.
void TierHealth::put_off(Ref ref, int error) {
  context_->settle(ref, state_word(State::kNoFit, Reason::kTierError));
  ran_short(error);
}

void TierHealth::placed() {
  shortage_ns_ = 0;
  context_->board->header.stalled_until_ns.store(0, std::memory_order_relaxed);
  if (kept_ && before(0) == 0 && kept_.exchange(false)) room_is_left();
}

void TierHealth::note_size(uint64_t bytes) {
  add(context_->board, AgentCounter::dataset_bytes, bytes);
  add(context_->board, AgentCounter::sized_files);
  bytes_seen_ += bytes;
  ++files_seen_;
}

int64_t TierHealth::due() const {
  int64_t due = INT64_MAX;
  for (const Tier& t : context_->hierarchy->tiers())
    if (t.may_recover()) due = std::min(due, t.next_probe_ns());
  if (const int64_t until = short_until_ns_; until != 0) due = std::min(due, until);
  return due;
}

void TierHealth::look() {
  std::vector<Tier>& tiers = context_->hierarchy->tiers();
  bool opened = false;
  for (size_t i = 0; i < tiers.size(); ++i) {
    if (!tiers[i].probe()) continue;
    context_->catalog->set_tier_failed(static_cast<uint32_t>(i), false);
    opened = true;
  }
  if (opened) {
    context_->board->header.full.store(0, std::memory_order_relaxed);
    misfits_ = 0;
  }
  int64_t until = short_until_ns_;
  const bool rested =
      until != 0 && until <= context_->clock.now_ns() && short_until_ns_.compare_exchange_strong(until, 0);
  if (!opened && !rested) return;
  context_->catalog->walk(0, [&](Ref ref) {
    context_->catalog->move(ref, state_word(State::kNoFit, Reason::kTierError), state_word(State::kKnown));
    return true;
  });
  queue_->start_over(opened ? WorkQueue::Prefetch::kAgain : WorkQueue::Prefetch::kAsItWas);
}

}  // namespace monarch
