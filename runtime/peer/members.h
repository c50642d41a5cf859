// SPDX-License-Identifier: Apache-2.0
// The nodes of the job, as this one sees them: whom it can ask now, and whom it leaves alone for a while. The
// list never grows; a node that comes late was only not to be reached before.
//
// Times are CLOCK_MONOTONIC in nanoseconds, given by the caller. One thread uses it.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/base/patience.h"
#include "runtime/peer/key.h"

namespace monarch {

class Members {
 public:
  // A node that cannot be reached is tried again after 1, 2, 4 ... 30 s, and one that says at once that
  // nobody listens there, as while a job starts, after 50, 100, 200 ms ... 30 s; one that was reached and did
  // not answer in time is suspect for 5, 10 ... 300 s.
  static constexpr int64_t kSecond = 1'000'000'000;
  static constexpr int64_t kMs = kSecond / 1000;
  static constexpr int64_t kRefusedRetry = patience::kPeerSoonMs * kMs;
  static constexpr int64_t kFirstRetry = patience::kPeerRestMs * kMs,
                           kLastRetry = patience::kPeerRetryMs * kMs;
  static constexpr int64_t kFirstSuspicion = patience::kPeerSilenceMs * kMs;
  static constexpr int64_t kLastSuspicion = patience::kMostPauseNs;
  // So many wrong answers of one, and it is not asked any more in this job.
  static constexpr int kMostWrong = 3;

  // `own` < `nodes`.
  Members(NodeIndex own, uint32_t nodes) : own_(own), nodes_(nodes) {}

  NodeIndex own() const { return own_; }
  uint32_t count() const { return static_cast<uint32_t>(nodes_.size()); }

  // Whether it makes sense to ask the node now. This one itself always can be.
  bool can_ask(NodeIndex node, int64_t now) const;
  // When it makes sense to ask the node again; a time that has passed: now. kNever: not in this job.
  static constexpr int64_t kNever = INT64_MAX;
  int64_t alone_until(NodeIndex node) const {
    const Node& n = nodes_.at(node);
    return n.wrong < kMostWrong ? n.alone_until : kNever;
  }
  // Who keeps the file's entry now: its home, or its deputy while that one cannot be asked. Nothing: neither
  // can.
  std::optional<NodeIndex> keeper_of(const FileKey& key, int64_t now) const;

  void unreachable(NodeIndex node, int64_t now, bool refused = false);
  void late(NodeIndex node, int64_t now);
  // It sent what is no answer, or wrong bytes. True: it is not asked any more from now on.
  bool wrong(NodeIndex node);
  // It has answered in time.
  void answered(NodeIndex node);
  // It has answered after all. Who is not late again and again is asked at once from now on.
  void answered_late(NodeIndex node);
  // A handshake with the agent `incarnation` there has succeeded. True: it is another one than the last,
  // whose leases and copies are gone.
  bool met(NodeIndex node, uint64_t incarnation);

 private:
  struct Node {
    std::optional<uint64_t> incarnation;
    int64_t alone_until = 0;
    int64_t retry = 0, suspicion = 0;  // how long it was left alone the last time
    int wrong = 0;
  };
  const NodeIndex own_;
  std::vector<Node> nodes_;
};

}  // namespace monarch
