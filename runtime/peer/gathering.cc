// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/gathering.h"

#include <algorithm>

namespace monarch {

Gathering::Share* Gathering::share_of(NodeIndex home, int64_t now) {
  const auto at = shares_.find(home);
  if (at != shares_.end()) return &at->second;
  if (home >= members_->count()) return nullptr;
  const NodeIndex own = members_->own();
  if (home != own && shares_.size() >= kMostShares) {
    const auto unused = std::find_if(shares_.begin(), shares_.end(), [&](const auto& one) {
      return one.first != own && now - one.second.used_ns > kUnusedNs && members_->can_ask(one.first, now);
    });
    if (unused == shares_.end()) return nullptr;
    made_place_.insert(unused->first);
    shares_.erase(unused);
  }
  Share& share = shares_[home];
  share.nodes.resize(members_->count());
  share.all = home != own;
  share.fresh_ns = now;
  return &share;
}

void Gathering::ask_anew(Share* share) {
  for (Heard& heard : share->nodes)
    if (heard.state == State::kHeard) heard.state = State::kNot;
  share->complete = false;
}

bool Gathering::waits(NodeIndex home, NodeIndex deputy, int64_t now, int64_t patience_ns,
                      std::vector<NodeIndex>* ask, std::vector<NodeIndex>* look_at) {
  const NodeIndex own = members_->own();
  if (home != own && deputy != own) return false;  // who asks is wrong
  Share* const share = share_of(home, now);
  if (!share) return false;
  share->used_ns = now;
  // Others may be asking the home, which they can reach.
  if (home != own && now - share->fresh_ns > kFreshNs && members_->can_ask(home, now)) {
    ask_anew(share);
    share->fresh_ns = now;
  }
  if (share->complete) return false;
  bool waits = false;
  const auto look = [&](NodeIndex node) {
    if (node != home)  // its own it has entered
      waits |= waits_for(&share->nodes[node], node, now, patience_ns, ask, look_at);
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
  share->complete = complete;
  return waits;
}

bool Gathering::waits_for(Heard* heard, NodeIndex node, int64_t now, int64_t patience_ns,
                          std::vector<NodeIndex>* ask, std::vector<NodeIndex>* look) {
  constexpr int64_t kLookNs = patience::kPeerLookMs * Members::kMs;
  if (heard->state == State::kHeard) return false;
  if (heard->state == State::kAsked && now - heard->moved_ns > patience_ns) members_->late(node, now);
  if (!members_->can_ask(node, now)) {
    heard->state = State::kNot;
    return false;
  }
  if (heard->state == State::kNot) {
    heard->state = State::kAsked;
    heard->asked_ns = heard->moved_ns = heard->looked_ns = now;
    ask->push_back(node);
  } else if (now - heard->looked_ns >= kLookNs) {
    heard->looked_ns = now;
    look->push_back(node);
  }
  return true;
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
  if (at == shares_.end()) return made_place_.count(gathered.share) != 0;
  Share& share = at->second;
  Heard& heard = share.nodes.at(node);
  if (heard.state != State::kAsked) return true;
  const bool anew = gathered.log != heard.log && gathered.from == 0;
  if (!anew && (gathered.log != heard.log || gathered.from != heard.next)) return true;
  const bool moves = gathered.next > gathered.from || (gathered.next == gathered.from && gathered.ended != 0);
  heard.log = gathered.log;
  heard.next = std::max(gathered.from, gathered.next);
  if (gathered.earlier != 0 && gathered.share == members_->own()) share.all = true;
  if (gathered.ended != 0 || !moves) {
    heard.state = State::kHeard;
    heard.moved_ns = now;
  } else if (now - heard.asked_ns <= kLongestNs) {
    heard.moved_ns = now;
    *more = true;
  }  // else it is as if it were silent
  return moves;
}

void Gathering::doubt(NodeIndex home, NodeIndex reader, int64_t since_ns) {
  const auto at = shares_.find(home);
  if (at == shares_.end() || reader >= members_->count()) return;
  Share* const share = &at->second;
  Heard& heard = share->nodes[reader];
  if (heard.state != State::kHeard || heard.moved_ns >= since_ns) return;
  heard.state = State::kNot;
  share->complete = false;
}

void Gathering::missed(NodeIndex from, bool acted, int64_t now) {
  Share* const share = share_of(members_->own(), now);
  if (!share) return;
  share->complete = false;
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
  if (Share* const own = share_of(members_->own(), 0)) own->also.insert(node);
  for (auto& [home, share] : shares_) {
    share.nodes.at(node) = Heard();
    share.complete = false;
  }
  disconnected(node);
}

void Gathering::disconnected(NodeIndex node) {
  for (auto& [home, share] : shares_) {
    Heard& heard = share.nodes.at(node);
    if (heard.state == State::kAsked) heard.state = State::kNot;
  }
  const auto at = shares_.find(node);
  if (at != shares_.end() && node != members_->own()) ask_anew(&at->second);
}

}  // namespace monarch
