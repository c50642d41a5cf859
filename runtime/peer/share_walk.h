// SPDX-License-Identifier: Apache-2.0
// One walk per job: one node reads the directories, the others are told what is in them.
//
// Each node keeps a log of the directories that it has read or was told of. Who follows asks for it piece by
// piece, from its parent in a tree in which each has eight children and the node that walks is the root. So
// what is on its way is bounded, however slow a child is, and who comes late gets all. The node with the
// lowest index walks; if it cannot be reached, or is silent, the next one reads what it was not told of.
//
// Two nodes may come to walk at a time, or one may read what another has told a moment later: a directory is
// read twice then, and all that is entered is right. A listing counts for a task only while the kernel of its
// own node says that the directory has the values that the listing was read with.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/metadata/walker.h"
#include "runtime/peer/key.h"
#include "runtime/peer/messages.h"

namespace monarch {

struct ShareWalkOptions {
  NodeIndex own = 0;
  uint32_t nodes = 1;
  uint64_t log = 0;  // another number for each agent
  // Asks a node; waits, bounded. ETIMEDOUT, EAGAIN: it may answer later; another error: it is not there.
  std::function<Result<List>(NodeIndex node, const Walk& question)> ask;
  // The node sent what is none.
  std::function<void(NodeIndex node)> wrong = [](NodeIndex) {};
  int start_ms = patience::kPeerSlowMs;  // from start(): so long may a node that is to walk not be there yet
  int silence_ms = patience::kPeerEveryMs;  // so long may the walk not go on
  int nap_ms = patience::kPeerSoonMs;       // between questions, while nothing is new
  size_t most_log = 256 << 20;
};

class ShareWalk final : public WalkSink {
 public:
  explicit ShareWalk(ShareWalkOptions options, Clock& clock = system_clock())
      : options_(std::move(options)), clock_(clock) {}
  ~ShareWalk() override { stop(); }

  // Has `walker`, which outlives stop(), filled by other nodes or started here, in a thread of its own.
  void start(Walker* walker, int threads) EXCLUDES(lock_);
  // Follows nobody any more. It does not end the walker.
  void stop() EXCLUDES(lock_);
  // What another node gets to know. Any thread; short.
  List answer(const Walk& question) EXCLUDES(lock_);

  void read(const WalkedDirectory& directory) override EXCLUDES(lock_);
  void reads() override EXCLUDES(lock_);
  void ended() override EXCLUDES(lock_);

 private:
  enum class End { kTold, kAlone, kStopped };
  void run(int threads) EXCLUDES(lock_);
  // Fills the walker with what others tell, until one of them is at its end, or this node is to walk.
  End follow() EXCLUDES(lock_);
  // A node that walks although this one would be the first to.
  std::optional<NodeIndex> walks_already() EXCLUDES(lock_);
  // Asks the parent, or the nodes on the way up to the one that walks until one has a log. `*asked`: the last
  // of them.
  enum class Up { kParent, kAnyOf };
  Result<List> ask_up(NodeIndex walker, Up up, NodeIndex* asked);
  Result<List> ask(NodeIndex node);
  // Enters what a node has sent. False: it is not what a node sends.
  void take(NodeIndex from, const List& list) EXCLUDES(lock_);
  bool take(NodeIndex from, ListPart* part) EXCLUDES(lock_);
  void add_part(ListPart part) EXCLUDES(lock_);
  void seal() REQUIRES(lock_);
  bool note_progress(uint64_t progress) EXCLUDES(lock_);  // whether it is new
  bool is_stopping() EXCLUDES(lock_);
  bool nap(int ms) EXCLUDES(lock_);  // false: stop() was called

  const ShareWalkOptions options_;
  Clock& clock_;
  Walker* walker_ = nullptr;
  std::thread thread_;
  // Of the thread alone.
  std::map<NodeIndex, Walk> places_;              // in the logs of others
  using Name = std::pair<uint32_t, std::string>;  // a directory's root, and its path
  struct Incomplete {                             // directories whose last part has not come
    std::map<Name, WalkedDirectory> directories;
    size_t names = 0;  // in all of them
  };
  std::map<NodeIndex, Incomplete> incomplete_;

  Mutex lock_;
  bool stopping_ GUARDED_BY(lock_) = false;
  WalkState state_ GUARDED_BY(lock_) = WalkState::kNone;
  uint64_t progress_ GUARDED_BY(lock_) = 0;
  std::vector<std::string> log_ GUARDED_BY(lock_);  // ListParts, as bytes
  size_t log_bytes_ GUARDED_BY(lock_) = 0;
  ListParts open_ GUARDED_BY(lock_);  // the log's next entry
  size_t open_bytes_ GUARDED_BY(lock_) = 0;
};

}  // namespace monarch
