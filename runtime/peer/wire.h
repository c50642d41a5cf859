// SPDX-License-Identifier: Apache-2.0
// Bytes over a connection for data, with a limit in time: in clear, or through TLS. A peer that takes
// nothing, or sends nothing, for that long is given up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/patience.h"
#include "runtime/base/result.h"
#include "runtime/peer/handshake.h"

namespace monarch {

// Does not own what it works on; `tls` may be nullptr. The socket is non-blocking. One thread.
class Wire {
 public:
  Wire(int socket, ssl_st* tls, Clock& clock = system_clock()) : socket_(socket), tls_(tls), clock_(clock) {}

  // Whether more is sent right after it: then the kernel need not make a packet of this alone.
  enum class Then { kNothing, kMore };
  // All of it, within `patience_ms`. ETIMEDOUT, or why the connection is broken.
  Status send(std::string_view bytes, int patience_ms, Then then = Then::kNothing);
  Status receive(char* to, size_t bytes, int patience_ms);
  // At least so many bytes, and what has come with them, up to `most`; how many.
  Result<size_t> receive_some(char* to, size_t least, size_t most, int patience_ms);
  // The same of what a slow link takes a while for: as long as some of it comes within `patience_ms`, all may
  // take kSlow times as long.
  static constexpr int kSlow = patience::kPeerRetryMs / patience::kPeerSilenceMs;
  Status receive_slowly(char* to, size_t bytes, int patience_ms);
  // Whether TLS has read more than it has given: a poll of the socket would not tell.
  bool has_more() const;
  // `bytes` of a file from `offset` on, by sendfile(2) where nothing is encrypted; slowly, as above. ENODATA:
  // the file is shorter.
  Status send_file(int file, uint64_t offset, size_t bytes, int patience_ms);

 private:
  enum class Wants { kRead, kWrite };
  Result<size_t> receive_until(char* to, size_t least, size_t most, int patience_ms, int times);
  Status wait(Wants what, int64_t until_ns);
  // What went wrong with a call that returned `result`, unless that passes.
  Status after(const char* what, int64_t result, Wants wants, int64_t until_ns);

  const int socket_;
  ssl_st* const tls_;
  Clock& clock_;
};

}  // namespace monarch
