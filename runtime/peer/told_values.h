// SPDX-License-Identifier: Apache-2.0
// What the PFS says of files, asked for once per job: the node that has learned it, from a task that asked or
// when it read the file, tells all others. Their tasks are answered with it, and they stage the file from
// other nodes without a look at the PFS.
//
// Nobody is asked, and nobody waits: what comes late, or not at all, a node asks the PFS itself.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/patience.h"
#include "runtime/layout/board_layout.h"
#include "runtime/metadata/catalog.h"
#include "runtime/metadata/dataset.h"
#include "runtime/peer/key.h"
#include "runtime/peer/messages.h"

namespace monarch {

struct ToldValuesOptions {
  Catalog* catalog = nullptr;  // these outlive it
  const Dataset* dataset = nullptr;
  const Board* board = nullptr;
  NodeIndex own = 0;
  uint32_t nodes = 1;
  // Tells a node, which is looked for if it is not there.
  std::function<void(NodeIndex node, std::string message)> tell;
  // Has rings() called after that time.
  std::function<void(int ms)> ring_after;
  int gather_ms = patience::kPeerLookMs;  // values, before they are told
  std::string mounts = "/proc/self/mountinfo";
};

// All members may be called from any thread.
class ToldValues {
 public:
  explicit ToldValues(ToldValuesOptions options, Clock& clock = system_clock());

  // The catalog has got values of the entry from this node's PFS, or will once its copy is published.
  void learned(Ref ref) EXCLUDES(lock_);
  // What another node says. False: it is what no node says.
  bool take(const Told& told) EXCLUDES(lock_);
  // What another node, whose agent has read it, says of a file that is neither placed nor changed.
  std::optional<struct stat> values(Ref ref) EXCLUDES(lock_);
  // Whether values of the entry came from another node that has read it.
  bool are_told(Ref ref) EXCLUDES(lock_);

  void met(NodeIndex node, uint64_t incarnation) EXCLUDES(lock_);
  void gone(NodeIndex node) EXCLUDES(lock_);
  void heard(NodeIndex node, const Heard& heard) EXCLUDES(lock_);
  void rings() EXCLUDES(lock_);

 private:
  // Another node, and what it has been told of `log_`.
  struct Node {
    uint64_t incarnation = 0;
    uint64_t told = 0;     // it has heard all before that
    uint64_t asked = 0;    // where the part on its way ends; 0: none is
    int64_t since_ns = 0;  // when that was sent, or the node was found to be away
    bool away = false;
  };
  bool is_shared() const { return options_.nodes > 1 && options_.catalog->header().serve_metadata != 0; }
  bool take(const ToldFile& file, int64_t now_ns) EXCLUDES(lock_);
  bool has_mounts(uint32_t root, int64_t now_ns) EXCLUDES(lock_);
  // Nothing: there are none, or nobody is to be told of them.
  std::optional<ToldFile> file_of(Ref ref);
  void ring_later();
  void tell_on() EXCLUDES(lock_);
  std::optional<NodeIndex> next_node(int64_t now_ns) REQUIRES(lock_);
  void tell(NodeIndex node) EXCLUDES(lock_);

  const ToldValuesOptions options_;
  Clock& clock_;
  Mutex lock_;
  std::vector<Ref> fresh_ GUARDED_BY(lock_);  // that are to go into the log
  bool ringing_ GUARDED_BY(lock_) = false;    // it will ring for those that are new
  std::vector<Ref> log_ GUARDED_BY(lock_);
  std::vector<Node> nodes_ GUARDED_BY(lock_);
  NodeIndex turn_ GUARDED_BY(lock_) = 0;                // who is told next
  std::vector<uint64_t> read_ GUARDED_BY(lock_);        // a bit for each Ref: told, and read there
  std::vector<bool> mounted_ GUARDED_BY(lock_);         // roots with something mounted below them
  std::optional<int64_t> looked_ns_ GUARDED_BY(lock_);  // when that was looked at
};

}  // namespace monarch
