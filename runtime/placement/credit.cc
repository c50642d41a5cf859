// SPDX-License-Identifier: Apache-2.0
#include "runtime/placement/credit.h"

#include <algorithm>
#include <utility>

#include "runtime/base/patience.h"

namespace monarch {
namespace {

uint64_t more(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

}  // namespace

Reserved::~Reserved() {
  if (bytes_ != 0 && credit_) credit_->give_back(bytes_);
}

uint64_t PrefetchCredit::burst() const {
  const uint64_t nodes = std::max(1u, context_->config.nodes);
  const uint64_t set = context_->config.prefetch_burst;
  if (set != AgentConfig::kBurstAuto) return set;
  const uint64_t files = total(*context_->board, AgentCounter::walk_files);
  return std::clamp(files / kPart * (health_->usual_size() + kOpenBytes), kLeastBurst, kMostBurst) / nodes;
}

uint64_t PrefetchCredit::earned() const {
  const Board& board = *context_->board;
  uint64_t read_on_tiers = 0, opens_on_tiers = 0;
  for (uint32_t i = 0; i < context_->hierarchy->tiers().size(); ++i) {
    const TierTotals tier = tier_totals(board, i);
    read_on_tiers += tier.read_bytes;
    opens_on_tiers += tier.opens;
  }
  const uint64_t on_tiers = read_on_tiers + opens_on_tiers * kOpenBytes;
  const uint64_t on_pfs = total(board, TaskCounter::read_bytes_pfs) + total(board, TaskCounter::mmap_bytes) +
                          total(board, TaskCounter::opens_pfs) * kOpenBytes;
  // What was staged since an open or a read waited for it, or the job said that it will use it, is read on a
  // tier, too.
  const uint64_t asked_for =
      context_->asked_bytes.load(std::memory_order_relaxed) +
      (total(board, AgentCounter::demand_files) + total(board, AgentCounter::hinted_files)) * kOpenBytes;
  return on_tiers + on_pfs + more(on_tiers, asked_for);
}

bool PrefetchCredit::affords_now(uint64_t bytes) {
  if (context_->config.prefetch != AgentConfig::Prefetch::kAuto) return true;
  const uint64_t wanted = taken_ + held_ + bytes + kOpenBytes;
  if (wanted <= credit_) return true;
  const int64_t now = context_->clock.now_ns();
  if (counted_ns_ != 0 && now - counted_ns_ < patience::kBusyLookNs) return false;
  counted_ns_ = now;
  credit_ = burst() + earned();
  return wanted <= credit_;
}

bool PrefetchCredit::affords(uint64_t bytes) {
  const MutexLock hold(lock_);
  return affords_now(bytes);
}

Reserved PrefetchCredit::reserve(uint64_t bytes) {
  const MutexLock hold(lock_);
  const uint64_t price = bytes != 0 ? bytes : health_->usual_size();
  if (!affords_now(price)) return {};
  held_ += price + kOpenBytes;
  return {this, price + kOpenBytes};
}

void PrefetchCredit::give_back(uint64_t reserved) {
  const MutexLock hold(lock_);
  held_ -= reserved;
}

bool PrefetchCredit::take(uint64_t bytes, Reserved* reserved) {
  const MutexLock hold(lock_);
  held_ -= std::exchange(reserved->bytes_, 0);
  // It is open, as its mean could be paid: what costs less than to open it again is not put back.
  const bool affordable = affords_now(bytes) || bytes <= kOpenBytes;
  taken_ += (affordable ? bytes : 0) + kOpenBytes;
  return affordable;
}

int64_t PrefetchCredit::next_look_ns() {
  const MutexLock hold(lock_);
  nap_ns_ = credit_ == credit_then_ ? std::clamp(2 * nap_ns_, patience::kFirstLookNs, patience::kLookNs)
                                    : patience::kFirstLookNs;
  credit_then_ = credit_;
  return nap_ns_;
}

}  // namespace monarch
