// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/wire.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "runtime/base/os.h"

namespace monarch {
namespace {

constexpr size_t kEncrypted = 64 << 10;  // bytes of a file that go through memory at a time

int64_t end_of(Clock* clock, int patience_ms) { return clock->now_ns() + int64_t{patience_ms} * 1000000; }

// When something is to have moved, or all, which may take `times` as long.
class Until {
 public:
  Until(Clock* clock, int patience_ms, int times)
      : clock_(clock),
        patience_ms_(patience_ms),
        last_(end_of(clock, patience_ms * times)),
        next_(end_of(clock, patience_ms)) {}
  void moved() { next_ = std::min(last_, end_of(clock_, patience_ms_)); }
  int64_t ns() const { return next_; }

 private:
  Clock* const clock_;
  const int patience_ms_;
  const int64_t last_;
  int64_t next_;
};

// While it lives, the reader of a slow link is woken for a part, not for each packet. Errors cost only that.
class InParts {
 public:
  InParts(int socket, size_t bytes) : socket_(socket), bytes_(std::min(bytes, kPart)) {
    if (bytes_ > 1) wake_for(bytes_);
  }
  InParts(const InParts&) = delete;
  InParts& operator=(const InParts&) = delete;
  ~InParts() {
    if (bytes_ > 1) wake_for(1);
  }
  void left(size_t bytes) {
    if (bytes == 0 || bytes >= bytes_) return;
    bytes_ = bytes;
    wake_for(bytes);
  }

 private:
  static constexpr size_t kPart = 64 << 10;
  void wake_for(size_t bytes) const {
    const int value = static_cast<int>(bytes);
    ::setsockopt(socket_, SOL_SOCKET, SO_RCVLOWAT, &value, sizeof value);
  }
  const int socket_;
  size_t bytes_;
};

}  // namespace

Status Wire::wait(Wants what, int64_t until_ns) {
  if (clock_.now_ns() < until_ns &&
      clock_.poll_until(socket_, what == Wants::kRead ? POLLIN : POLLOUT, until_ns))
    return {};
  return Error{ETIMEDOUT, "the peer does not go on"};
}

Status Wire::after(const char* what, int64_t result, Wants wants, int64_t until_ns) {
  const int saved = errno;
  if (!tls_) {
    if (result == 0) return Error{ECONNRESET, "closed by the peer"};
    return saved == EAGAIN ? wait(wants, until_ns) : Status(errno_error(what, saved));
  }
  switch (::SSL_get_error(tls_, static_cast<int>(result))) {
    case SSL_ERROR_WANT_READ:
      return wait(Wants::kRead, until_ns);
    case SSL_ERROR_WANT_WRITE:
      return wait(Wants::kWrite, until_ns);
    default:
      ::ERR_clear_error();
      return Error{ECONNRESET, "closed by the peer"};
  }
}

Status Wire::send(std::string_view bytes, int patience_ms, Then then) {
  const int64_t until = end_of(&clock_, patience_ms);
  const int flags = MSG_NOSIGNAL | (then == Then::kMore ? MSG_MORE : 0);
  while (!bytes.empty()) {
    const int64_t n = tls_ ? ::SSL_write(tls_, bytes.data(), static_cast<int>(bytes.size()))
                           : ::send(socket_, bytes.data(), bytes.size(), flags);
    if (n > 0)
      bytes.remove_prefix(static_cast<size_t>(n));
    else
      MONARCH_TRY(after("send", n == 0 ? -1 : n, Wants::kWrite, until));
  }
  return {};
}

Status Wire::receive(char* to, size_t bytes, int patience_ms) {
  MONARCH_TRY(receive_until(to, bytes, bytes, patience_ms, 1));
  return {};
}

Result<size_t> Wire::receive_some(char* to, size_t least, size_t most, int patience_ms) {
  return receive_until(to, least, most, patience_ms, 1);
}

Status Wire::receive_slowly(char* to, size_t bytes, int patience_ms) {
  MONARCH_TRY(receive_until(to, bytes, bytes, patience_ms, kSlow));
  return {};
}

Result<size_t> Wire::receive_until(char* to, size_t least, size_t most, int patience_ms, int times) {
  Until until(&clock_, patience_ms, times);
  InParts parts(socket_, tls_ || times == 1 ? 0 : least);
  size_t got = 0;
  for (bool late = false; got < least;) {
    const size_t room = most - got;
    const int64_t n =
        tls_ ? ::SSL_read(tls_, to + got, static_cast<int>(room)) : ::recv(socket_, to + got, room, 0);
    if (n > 0) {
      got += static_cast<size_t>(n);
      if (got < least) parts.left(least - got);
      until.moved();
      late = false;
      continue;
    }
    Status waited = after("receive", n, Wants::kRead, until.ns());
    if (!waited.ok() && (late || waited.error().code != ETIMEDOUT)) return waited.error();
    late = !waited.ok();  // less than a part may be there
  }
  return got;
}

bool Wire::has_more() const { return tls_ && ::SSL_pending(tls_) > 0; }

Status Wire::send_file(int file, uint64_t offset, size_t bytes, int patience_ms) {
  Until until(&clock_, patience_ms, kSlow);
  if (tls_) {
    std::string part(std::min(bytes, kEncrypted), '\0');
    while (bytes > 0) {
      const ssize_t n =
          os::pread(file, part.data(), std::min(bytes, part.size()), static_cast<off_t>(offset));
      if (n <= 0) return errno_error("read the copy", n < 0 ? errno : ENODATA);
      const int64_t left_ms = (until.ns() - clock_.now_ns()) / 1000000;
      MONARCH_TRY(send(std::string_view(part).substr(0, static_cast<size_t>(n)), static_cast<int>(left_ms)));
      offset += static_cast<uint64_t>(n);
      bytes -= static_cast<size_t>(n);
      until.moved();
    }
    return {};
  }
  auto at = static_cast<off_t>(offset);
  while (bytes > 0) {
    const ssize_t n = os::sendfile(socket_, file, &at, bytes);
    if (n > 0) {
      bytes -= static_cast<size_t>(n);
      until.moved();
    } else if (n == 0) {
      return errno_error("read the copy", ENODATA);
    } else {
      MONARCH_TRY(after("send the copy", n, Wants::kWrite, until.ns()));
    }
  }
  return {};
}

}  // namespace monarch
