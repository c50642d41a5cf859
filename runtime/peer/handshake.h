// SPDX-License-Identifier: Apache-2.0
// The beginning of each connection between agents of a job: TLS 1.3 with the job's key as an external PSK
// (RFC 8446, 2.2, with ECDHE) proves both ends, inside it each says Hello, and then the same socket goes on
// in clear, or stays in TLS where the admin wants all encrypted. Nothing of another job's, or of a
// stranger's, is looked at.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/base/clock.h"
#include "runtime/base/fd.h"
#include "runtime/base/result.h"
#include "runtime/peer/job.h"
#include "runtime/peer/messages.h"

struct ssl_ctx_st;
struct ssl_st;

namespace monarch {

struct FreeTls {
  void operator()(ssl_st* tls) const;
  void operator()(ssl_ctx_st* context) const;
};
using Tls = std::unique_ptr<ssl_st, FreeTls>;

// The job's key, as OpenSSL wants it; any thread. `identity` ("CLUSTER.JOB.RESTART") is sent in clear, and
// names the key.
class PeerTls {
 public:
  static Result<PeerTls> create(std::string identity, const JobKey& key);
  // Makes a part of the next one now, in a thread that has the time: OpenSSL looks for its algorithms when it
  // is first used, and makes a generator of random numbers for each thread, for some milliseconds in all.
  static void prepare();

 private:
  friend class Handshake;
  struct Secret {
    std::string identity;
    JobKey key;
  };
  std::unique_ptr<Secret> secret_;  // the context points to it
  std::unique_ptr<ssl_ctx_st, FreeTls> context_;
};

// One connection's beginning. One thread; `tls` outlives it.
class Handshake {
 public:
  enum class Side { kDials, kListens };
  enum class After { kClear, kEncrypted };

  struct Dialled {
    NodeIndex node = 0;
    uint16_t port = 0;
  };

  // Takes a connected stream socket, which it makes non-blocking. An agent that is not the one of `dialled`,
  // if there is one, is refused (ECONNREFUSED) before either end goes on in clear: somebody who has not the
  // key may have the port, and hand on to an agent elsewhere.
  Handshake(const PeerTls& tls, Fd socket, Side side, const Hello& own, After after,
            std::optional<Dialled> dialled = {});

  enum class Step { kWantsRead, kWantsWrite, kDone, kFailed };
  // Goes on as far as it can without waiting: to be called at first, and when the socket can be read or
  // written, as the step before said.
  Step step();
  // The same until it is done; an error after `patience_ms`.
  Status wait(int patience_ms, Clock& clock = system_clock());

  int socket() const { return socket_.get(); }
  const Hello& theirs() const { return theirs_; }
  const Error& error() const { return error_; }
  // When it is done: the socket, still non-blocking, and with kEncrypted what goes through it.
  Fd take_socket() { return std::move(socket_); }
  Tls take_tls() { return std::move(tls_); }

 private:
  enum class Stage { kProve, kSay, kHear, kClose, kWaitForClose, kDone, kFailed };
  Step advance(int result, Stage next);
  Step fail(const std::string& what, int code);
  bool heard();

  Fd socket_;
  Tls tls_;
  const After after_;
  const std::optional<Dialled> dialled_;
  Stage stage_ = Stage::kProve;
  const std::string own_;
  std::string got_;
  Hello theirs_;
  Error error_;
};

}  // namespace monarch
