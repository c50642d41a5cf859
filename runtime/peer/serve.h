// SPDX-License-Identifier: Apache-2.0
// Sends what this node has to the others: threads, each of which answers one Get at a time, and which become
// more as more nodes ask at a time. A connection that asks for nothing keeps none of them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/mutex.h"
#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/peer/handshake.h"
#include "runtime/peer/messages.h"

namespace monarch {

// A file that this node has, or is still reading. One thread uses it.
class ServedFile {
 public:
  virtual ~ServedFile() = default;
  virtual int copy() const = 0;  // a descriptor of its bytes; what is not read yet is not there
  virtual FileIdentity identity() const = 0;
  // The check value of a piece, once the piece is in the copy; waits for that `patience_ms` at most. Nothing:
  // it is not there yet, and may never be.
  virtual std::optional<uint64_t> check(uint64_t piece, int patience_ms) = 0;
};

struct ServeOptions {
  // Opens what is asked for; nullptr, and `*why` is told. Any of the threads.
  std::function<std::unique_ptr<ServedFile>(const Get& get, GetResult* why)> open;
  // So many at most. One of them does not send: it tells who asks in vain that all others do, since a node
  // that waits for an answer cannot tell who is busy from who hangs.
  int threads = 17;
  // So many connections are kept; one more takes the place of the one that was asked by last the longest ago,
  // whose owner dials again.
  size_t most_connections = 256;
};

class Serve {
 public:
  explicit Serve(ServeOptions options, Clock& clock = system_clock());
  ~Serve() { stop(); }

  Status start();
  // Hangs up on all; a piece that is being sent is waited for.
  void stop();

  // Takes over a connection that another node has made for data. Any thread.
  void add(Fd socket, Tls tls);
  // Files that are being sent. Any thread.
  uint32_t serving() const { return serving_; }
  // What was sent so far: files of which there was anything, and bytes. Any thread.
  uint64_t sent_files() const { return sent_files_; }
  uint64_t sent_bytes() const { return sent_bytes_; }

 private:
  struct Connection {
    Fd socket;
    Tls tls;
    bool works = false;  // a thread has it
    uint64_t used = 0;   // the greater, the later
  };
  class Turn;
  Status add_thread() REQUIRES(lock_);
  void add_thread_if_all_work() EXCLUDES(lock_);
  void hang_up_on_one() REQUIRES(lock_);
  void run();
  // False: it is to be hung up on.
  bool serve_one(Connection* connection);
  bool send_pieces(Connection* connection, uint64_t begin, uint64_t end, ServedFile* file);

  const ServeOptions options_;
  Clock& clock_;
  Fd epoll_, stop_;
  std::atomic<int> waiting_{0};  // threads
  std::atomic<uint32_t> serving_{0};
  std::atomic<uint64_t> sent_files_{0}, sent_bytes_{0};
  std::atomic<bool> stopping_{false};
  Mutex lock_;
  std::vector<std::thread> threads_ GUARDED_BY(lock_);
  // By a number that no other one had: the kernel may tell of one that is hung up on meanwhile.
  std::map<uint64_t, Connection> connections_ GUARDED_BY(lock_);
  uint64_t numbers_ GUARDED_BY(lock_) = 0, uses_ GUARDED_BY(lock_) = 0;
  std::map<std::pair<FileKey, Purpose>, int> served_ GUARDED_BY(lock_);  // how often at the moment
};

}  // namespace monarch
