// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/handshake.h"

#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <cstring>

namespace monarch {
namespace {

constexpr unsigned char kSessions[] = {'m', 'o', 'n', 'a', 'r', 'c', 'h'};
constexpr unsigned char kCipher[] = {0x13, 0x01};  // TLS_AES_128_GCM_SHA256
constexpr char kCipherName[] = "TLS_AES_128_GCM_SHA256";
constexpr int kSecretAt = 0;           // SSL_CTX_set_app_data(3)'s
constexpr size_t kMostIdentity = 128;  // PSK_MAX_IDENTITY_LEN of OpenSSL

std::string reason() {
  char text[256];
  ::ERR_error_string_n(::ERR_get_error(), text, sizeof text);
  ::ERR_clear_error();
  return text;
}

SSL_SESSION* session_of(SSL* tls, const JobKey& key) {
  SSL_SESSION* session = ::SSL_SESSION_new();
  const SSL_CIPHER* cipher = ::SSL_CIPHER_find(tls, kCipher);
  if (session && cipher && ::SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
      ::SSL_SESSION_set_cipher(session, cipher) == 1 &&
      ::SSL_SESSION_set1_id_context(session, kSessions, sizeof kSessions) == 1 &&
      ::SSL_SESSION_set_protocol_version(session, TLS1_3_VERSION) == 1)
    return session;
  ::SSL_SESSION_free(session);
  return nullptr;
}

std::atomic<SSL_CTX*> prepared{nullptr};

}  // namespace

void FreeTls::operator()(ssl_st* tls) const { ::SSL_free(tls); }
void FreeTls::operator()(ssl_ctx_st* context) const { ::SSL_CTX_free(context); }

void PeerTls::prepare() {
  ::SSL_CTX_free(prepared.exchange(::SSL_CTX_new(::TLS_method())));
  ::ERR_clear_error();
}

Result<PeerTls> PeerTls::create(std::string identity, const JobKey& key) {
  if (identity.empty() || identity.size() > kMostIdentity)
    return bad_input("the job's name for its peers is empty or too long: " + identity);
  PeerTls made;
  made.secret_ = std::make_unique<Secret>(Secret{std::move(identity), key});
  made.context_.reset(prepared.exchange(nullptr));
  if (!made.context_) made.context_.reset(::SSL_CTX_new(::TLS_method()));
  SSL_CTX* context = made.context_.get();
  if (!context || ::SSL_CTX_set_min_proto_version(context, TLS1_3_VERSION) != 1 ||
      ::SSL_CTX_set_ciphersuites(context, kCipherName) != 1 || ::SSL_CTX_set_num_tickets(context, 0) != 1)
    return Error{EPROTO, "prepare TLS: " + reason()};
  // A node keeps connections with all others, and most of them rest.
  ::SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                  SSL_MODE_RELEASE_BUFFERS);
  ::SSL_CTX_set_ex_data(context, kSecretAt, made.secret_.get());
  // No certificate is trusted: a peer that does not have the key has no other way.
  ::SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (::SSL_CTX_set_session_id_context(context, kSessions, sizeof kSessions) != 1)
    return Error{EPROTO, "prepare TLS: " + reason()};
  ::SSL_CTX_set_psk_use_session_callback(context, [](SSL* tls, const EVP_MD*, const unsigned char** id,
                                                     size_t* bytes, SSL_SESSION** session) {
    const auto* secret = static_cast<const Secret*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(tls), kSecretAt));
    *session = session_of(tls, secret->key);
    *id = reinterpret_cast<const unsigned char*>(secret->identity.data());
    *bytes = secret->identity.size();
    return *session ? 1 : 0;
  });
  ::SSL_CTX_set_psk_find_session_callback(context, [](SSL* tls, const unsigned char* id, size_t bytes,
                                                      SSL_SESSION** session) {
    const auto* secret = static_cast<const Secret*>(::SSL_CTX_get_ex_data(::SSL_get_SSL_CTX(tls), kSecretAt));
    const bool known =
        secret->identity.size() == bytes && std::memcmp(secret->identity.data(), id, bytes) == 0;
    *session = known ? session_of(tls, secret->key) : nullptr;
    return 1;
  });
  return made;
}

