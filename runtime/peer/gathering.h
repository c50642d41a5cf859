// SPDX-License-Identifier: Apache-2.0
// Whom a keeper of entries has to hear before it says that nobody has a file: a home that comes late or anew,
// which others went without, and a deputy that takes over from a home. What is held is asked of the holders,
// each from the place in its log on that was heard last.
//
// It knows neither clocks nor connections; one thread uses it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "runtime/peer/members.h"
#include "runtime/peer/messages.h"

namespace monarch {

class Gathering {
 public:
  // A deputy's knowledge is as old at most while the home may be in use by other nodes.
  static constexpr int64_t kFreshNs = patience::kPeerRestMs * Members::kMs;
  // Who has ever more to say is not listened to for longer at a time.
  static constexpr int64_t kLongestNs = patience::kPeerEveryMs * Members::kMs;
  // So many homes can be gone at a time: of what others had the deputies do not ask. One that is back, and
  // whose deputy was not needed for a while, is not among them.
  static constexpr size_t kMostShares = 64;
  static constexpr int64_t kUnusedNs = patience::kPeerEveryMs * Members::kMs;

  explicit Gathering(Members* members) : members_(members) {}

  // A file of the share of `home`, which has this deputy, is wanted, and this node knows nothing of it. Adds
  // to `*ask` who is to be asked now, this node itself perhaps, and to `*look` who has been waited for since
  // kPeerLookMs. True: an answer may come within `patience_ns` of the last; till then nothing can be said.
  // Then the node is late.
  bool waits(NodeIndex home, NodeIndex deputy, int64_t now, int64_t patience_ns, std::vector<NodeIndex>* ask,
             std::vector<NodeIndex>* look);
  // What the node is to be asked next.
  Gather question(NodeIndex home, NodeIndex node) const;
  // It has answered; what was not asked, or has been answered, is nothing. False: nobody answers so. `*more`:
  // it has more to say.
  bool heard(NodeIndex node, const Gathered& gathered, int64_t now, bool* more);

  // The home's entry says that the node is reading, and it has been silent: it may have told another one.
  void doubt(NodeIndex home, NodeIndex reader, int64_t since_ns);
  // A node says that this one has missed something of its own share; `acted`: as the deputy of others.
  void missed(NodeIndex from, bool acted, int64_t now);
  // All that it holds is to be asked for anew.
  void gone(NodeIndex node);
  // What was asked of it may be lost, and what it was told as a home.
  void disconnected(NodeIndex node);

 private:
  enum class State : uint8_t { kNot, kAsked, kHeard };
  struct Heard {
    uint64_t log = 0, next = 0;
    int64_t asked_ns = 0, moved_ns = 0, looked_ns = 0;
    State state = State::kNot;
  };
  struct Share {
    std::vector<Heard> nodes;
    bool all = false;          // else only the deputy of a file is asked,
    std::set<NodeIndex> also;  // and these
    int64_t missed_ns = 0;     // when all were to be asked again
    int64_t fresh_ns = 0;      // when it was begun to ask all that can be asked
    int64_t used_ns = 0;
    bool complete = false;  // all have been heard
  };
  // nullptr: there is no place for it.
  Share* share_of(NodeIndex home, int64_t now);
  // Whether an answer of the node may come.
  bool waits_for(Heard* heard, NodeIndex node, int64_t now, int64_t patience_ns, std::vector<NodeIndex>* ask,
                 std::vector<NodeIndex>* look);
  static void ask_anew(Share* share);

  Members* const members_;
  std::map<NodeIndex, Share> shares_;
  std::set<NodeIndex> made_place_;  // homes whose shares were here once: answers may still come
};

}  // namespace monarch
