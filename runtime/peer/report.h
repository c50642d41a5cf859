// SPDX-License-Identifier: Apache-2.0
// What all nodes of a job have counted, brought together on its first one. Each agent tells that node what it
// has counted, now and then and once more when it ends; the first node's agent sums up what the others tell,
// and keeps the sums on its board, where root's epilog and monarchctl find them whatever becomes of the
// agent.
//
// Any thread; no call but wait() takes longer than a moment.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/patience.h"
#include "runtime/config/config.h"
#include "runtime/layout/board_layout.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/nodes_told.h"
#include "runtime/peer/key.h"
#include "runtime/peer/messages.h"

namespace monarch {

struct ReportOptions {
  Board* board = nullptr;     // outlives it
  std::vector<Medium> tiers;  // what each is made of
  NodeIndex own = 0;
  uint32_t nodes = 1;
  uint64_t incarnation = 0;  // of the agents on this board
};

class Report {
 public:
  static constexpr NodeIndex kFirst = 0;  // the node that is told
  static constexpr int64_t kEveryNs = patience::kPeerEveryMs * int64_t{1'000'000};
  // Agents that a node may have in the life of the first node's. Of more nothing is known.
  static constexpr size_t kMostAgents = 16;

  explicit Report(ReportOptions options, Clock& clock = system_clock());

  // Whether it is time for news(); `now_ns` is the clock's.
  bool is_due(int64_t now_ns) const EXCLUDES(lock_);
  // What is to be told now. Nothing: it has not changed since, or this is the first node.
  std::optional<Count> news(int64_t now_ns) EXCLUDES(lock_);
  // The same as this agent ends.
  Count last() EXCLUDES(lock_);

  // An agent is there, or there again; it has left, or its connection was broken.
  void met(NodeIndex node, uint64_t incarnation) EXCLUDES(lock_);
  void gone(NodeIndex node) EXCLUDES(lock_);

  // On the first node: another one has told. What is older than what is known of that agent does not count.
  void take(NodeIndex from, const Count& count) EXCLUDES(lock_);
  // What each node has told so far, by its index; this node's own is as of now, and its `told_ms` 0.
  // Elsewhere than on the first node nothing.
  std::vector<NodeTold> told() const EXCLUDES(lock_);
  // Waits until all agents have told that they end: at most `patience_ms` for those that are there, and
  // `absent_ms` for any other.
  void wait(int patience_ms, int absent_ms) EXCLUDES(lock_);

 private:
  struct Agent {
    uint64_t incarnation = 0, turn = 0;
    bool ended = false;
    NodeCounts counts;
  };
  struct Node {
    std::vector<Agent> agents;
    bool there = false, lost_count = false;
    int64_t told_ns = 0;
    bool ended() const;
  };

  uint64_t next_turn() REQUIRES(lock_);
  // nullptr: there were too many.
  Agent* agent_of(NodeIndex node, uint64_t incarnation) REQUIRES(lock_);
  void publish() REQUIRES(lock_);

  const ReportOptions options_;
  Clock& clock_;
  mutable Mutex lock_;
  Condition told_;
  int64_t looked_ns_ GUARDED_BY(lock_) = 0;
  uint64_t turns_ GUARDED_BY(lock_) = 0;
  NodeCounts said_ GUARDED_BY(lock_);  // to the first node's agent that was met last
  std::vector<Node> nodes_ GUARDED_BY(lock_);
  NodeCounts sums_ GUARDED_BY(lock_);
};

}  // namespace monarch
