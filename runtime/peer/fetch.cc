// SPDX-License-Identifier: Apache-2.0
#include "runtime/peer/fetch.h"

#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>

#include "runtime/base/log.h"
#include "runtime/peer/socket.h"
#include "runtime/peer/wire.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace monarch {
namespace {

// For a handshake, an answer, and some of each piece; see Wire::receive_slowly().
constexpr int kPatienceMs = patience::kPeerSilenceMs;

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

// A get(), and the clock that it waits by: whoever waits for a node looks whether that is still there.
class Fetch::Run final : public Clock {
 public:
  Run(Fetch* fetch, NodeIndex node) : fetch_(fetch), node_(node) {
    const MutexLock hold(fetch_->lock_);
    at_ = fetch_->runs_.emplace(node, this);
  }
  ~Run() override {
    const MutexLock hold(fetch_->lock_);
    fetch_->runs_.erase(at_);
  }
  int64_t now_ns() override { return fetch_->clock_.now_ns(); }
  void wait_until(Condition* condition, MutexLock* hold, int64_t until_ns) override {
    fetch_->clock_.wait_until(condition, hold, until_ns);
  }
  void sleep_until(int64_t until_ns) override { fetch_->clock_.sleep_until(until_ns); }
  bool poll_until(int fd, short events, int64_t until_ns) override {
    constexpr int64_t kLookNs = patience::kPeerSoonMs * int64_t{1'000'000};
    bool has = false;
    for (bool waits = false; !has && !ended_; waits = true) {
      waits_ = waits;
      if (waits) fetch_->nodes_->look(node_);
      const int64_t look_ns = now_ns() + kLookNs;
      has = fetch_->clock_.poll_until(fd, events, std::min(until_ns, look_ns));
      if (until_ns <= look_ns) break;
    }
    waits_ = false;
    return has;
  }
  // Any thread.
  void end_if_it_waits() { ended_ = ended_ || waits_; }
  bool ended() const { return ended_; }