Handshake::Handshake(const PeerTls& tls, Fd socket, Side side, const Hello& own, After after,
                     std::optional<Dialled> dialled)
    : socket_(std::move(socket)),
      tls_(::SSL_new(tls.context_.get())),
      after_(after),
      dialled_(dialled),
      own_(encode(own)) {
  if (::fcntl(socket_.get(), F_SETFL, ::fcntl(socket_.get(), F_GETFL) | O_NONBLOCK) != 0) {
    const int error = errno;
    fail(std::string("prepare a connection: ") + std::strerror(error), error);
    return;
  }
  if (!tls_ || ::SSL_set_fd(tls_.get(), socket_.get()) != 1) {
    fail("prepare a connection: " + reason(), EPROTO);
    return;
  }
  if (side == Side::kDials)
    ::SSL_set_connect_state(tls_.get());
  else
    ::SSL_set_accept_state(tls_.get());
}

Handshake::Step Handshake::fail(const std::string& what, int code) {
  stage_ = Stage::kFailed;
  error_ = Error{code, what};
  tls_.reset();
  socket_.reset();  // the peer does not wait for more
  return Step::kFailed;
}

// What OpenSSL's call said; `next` comes if it was done.
Handshake::Step Handshake::advance(int result, Stage next) {
  if (result > 0) {
    stage_ = next;
    return Step::kDone;
  }
  const int saved = errno;
  switch (::SSL_get_error(tls_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      return Step::kWantsRead;
    case SSL_ERROR_WANT_WRITE:
      return Step::kWantsWrite;
    case SSL_ERROR_SYSCALL:
      return saved != 0 ? fail(std::strerror(saved), saved) : fail("closed by the peer", ECONNRESET);
    case SSL_ERROR_ZERO_RETURN:
      return fail("closed by the peer", ECONNRESET);
    default:
      return fail(reason(), EACCES);
  }
}

// Whether the peer's Hello is whole; an error, if it is none or another one's, is in error_.
bool Handshake::heard() {
  if (got_.size() < MessageHeader::kBytes) return false;
  const std::optional<MessageHeader> header = decode_header(got_);
  if (!header || header->type != MessageType::kHello) {
    fail("the peer does not speak this version", EPROTO);
    return false;
  }
  if (got_.size() < MessageHeader::kBytes + header->body_bytes) return false;
  const std::optional<Hello> hello = decode<Hello>(std::string_view(got_).substr(MessageHeader::kBytes));
  if (!hello || hello->version != kPeerVersion) {
    fail("the peer does not speak this version", EPROTO);
    return false;
  }
  if (dialled_ && hello->node != dialled_->node) {
    fail("node " + std::to_string(hello->node) + " is there", ECONNREFUSED);
    return false;
  }
  if (dialled_ && hello->port != dialled_->port) {
    fail("its agent is at port " + std::to_string(hello->port), ECONNREFUSED);
    return false;
  }
  theirs_ = *hello;
  return true;
}

Handshake::Step Handshake::step() {
  ::ERR_clear_error();
  for (;;) {
    Step now = Step::kDone;
    errno = 0;
    switch (stage_) {
      case Stage::kProve:
        now = advance(::SSL_do_handshake(tls_.get()), Stage::kSay);
        break;
      case Stage::kSay:  // one record: it is written as a whole
        now = advance(::SSL_write(tls_.get(), own_.data(), static_cast<int>(own_.size())), Stage::kHear);
        break;
      case Stage::kHear: {
        char bytes[256];
        const int n = ::SSL_read(tls_.get(), bytes, sizeof bytes);
        now = advance(n, Stage::kHear);
        if (n > 0) got_.append(bytes, static_cast<size_t>(n));
        if (heard()) stage_ = after_ == After::kClear ? Stage::kClose : Stage::kDone;
        break;
      }
      case Stage::kClose: {
        const int sent = ::SSL_shutdown(tls_.get());
        now = advance(sent == 0 ? 1 : sent, sent == 1 ? Stage::kDone : Stage::kWaitForClose);
        break;
      }
      case Stage::kWaitForClose:
        now = advance(::SSL_shutdown(tls_.get()), Stage::kDone);
        break;
      case Stage::kDone:
        if (after_ == After::kClear) tls_.reset();
        return Step::kDone;
      case Stage::kFailed:
        return Step::kFailed;
    }
    if (now != Step::kDone) return now;
  }
}

Status Handshake::wait(int patience_ms, Clock& clock) {
  const int64_t until = clock.now_ns() + int64_t{patience_ms} * 1000000;
  for (;;) {
    const Step now = step();
    if (now == Step::kDone) return {};
    if (now == Step::kFailed) return error_;
    const short events = now == Step::kWantsRead ? POLLIN : POLLOUT;
    if (clock.now_ns() >= until || !clock.poll_until(socket_.get(), events, until)) {
      fail("no answer within " + std::to_string(patience_ms) + " ms", ETIMEDOUT);
      return error_;
    }
  }
}

}  // namespace monarch
