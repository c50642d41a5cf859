// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/fetch.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>

#include "runtime/base/log.h"
#include "runtime/base/os.h"
#include "runtime/peer/socket.h"
#include "runtime/peer/wire.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace monarch {
namespace {

Fetched meaning(const Error& error) { return error.code == ETIMEDOUT ? Fetched::kLate : Fetched::kBroken; }

// An answer's small parts are taken at once: a small file in two calls instead of four. Nothing of the file
// is among them, since a copy from one page to another is quicker than from parts of two.
class Answer {
 public:
  explicit Answer(Wire* wire) : wire_(wire) {}
  // `more`: bytes of what follows that may be taken, too.
  Status receive(char* to, size_t bytes, int patience_ms, size_t more = 0) {
    if (bytes + more > sizeof ahead_) return Error{EMSGSIZE, "more than an answer has"};
    if (const size_t there = got_ - used_; there < bytes) {
      std::memmove(ahead_, ahead_ + used_, there);
      used_ = 0;
      got_ = there;
      Result<size_t> came =
          wire_->receive_some(ahead_ + there, bytes - there, bytes - there + more, patience_ms);
      if (!came.ok()) return came.error();
      got_ += *came;
    }
    std::memcpy(to, ahead_ + used_, bytes);
    used_ += bytes;
    return {};
  }
  // Whether more has come than was taken.
  bool has_more() const { return used_ < got_; }

 private:
  Wire* const wire_;
  size_t used_ = 0, got_ = 0;
  char ahead_[256] = {};
};

// The small parts of an answer with one piece.
size_t of_one_piece() {
  static const size_t bytes = encode(Got()).size() + PieceHeader::kBytes;
  return bytes;
}

}  // namespace

uint64_t check_of_piece(const char* bytes, size_t n) { return XXH3_64bits(bytes, n); }

uint64_t check_of(const std::vector<uint64_t>& pieces) {
  return XXH3_64bits(pieces.data(), pieces.size() * sizeof pieces[0]);
}

Result<Fetch::Connection> Fetch::dial(NodeIndex node) {
  const uint16_t port = options_.port(node);
  if (port == 0) return Error{ENOTCONN, "nobody has met it yet"};
  const std::string& address = options_.peers.nodes.at(node).host;
  const std::string data = options_.data_address ? options_.data_address(node) : "";
  bool elsewhere = data.empty() || data == address;
  if (!elsewhere) {
    const MutexLock hold(lock_);
    const auto rests = elsewhere_.find(node);
    elsewhere = rests != elsewhere_.end() && clock_.now_ns() < rests->second;
  }
  if (elsewhere) return dial_at(node, address, port);
  Result<Connection> there = dial_at(node, data, port);
  if (there.ok()) return there;
  Result<Connection> made = dial_at(node, address, port);
  if (!made.ok()) return made;  // the node is away, not its network
  bool first = false;
  {
    const MutexLock hold(lock_);
    const int64_t until = clock_.now_ns() + int64_t{options_.elsewhere_ms} * 1000000;
    first = elsewhere_.insert_or_assign(node, until).second;
  }
  if (first) spdlog::warn("node {}: {}: {}; data goes by {}", node, data, there.error().text, address);
  return made;
}

Result<Fetch::Connection> Fetch::dial_at(NodeIndex node, const std::string& host, uint16_t port) const {
  const ControlOptions& peers = options_.peers;
  Result<Fd> socket = begin_to_connect(host, port);
  if (!socket.ok()) return socket.error();
  const int64_t until = clock_.now_ns() + int64_t{limit_ms(peers.connect_ms)} * 1000000;
  if (!clock_.poll_until(socket->get(), POLLOUT, until)) return Error{ETIMEDOUT, "it does not answer"};
  MONARCH_TRY(end_connecting(socket->get()));
  Hello hello = peers.hello;
  hello.lane = Lane::kData;
  Handshake handshake(*peers.tls, socket.take(), Handshake::Side::kDials, hello, peers.after,
                      Handshake::Dialled{node, port});
  MONARCH_TRY(handshake.wait(limit_ms(peers.handshake_ms), clock_));
  return Connection{node, handshake.take_socket(), handshake.take_tls()};
}

std::optional<Fetch::Connection> Fetch::take_idle(NodeIndex node) {
  const MutexLock hold(lock_);
  auto at = idle_with_.upper_bound(node);
  if (at == idle_with_.begin() || (--at)->first != node) return {};
  const auto idle = at->second;
  Connection taken = std::move(*idle);
  idle_with_.erase(at);
  idle_.erase(idle);
  return taken;
}

