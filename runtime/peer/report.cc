// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/report.h"

#include <algorithm>
#include <array>
#include <bit>
#include <utility>

namespace monarch {
namespace {

static_assert(static_cast<uint32_t>(Medium::kRam) + 1 == kMedia);

using Words = std::array<uint64_t, kNodeWords>;

// Sums wrap around, so what is taken away again leaves them as they were.
NodeCounts negative(const NodeCounts& counts) {
  auto words = std::bit_cast<Words>(counts);
  for (uint64_t& n : words) n = -n;
  return std::bit_cast<NodeCounts>(words);
}

}  // namespace

Report::Report(ReportOptions options, Clock& clock) : options_(std::move(options)), clock_(clock) {
  const MutexLock hold(lock_);
  nodes_.resize(options_.nodes);
  looked_ns_ = clock_.now_ns();
}

// ---- what this node tells

// Higher than those of an agent before this one on the same board.
uint64_t Report::next_turn() { return turns_ = std::max(turns_ + 1, static_cast<uint64_t>(clock_.now_ns())); }

bool Report::is_due(int64_t now_ns) const {
  const MutexLock hold(lock_);
  return now_ns - looked_ns_ >= kEveryNs;
}

std::optional<Count> Report::news(int64_t now_ns) {
  const NodeCounts now = node_counts(*options_.board, options_.tiers);
  const MutexLock hold(lock_);
  looked_ns_ = now_ns;
  const bool same = std::bit_cast<Words>(now) == std::bit_cast<Words>(said_);
  if (same || options_.own == kFirst) return {};
  said_ = now;
  return Count{options_.incarnation, next_turn(), 0, now};
}

Count Report::last() {
  const NodeCounts now = node_counts(*options_.board, options_.tiers);
  const MutexLock hold(lock_);
  return Count{options_.incarnation, next_turn(), 1, now};
}

// ---- what the first node hears

bool Report::Node::ended() const {
  return !agents.empty() && !lost_count &&
         std::all_of(agents.begin(), agents.end(), [](const Agent& agent) { return agent.ended; });
}

Report::Agent* Report::agent_of(NodeIndex node, uint64_t incarnation) {
  std::vector<Agent>& agents = nodes_[node].agents;
  const auto at = std::find_if(agents.begin(), agents.end(),
                               [&](const Agent& agent) { return agent.incarnation == incarnation; });
  if (at != agents.end()) return &*at;
  if (agents.size() >= kMostAgents) {
    nodes_[node].lost_count = true;
    return nullptr;
  }
  Agent& agent = agents.emplace_back();
  agent.incarnation = incarnation;
  return &agent;
}

void Report::take(NodeIndex from, const Count& count) {
  const MutexLock hold(lock_);
  if (options_.own != kFirst || from == kFirst || from >= nodes_.size()) return;
  Agent* agent = agent_of(from, count.incarnation);
  if (!agent) return publish();
  if (count.turn <= agent->turn) return;
  add(&sums_, negative(agent->counts));
  add(&sums_, count.counts);
  agent->turn = count.turn;
  agent->ended |= count.last == 1;
  agent->counts = count.counts;
  nodes_[from].told_ns = clock_.now_ns();
  publish();
}

void Report::met(NodeIndex node, uint64_t incarnation) {
  const MutexLock hold(lock_);
  if (node == kFirst) said_ = {};  // by an agent that has not heard of it, or not of all
  if (options_.own != kFirst || node == kFirst || node >= nodes_.size()) return;
  nodes_[node].there = true;
  (void)agent_of(node, incarnation);
  publish();
}

void Report::gone(NodeIndex node) {
  const MutexLock hold(lock_);
  if (node < nodes_.size()) nodes_[node].there = false;
  told_.notify_all();
}

std::vector<NodeTold> Report::told() const {
  if (options_.own != kFirst) return {};
  std::vector<NodeTold> all = {told_of(node_counts(*options_.board, options_.tiers))};
  const MutexLock hold(lock_);
  for (NodeIndex node = kFirst + 1; node < nodes_.size(); ++node) {
    NodeCounts counts;
    for (const Agent& agent : nodes_[node].agents) add(&counts, agent.counts);
    all.push_back(told_of(counts));
    all.back().told_ms = static_cast<uint64_t>(nodes_[node].told_ns / 1000000);
    all.back().ended = nodes_[node].ended() ? 1 : 0;
  }
  return all;
}

void Report::publish() {
  const auto ended =
      std::count_if(nodes_.begin(), nodes_.end(), [](const Node& node) { return node.ended(); });
  set_others(options_.board, {sums_, static_cast<uint64_t>(ended)});
  told_.notify_all();
}

void Report::wait(int patience_ms, int absent_ms) {
  const int64_t begin = clock_.now_ns();
  MutexLock hold(lock_);
  for (;;) {
    bool all = true, there = false;
    for (NodeIndex node = kFirst + 1; node < nodes_.size(); ++node) {
      if (nodes_[node].ended()) continue;
      all = false;
      there |= nodes_[node].there;
    }
    const int64_t until = begin + int64_t{there ? patience_ms : absent_ms} * 1000000;
    if (all || clock_.now_ns() >= until) return;
    clock_.wait_until(&told_, &hold, until);
  }
}

}  // namespace monarch
