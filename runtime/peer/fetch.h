// SPDX-License-Identifier: Apache-2.0
// Gets files from other nodes, over connections for data that are kept for the next one. Each piece has the
// check value that was computed where the PFS was read; what does not match is not handed on.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/mutex.h"
#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/peer/control.h"
#include "runtime/peer/handshake.h"
#include "runtime/peer/messages.h"

namespace monarch {

enum class Fetched {
  kOk,
  kGone,         // the node has it not, or not any more
  kChanged,      // the job has changed it
  kBusy,         // it serves others
  kNotYet,       // it is reading the file, and has not more of it yet
  kUnreachable,  // there is no connection
  kLate,         // it did not go on in time
  kBroken,       // the connection ended, or what came is no answer
  kWrong,        // bytes that are not those that were read on the PFS
  kRefused,      // the receiver would not have it
};

struct FetchOptions {
  ControlOptions peers;   // as for Control
  size_t most_idle = 64;  // connections
};

// What is known of the other nodes. Any thread; port() may wait, bounded.
class Whereabouts {
 public:
  // Where the node's agent was met; 0: not yet.
  virtual uint16_t port(NodeIndex node) = 0;
  // Where it listens for data, too, which is tried first; empty: nowhere else.
  virtual std::string data_address(NodeIndex node) = 0;
  // Somebody waits for it; see Control::look().
  virtual void look(NodeIndex node) = 0;

 protected:
  ~Whereabouts() = default;
};

// What becomes of a file that comes.
struct Receiver {
  // The file is there, and this is what it is; once more of each node that goes on. False: it is not wanted.
  std::function<bool(const FileIdentity& identity)> begin;
  // A piece of it, from `offset` on. False: it cannot be kept.
  std::function<bool(uint64_t offset, const char* bytes, size_t n, uint64_t check)> piece;
};

// All members may be called from any thread.
class Fetch {
 public:
  // `nodes` outlives it.
  Fetch(FetchOptions options, Whereabouts* nodes, Clock& clock = system_clock())
      : options_(std::move(options)), nodes_(nodes), clock_(clock) {}

  // Asks `from` for a file, and waits for all of it. `buffer` has room for kPieceBytes.
  Fetched get(NodeIndex from, const Get& get, char* buffer, const Receiver& receiver) EXCLUDES(lock_);
  // The node is gone, or cannot be reached: hangs up on it. A get() ends soon if it has waited for
  // kPeerSoonMs; what still comes is taken.
  void forget(NodeIndex node) EXCLUDES(lock_);

 private:
  struct Connection {
    NodeIndex node = 0;
    Fd socket;
    Tls tls;
  };
  class Run;
  Result<Connection> dial(NodeIndex node, Run* run) EXCLUDES(lock_);
  Result<Connection> dial_at(NodeIndex node, const std::string& host, uint16_t port, Run* run) const;
  std::optional<Connection> take_idle(NodeIndex node) EXCLUDES(lock_);
  void keep(Connection connection) EXCLUDES(lock_);
  // `*answered`: the node has begun to.
  Fetched get_on(Connection* connection, const Get& get, char* buffer, const Receiver& receiver, Run* run,
                 bool* answered) const;

  const FetchOptions options_;
  Whereabouts* const nodes_;
  Clock& clock_;
  Mutex lock_;
  std::multimap<NodeIndex, Run*> runs_ GUARDED_BY(lock_);     // get()s
  std::map<NodeIndex, int64_t> elsewhere_ GUARDED_BY(lock_);  // whose `data_address` rests until then
  std::vector<Connection> idle_ GUARDED_BY(lock_);            // the one that was used last is the last
};

// The check value of a whole file: of those of its pieces, in their order.
uint64_t check_of(const std::vector<uint64_t>& pieces);
uint64_t check_of_piece(const char* bytes, size_t n);

}  // namespace monarch