void Fetch::keep(Connection connection) {
  const NodeIndex node = connection.node;
  std::list<Connection> one;
  one.push_back(std::move(connection));
  const MutexLock hold(lock_);
  idle_with_.emplace(node, one.begin());
  idle_.splice(idle_.begin(), one);
  if (idle_.size() > options_.most_idle) hang_up_on_idlest();
}

void Fetch::hang_up_on_idlest() {
  const auto idlest = std::prev(idle_.end());
  auto at = idle_with_.lower_bound(idlest->node);
  while (at->second != idlest) ++at;
  idle_with_.erase(at);
  idle_.erase(idlest);
}

void Fetch::forget(NodeIndex node) {
  const MutexLock hold(lock_);
  const auto [first, last] = idle_with_.equal_range(node);
  for (auto at = first; at != last; ++at) idle_.erase(at->second);
  idle_with_.erase(first, last);
}

Fetched Fetch::get(NodeIndex from, const Get& get, char* buffer, const Receiver& receiver) {
  for (;;) {
    std::optional<Connection> connection = take_idle(from);
    const bool kept = connection.has_value();
    if (!kept) {
      Result<Connection> made = dial(from);
      if (!made.ok()) return Fetched::kUnreachable;
      connection = made.take();
    }
    bool answered = false;
    const Fetched fetched = get_on(&*connection, get, buffer, receiver, &answered);
    // One that was kept may have ended meanwhile: that says nothing of the node.
    if (kept && fetched == Fetched::kBroken && !answered) continue;
    if (fetched <= Fetched::kNotYet) keep(std::move(*connection));
    return fetched;
  }
}

Fetched Fetch::get_on(Connection* connection, const Get& get, char* buffer, const Receiver& receiver,
                      bool* answered) const {
  Wire wire(connection->socket.get(), connection->tls.get(), clock_);
  char bytes[MessageHeader::kBytes];
  const int answer_ms = limit_ms(options_.answer_ms);
  int64_t began_ns = clock_.now_ns();
  const auto took = [&] {
    if (options_.slowness) options_.slowness->took(clock_.now_ns() - began_ns, options_.answer_ms);
  };
  Status done = wire.send(encode(get), answer_ms);
  Answer answer(&wire);
  if (done.ok()) done = answer.receive(bytes, sizeof bytes, answer_ms, of_one_piece() - sizeof bytes);
  if (!done.ok()) return meaning(done.error());
  took();
  *answered = true;
  const std::optional<MessageHeader> header = decode_header({bytes, sizeof bytes});
  if (!header || header->type != MessageType::kGot) return Fetched::kBroken;
  std::string body(header->body_bytes, '\0');
  if (done = answer.receive(body.data(), body.size(), answer_ms); !done.ok()) return meaning(done.error());
  const std::optional<Got> got = decode<Got>(body);
  if (!got) return Fetched::kBroken;
  // The connection is kept for the next question; what else came is seen now, or takes the place of that
  // answer.
  const auto ends = [&](Fetched fetched) { return answer.has_more() ? Fetched::kBroken : fetched; };
  switch (got->result) {
    case GetResult::kGone:
      return ends(Fetched::kGone);
    case GetResult::kChanged:
      return ends(Fetched::kChanged);
    case GetResult::kBusy:
      return ends(Fetched::kBusy);
    case GetResult::kOk:
      break;
  }
  const std::optional<uint64_t> end = end_of(get, got->identity.bytes);
  if (!end) return Fetched::kBroken;
  if (!receiver.begin(got->identity)) return Fetched::kRefused;
  for (uint64_t offset = get.offset; offset < *end; offset += kPieceBytes) {
    const uint64_t wanted = std::min(kPieceBytes, *end - offset);
    char head[PieceHeader::kBytes];
    began_ns = clock_.now_ns();
    if (done = answer.receive(head, sizeof head, answer_ms); !done.ok()) return meaning(done.error());
    const std::optional<PieceHeader> piece = decode_piece({head, sizeof head});
    if (piece && piece->bytes == 0)
      return ends(get.follow != Follow::kNo ? Fetched::kNotYet : Fetched::kGone);
    if (!piece || piece->bytes != wanted) return Fetched::kBroken;
    if (done = wire.receive_slowly(buffer, wanted, answer_ms); !done.ok()) return meaning(done.error());
    took();
    if (check_of_piece(buffer, wanted) != piece->check) return Fetched::kWrong;
    if (!receiver.piece(offset, buffer, wanted, piece->check)) return Fetched::kRefused;
  }
  return ends(Fetched::kOk);
}

}  // namespace monarch
