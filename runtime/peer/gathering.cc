// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/gathering.h"

#include <algorithm>

namespace monarch {

Gathering::Share* Gathering::share_of(NodeIndex home) {
  const auto at = shares_.find(home);
  if (at != shares_.end()) return &at->second;
  if (home >= members_->count() || (home != members_->own() && shares_.size() >= kMostShares)) return nullptr;
  Share& share = shares_[home];
  share.nodes.resize(members_->count());
  share.all = home != members_->own();
  return &share;
}

void Gathering::ask_anew(Share* share) {
  for (Heard& heard : share->nodes)
    if (heard.state == State::kHeard) heard.state = State::kNot;
  share->complete_ns = 0;
}

bool Gathering::waits(NodeIndex home, NodeIndex deputy, int64_t now, int64_t patience_ns,
                      std::vector<NodeIndex>* ask) {
  const NodeIndex own = members_->own();
  if (home != own && deputy != own) return false;  // who asks is wrong
  Share* const share = share_of(home);
  if (!share) return false;
  // Others may be asking the home, which they can reach.
  if (home != own && share->complete_ns != 0 && now - share->complete_ns > kFreshNs &&
      members_->can_ask(home, now))
    ask_anew(share);
  if (share->complete_ns != 0) return false;
  bool waits = false;
  const auto look = [&](NodeIndex node) {
    if (node != home) waits |= waits_for(share, node, now, patience_ns, ask);  // its own it has entered
  };
  if (!share->all) {
    look(deputy);
    for (const NodeIndex node : share->also) look(node);
    return waits;
  }
  bool complete = true;
  for (NodeIndex node = 0; node < members_->count(); ++node) {
    look(node);
    complete &= node == home || share->nodes[node].state == State::kHeard;
  }
  if (complete) share->complete_ns = now;
  return waits;
}

bool Gathering::waits_for(Share* share, NodeIndex node, int64_t now, int64_t patience_ns,
                          std::vector<NodeIndex>* ask) {
  constexpr int kMostDoublings = 5;
  Heard& heard = share->nodes[node];
  if (heard.state == State::kHeard) return false;
  if (!members_->can_ask(node, now)) {
    heard.state = State::kNot;
    return false;
  }
  const bool in_vain = heard.state == State::kAsked && now - heard.moved_ns > kAskAgainNs << heard.in_vain;
  if (in_vain && heard.in_vain < kMostDoublings) ++heard.in_vain;
  if (heard.state == State::kNot || in_vain) {
    heard.state = State::kAsked;
    heard.moved_ns = now;
    ask->push_back(node);
  }
  return now - heard.moved_ns <= patience_ns;
}

Gather Gathering::question(NodeIndex home, NodeIndex node) const {
  const auto at = shares_.find(home);
  if (at == shares_.end()) return {home, 0, 0, 0};
  const Heard& heard = at->second.nodes.at(node);
  return {home, heard.log, heard.next, 0};
}

bool Gathering::heard(NodeIndex node, const Gathered& gathered, int64_t now, bool* more) {
  *more = false;
  const auto at = shares_.find(gathered.share);
  if (at == shares_.end()) return false;
  Share& share = at->second;
  Heard& heard = share.nodes.at(node);
  if (heard.state != State::kAsked) return true;
  const bool anew = gathered.log != heard.log && gathered.from == 0;
  if (!anew && (gathered.log != heard.log || gathered.from != heard.next)) return true;
  const bool moves = gathered.next > gathered.from || (gathered.next == gathered.from && gathered.ended != 0);
  heard.log = gathered.log;
  heard.next = std::max(gathered.from, gathered.next);
  heard.moved_ns = now;
  heard.in_vain = 0;
  heard.state = gathered.ended != 0 || !moves ? State::kHeard : State::kAsked;
  if (gathered.earlier != 0 && gathered.share == members_->own()) share.all = true;
  *more = heard.state == State::kAsked;
  return moves;
}

void Gathering::doubt(NodeIndex home, NodeIndex reader, int64_t since_ns) {
  Share* const share = share_of(home);
  if (!share || reader >= share->nodes.size()) return;
  Heard& heard = share->nodes[reader];
  if (heard.state != State::kHeard || heard.moved_ns >= since_ns) return;
  heard.state = State::kNot;
  share->complete_ns = 0;
}

void Gathering::missed(NodeIndex from, bool acted, int64_t now) {
  Share* const share = share_of(members_->own());
  if (!share) return;
  share->complete_ns = 0;
  share->also.insert(from);
  Heard& heard = share->nodes.at(from);
  if (heard.state == State::kHeard) heard.state = State::kNot;
  // All deputies say so at about the same time.
  if (!acted || (share->missed_ns != 0 && now - share->missed_ns < kFreshNs)) return;
  share->all = true;
  share->missed_ns = now;
  ask_anew(share);
}

void Gathering::gone(NodeIndex node) {
  if (Share* const own = share_of(members_->own())) own->also.insert(node);
  for (auto& [home, share] : shares_) {
    share.nodes.at(node) = Heard();
    share.complete_ns = 0;
  }
  parted(node);
}

void Gathering::parted(NodeIndex node) {
  for (auto& [home, share] : shares_) {
    Heard& heard = share.nodes.at(node);
    if (heard.state == State::kAsked) heard.state = State::kNot;
  }
  const auto at = shares_.find(node);
  if (at != shares_.end() && node != members_->own()) ask_anew(&at->second);
}

}  // namespace monarch
