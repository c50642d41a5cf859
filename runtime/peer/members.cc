// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/members.h"

#include <algorithm>

namespace monarch {

bool Members::can_ask(NodeIndex node, int64_t now) const {
  if (node >= nodes_.size()) return false;
  return node == own_ || now >= alone_until(node);
}

std::optional<NodeIndex> Members::keeper_of(const FileKey& key, int64_t now) const {
  for (const NodeIndex node : {home_of(key, count()), deputy_of(key, count())})
    if (can_ask(node, now)) return node;
  return {};
}

void Members::unreachable(NodeIndex node, int64_t now, bool refused) {
  Node& n = nodes_.at(node);
  if (n.retry > 0 && now < n.alone_until) return;  // others have found it at the same time
  n.retry = std::clamp(2 * n.retry, refused ? kRefusedRetry : kFirstRetry, kLastRetry);
  n.alone_until = std::max(n.alone_until, now + n.retry);
}

void Members::late(NodeIndex node, int64_t now) {
  Node& n = nodes_.at(node);
  if (now < n.alone_until) return;  // of what was asked at the same time
  n.suspicion = std::clamp(2 * n.suspicion, kFirstSuspicion, kLastSuspicion);
  n.alone_until = now + n.suspicion;
}

bool Members::wrong(NodeIndex node) { return ++nodes_.at(node).wrong == kMostWrong; }

void Members::answered(NodeIndex node) {
  Node& n = nodes_.at(node);
  n.retry = n.suspicion = n.alone_until = 0;
}

void Members::answered_late(NodeIndex node) {
  Node& n = nodes_.at(node);
  if (n.retry == 0 && n.suspicion == kFirstSuspicion) n.alone_until = 0;
}

bool Members::met(NodeIndex node, uint64_t incarnation) {
  Node& n = nodes_.at(node);
  const bool another = n.incarnation && *n.incarnation != incarnation;
  n.incarnation = incarnation;
  n.retry = 0;
  return another;
}

}  // namespace monarch
