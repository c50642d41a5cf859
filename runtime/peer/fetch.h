// SPDX-License-Identifier: Apache-2.0
// Gets files from other nodes, over connections for data that are kept for the next one. Each piece has the
// check value that was computed where the PFS was read; what does not match is not handed on.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
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
#include "runtime/peer/slowness.h"

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
  ControlOptions peers;  // as for Control
  // The port where the node's agent was met; 0: not yet.
  std::function<uint16_t(NodeIndex)> port;
  // For the first byte, and for some of each piece; see Wire::receive_slowly().
  int answer_ms = patience::kPeerDataMs;
  size_t most_idle = 64;  // connections
  // Where it listens for data, too, which is tried first; empty: nowhere else. nullptr: none does.
  std::function<std::string(NodeIndex)> data_address = nullptr;
  int elsewhere_ms = patience::kPeerBeginMs;  // so long is one that cannot be reached not tried again
  Slowness* slowness = nullptr;
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
  explicit Fetch(FetchOptions options, Clock& clock = system_clock())
      : options_(std::move(options)), clock_(clock) {}

  // Asks `from` for a file, and waits for all of it. `buffer` has room for kPieceBytes.
  Fetched get(NodeIndex from, const Get& get, char* buffer, const Receiver& receiver) EXCLUDES(lock_);
  // Hangs up on the node; a get() of another thread is not ended by it.
  void forget(NodeIndex node) EXCLUDES(lock_);

 private:
  struct Connection {
    NodeIndex node = 0;
    Fd socket;
    Tls tls;
  };
  int limit_ms(int ms) const { return options_.slowness ? options_.slowness->limit_ms(ms) : ms; }
  Result<Connection> dial(NodeIndex node) EXCLUDES(lock_);
  Result<Connection> dial_at(NodeIndex node, const std::string& host, uint16_t port) const;
  std::optional<Connection> take_idle(NodeIndex node) EXCLUDES(lock_);
  void keep(Connection connection) EXCLUDES(lock_);
  void hang_up_on_idlest() REQUIRES(lock_);
  // `*answered`: the node has begun to.
  Fetched get_on(Connection* connection, const Get& get, char* buffer, const Receiver& receiver,
                 bool* answered) const;

  const FetchOptions options_;
  Clock& clock_;
  Mutex lock_;
  std::map<NodeIndex, int64_t> elsewhere_ GUARDED_BY(lock_);  // whose `data_address` rests until then
  std::list<Connection> idle_ GUARDED_BY(lock_);              // the one that was used last is the first
  // The same by node: there may be more than a thousand.
  std::multimap<NodeIndex, std::list<Connection>::iterator> idle_with_ GUARDED_BY(lock_);
};

// The check value of a whole file: of those of its pieces, in their order.
uint64_t check_of(const std::vector<uint64_t>& pieces);
uint64_t check_of_piece(const char* bytes, size_t n);

}  // namespace monarch