 private:
  Fetch* const fetch_;
  const NodeIndex node_;
  std::multimap<NodeIndex, Run*>::iterator at_;
  std::atomic<bool> waits_{false}, ended_{false};
};

uint64_t check_of_piece(const char* bytes, size_t n) { return XXH3_64bits(bytes, n); }

uint64_t check_of(const std::vector<uint64_t>& pieces) {
  return XXH3_64bits(pieces.data(), pieces.size() * sizeof pieces[0]);
}

Result<Fetch::Connection> Fetch::dial(NodeIndex node, Run* run) {
  const uint16_t port = nodes_->port(node);
  if (port == 0) return Error{ENOTCONN, "nobody has met it yet"};
  const std::string& address = options_.peers.nodes.at(node).host;
  const std::string data = nodes_->data_address(node);
  bool elsewhere = data.empty() || data == address;
  if (!elsewhere) {
    const MutexLock hold(lock_);
    const auto rests = elsewhere_.find(node);
    elsewhere = rests != elsewhere_.end() && clock_.now_ns() < rests->second;
  }
  if (elsewhere) return dial_at(node, address, port, run);
  Result<Connection> there = dial_at(node, data, port, run);
  if (there.ok()) return there;
  Result<Connection> made = dial_at(node, address, port, run);
  if (!made.ok()) return made;  // the node is away, not its network
  bool first = false;
  {
    const MutexLock hold(lock_);
    const int64_t until = clock_.now_ns() + patience::kPeerBeginMs * int64_t{1000000};
    first = elsewhere_.insert_or_assign(node, until).second;
  }
  if (first) spdlog::warn("node {}: {}: {}; data goes by {}", node, data, there.error().text, address);
  return made;
}

Result<Fetch::Connection> Fetch::dial_at(NodeIndex node, const std::string& host, uint16_t port,
                                         Run* run) const {
  const ControlOptions& peers = options_.peers;
  Result<Fd> socket = begin_to_connect(host, port);
  if (!socket.ok()) return socket.error();
  const int64_t until = clock_.now_ns() + patience::kPeerConnectMs * int64_t{1000000};
  if (!clock_.poll_until(socket->get(), POLLOUT, until)) return Error{EHOSTUNREACH, "it does not answer"};
  MONARCH_TRY(end_connecting(socket->get()));
  Hello hello = peers.hello;
  hello.lane = Lane::kData;
  Handshake handshake(*peers.tls, socket.take(), Handshake::Side::kDials, hello, peers.after,
                      Handshake::Dialled{node, port});
  MONARCH_TRY(handshake.wait(kPatienceMs, *run));
  return Connection{node, handshake.take_socket(), handshake.take_tls()};
}

std::optional<Fetch::Connection> Fetch::take_idle(NodeIndex node) {
  const MutexLock hold(lock_);
  const auto at =
      std::find_if(idle_.rbegin(), idle_.rend(), [node](const Connection& c) { return c.node == node; });
  if (at == idle_.rend()) return {};
  Connection taken = std::move(*at);
  idle_.erase(std::prev(at.base()));
  return taken;
}

void Fetch::keep(Connection connection) {
  const MutexLock hold(lock_);
  idle_.push_back(std::move(connection));
  if (idle_.size() > options_.most_idle) idle_.erase(idle_.begin());
}

void Fetch::forget(NodeIndex node) {
  const MutexLock hold(lock_);
  std::erase_if(idle_, [node](const Connection& c) { return c.node == node; });
  for (auto [run, end] = runs_.equal_range(node); run != end; ++run) run->second->end_if_it_waits();
}

Fetched Fetch::get(NodeIndex from, const Get& get, char* buffer, const Receiver& receiver) {
  Run run(this, from);
  // A node that is known to be gone is not late.
  const auto late = [&run] { return run.ended() ? Fetched::kBroken : Fetched::kLate; };
  for (;;) {
    std::optional<Connection> connection = take_idle(from);
    const bool kept = connection.has_value();
    if (!kept) {
      Result<Connection> made = dial(from, &run);
      if (!made.ok()) return made.error().code == ETIMEDOUT ? late() : Fetched::kUnreachable;
      connection = made.take();
    }
    bool answered = false;
    const Fetched fetched = get_on(&*connection, get, buffer, receiver, &run, &answered);
    // One that was kept may have ended meanwhile: that says nothing of the node.
    if (kept && fetched == Fetched::kBroken && !answered) continue;
    if (fetched <= Fetched::kNotYet) keep(std::move(*connection));
    return fetched == Fetched::kLate ? late() : fetched;
  }
}

Fetched Fetch::get_on(Connection* connection, const Get& get, char* buffer, const Receiver& receiver,
                      Run* run, bool* answered) const {
  Wire wire(connection->socket.get(), connection->tls.get(), *run);
  char bytes[MessageHeader::kBytes];
  Status done = wire.send(encode(get), kPatienceMs);
  Answer answer(&wire);
  if (done.ok()) done = answer.receive(bytes, sizeof bytes, kPatienceMs, of_one_piece() - sizeof bytes);
  if (!done.ok()) return meaning(done.error());
  *answered = true;
  const std::optional<MessageHeader> header = decode_header({bytes, sizeof bytes});
  if (!header || header->type != MessageType::kGot) return Fetched::kBroken;
  std::string body(header->body_bytes, '\0');
  if (done = answer.receive(body.data(), body.size(), kPatienceMs); !done.ok()) return meaning(done.error());
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
    if (done = answer.receive(head, sizeof head, kPatienceMs); !done.ok()) return meaning(done.error());
    const std::optional<PieceHeader> piece = decode_piece({head, sizeof head});
    if (piece && piece->bytes == 0)
      return ends(get.follow != Follow::kNo ? Fetched::kNotYet : Fetched::kGone);
    if (!piece || piece->bytes != wanted) return Fetched::kBroken;
    if (done = wire.receive_slowly(buffer, wanted, kPatienceMs); !done.ok()) return meaning(done.error());
    if (check_of_piece(buffer, wanted) != piece->check) return Fetched::kWrong;
    if (!receiver.piece(offset, buffer, wanted, piece->check)) return Fetched::kRefused;
  }
  return ends(Fetched::kOk);
}

}  // namespace monarch
