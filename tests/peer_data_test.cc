// SPDX-License-Identifier: Apache-2.0
// Files that go from one node to another.

#include <future>
#include <map>

#include "runtime/peer/socket.h"
#include "runtime/peer/wire.h"
#include "tests/faulty_os.h"
#include "tests/gate.h"
#include "tests/manual_clock.h"
#include "tests/peer_fixture.h"

namespace monarch {
namespace {

// What a node has of a file: its first pieces, or all.
struct Held {
  std::string path;
  FileIdentity identity;
  std::vector<uint64_t> checks;
  std::mutex lock;
  std::condition_variable grew;
  size_t there = 0;
  bool ends = false;  // what is not there does not come
  void end() {
    const std::lock_guard hold(lock);
    ends = true;
    grew.notify_all();
  }
  void set(size_t pieces) {
    const std::lock_guard hold(lock);
    there = pieces;
    grew.notify_all();
  }
  std::unique_ptr<ServedFile> open() {
    return std::make_unique<SentFile>(path, identity, [this](uint64_t piece) -> std::optional<uint64_t> {
      std::unique_lock hold(lock);
      grew.wait(hold, [&] { return piece < there || ends; });
      if (piece >= there) return {};
      return checks[piece];
    });
  }
};

// Where the node that sends is, as a test says it.
struct OneNode final : Whereabouts {
  uint16_t port(NodeIndex) override { return met; }
  std::string data_address(NodeIndex) override { return data; }
  void look(NodeIndex) override { ++looks; }
  std::atomic<uint16_t> met{0};
  std::string data;
  std::atomic<int> looks{0};
};

class PeerDataTest : public PeerTest,
                     public ::testing::WithParamInterface<Handshake::After>,
                     public ControlHandler {
 protected:
  void SetUp() override {
    there.met = nodes[1].ports[0];
    start();
  }

  void start() {
    ServeOptions serves;
    serves.most_connections = most_served;
    serves.open = [this](const Get& get, GetResult* why) -> std::unique_ptr<ServedFile> {
      const auto at = files.find(get.path);
      if (at != files.end()) return at->second.open();
      *why = GetResult::kGone;
      return nullptr;
    };
    serve = std::make_unique<Serve>(std::move(serves), clock);
    ASSERT_TRUE(serve->start().ok());
    control = std::make_unique<Control>(options(1), this, clock);
    ASSERT_TRUE(control->start().ok());
  }
  void data(NodeIndex node, Fd socket, Tls session) override {
    EXPECT_EQ(node, 0u);
    ++connections;
    serve->add(std::move(socket), std::move(session));
  }
  void TearDown() override {
    control.reset();
    for (auto& [name, held] : files) held.end();
    serve.reset();
    for (auto& [name, held] : files) held.ends = false;
  }
  ControlOptions options(NodeIndex own) const {
    ControlOptions o;
    o.hello.node = own;
    o.nodes = nodes;
    o.tls = &tls;
    o.after = GetParam();
    return o;
  }
  Held& hold(const std::string& name, const std::string& content) {
    Held& held = files[name];
    held.path = scratch.file(name, content);
    held.checks = checks_of(content);
    held.identity = {content.size(), 1, 2, 3, check_of(held.checks)};
    held.there = held.checks.size();
    return held;
  }
  // What comes when the file is asked for.
  struct Came {
    Fetched how = Fetched::kOk;
    std::string bytes;
    FileIdentity identity;
    std::vector<uint64_t> checks;
  };
  Came get(const std::string& name, uint64_t offset = 0, uint64_t most = 0) {
    return get_by(&fetch, name, offset, most);
  }
  Came get_by(Fetch* by, const std::string& name, uint64_t offset = 0, uint64_t most = 0) {
    Came came;
    std::vector<char> buffer(kPieceBytes);
    Get wanted;
    wanted.path = name;
    wanted.follow = follow;
    wanted.purpose = purpose;
    wanted.offset = offset;
    wanted.bytes = most;
    came.how = by->get(1, wanted, buffer.data(),
                       {[&](const FileIdentity& identity) {
                          came.identity = identity;
                          return identity.bytes <= most_wanted;
                        },
                        [&](uint64_t at, const char* bytes, size_t n, uint64_t check) {
                          EXPECT_EQ(at, offset + came.bytes.size());
                          came.bytes.append(bytes, n);
                          ++came_of_it;
                          came.checks.push_back(check);
                          return came.bytes.size() <= most_kept;
                        }});
    return came;
  }
  // By which call a copy is read to be sent.
  static Call reads_by() {
    return GetParam() == Handshake::After::kEncrypted ? Call::kPread : Call::kSendfile;
  }
  // Gets the file in a thread of its own, by a connection of its own; join_gets() says how that ended.
  void get_later(const std::string& name) {
    gets.push_back(std::async(std::launch::async, [this, name] {
      Fetch one{fetches(1), &there, clock};
      const Fetched how = get_by(&one, name).how;
      busy += how == Fetched::kBusy;
      return how;
    }));
  }
  int join_gets() {
    int ok = 0;
    for (auto& one : gets) ok += one.get() == Fetched::kOk;
    return ok;
  }
  FetchOptions fetches(size_t most_idle) { return {.peers = options(0), .most_idle = most_idle}; }

  ManualClock clock;  // which stands still unless a test moves it
  const Scratch scratch;
  const PeerTls tls = make_tls();
  const std::vector<PeerAddress> nodes = nodes_here(2);
  std::map<std::string, Held> files;
  uint64_t most_wanted = UINT64_MAX, most_kept = UINT64_MAX;
  size_t most_served = 256;
  Follow follow = Follow::kNo;
  std::atomic<Purpose> purpose{Purpose::kDemand};
  std::atomic<int> connections{0};
  std::atomic<size_t> came_of_it{0};  // pieces, in all
  std::atomic<int> busy{0};           // how many of `gets` were sent away
  std::vector<std::future<Fetched>> gets;
  OneNode there;
  Fetch fetch{fetches(16), &there, clock};
  std::unique_ptr<Serve> serve;
  std::unique_ptr<Control> control;
};

TEST_P(PeerDataTest, FilesOfAnySizeArriveAsTheyAre) {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{4095}, kMiB - 1, kMiB, kMiB + 1, 5 * kMiB + 17}) {
    const std::string content = noise(bytes, bytes), name = "f" + std::to_string(bytes);
    const Held& held = hold(name, content);
    const Came came = get(name);
    EXPECT_EQ(came.how, Fetched::kOk);
    EXPECT_TRUE(came.bytes == content) << bytes;
    EXPECT_EQ(came.identity, held.identity);
    EXPECT_EQ(came.checks, held.checks);
    EXPECT_EQ(check_of(came.checks), held.identity.check);
  }
  EXPECT_EQ(connections, 1) << "one is enough";
  EXPECT_EQ(serve->serving(), 0u);
}

TEST_P(PeerDataTest, FromAPieceOn) {
  const std::string content = noise(3 * kMiB + 5, 1);
  hold("f", content);
  EXPECT_TRUE(get("f", 2 * kMiB).bytes == content.substr(2 * kMiB));
  EXPECT_TRUE(get("f", kMiB, kMiB).bytes == content.substr(kMiB, kMiB));
  EXPECT_TRUE(get("f", 2 * kMiB, 8 * kMiB).bytes == content.substr(2 * kMiB)) << "to the end";
  EXPECT_TRUE(get("f", kMiB, UINT64_MAX - kMiB + 1).bytes == content.substr(kMiB)) << "no sum goes over";
  EXPECT_EQ(get("f", 1).how, Fetched::kGone) << "in the middle of one";
  EXPECT_EQ(get("f", 0, 1).how, Fetched::kGone);
  EXPECT_EQ(get("f", 4 * kMiB).how, Fetched::kGone) << "behind the end";
}

TEST_P(PeerDataTest, ACopyThatIsCutOrCannotBeReadIsNoEnd) {
  for (const bool is_cut : {false, true}) {
    Held& held = hold("f", noise(3 * kMiB, 1));
    const Intercept broken(reads_by(), [&](Arguments& a) {
      return !is_cut && a.offset >= static_cast<off_t>(2 * kMiB) ? EIO : 0;
    });
    if (is_cut) {
      ASSERT_EQ(::truncate(held.path.c_str(), 2 * kMiB + 5), 0);
    }
    const Came came = get("f");
    EXPECT_EQ(came.how, Fetched::kBroken);
    EXPECT_EQ(came.bytes.size(), 2 * kMiB);
  }
}

TEST_P(PeerDataTest, AReaderThatStopsIsLeft) {
  Held& held = hold("f", noise(3 * kMiB, 1));
  held.set(2);
  held.end();
  const Came came = get("f");
  EXPECT_EQ(came.how, Fetched::kGone);
  EXPECT_EQ(came.bytes.size(), 2 * kMiB);
  follow = Follow::kYes;
  EXPECT_EQ(get("f").how, Fetched::kNotYet) << "the rest may come later";
  held.set(3);
  EXPECT_EQ(get("f").how, Fetched::kOk);
  EXPECT_EQ(connections, 1) << "the connection is as good as before";
}

TEST_P(PeerDataTest, WhatIsNotWantedIsNotSentForLong) {
  hold("f", noise(3 * kMiB, 1));
  most_wanted = 100;
  EXPECT_EQ(get("f").how, Fetched::kRefused);
  most_wanted = UINT64_MAX;
  most_kept = kMiB;
  const Came came = get("f");
  EXPECT_EQ(came.how, Fetched::kRefused);
  EXPECT_EQ(came.bytes.size(), 2 * kMiB);
  most_kept = UINT64_MAX;
  EXPECT_EQ(get("f").how, Fetched::kOk) << "what was under way is not taken for the answer";
}

TEST_P(PeerDataTest, TheThirdOneIsSentAway) {
  hold("large", noise(2 * kMiB, 1)).set(1);
  hold("small", noise(100, 1)).set(0);
  for (int i = 0; i < 3; ++i) get_later("large");
  EXPECT_TRUE(eventually([&] { return busy == 1 && serve->serving() == 2; }));
  for (int i = 0; i < 2; ++i) get_later("small");
  EXPECT_TRUE(eventually([&] { return serve->serving() == 4; })) << "another file is another matter";
  files["large"].set(2);
  files["small"].set(1);
  EXPECT_EQ(join_gets(), 4);
  EXPECT_EQ(serve->serving(), 0u);
}

// Slow prefetches have all the places that they may have: what a task waits for is sent at once, also of a
// file that is among them.
TEST_P(PeerDataTest, WhatATaskWaitsForDoesNotWaitBehindPrefetch) {
  constexpr int kAsk = 20, kMost = 12, kForDemand = 4;
  for (int i = 0; i < kAsk; ++i) hold("f" + std::to_string(i), noise(2 * kMiB, 1)).set(1);
  hold("small", noise(100, 1));
  purpose = Purpose::kPrefetch;
  for (int i = 0; i < kMost; ++i) get_later("f" + std::to_string(i / 2));  // two of each
  EXPECT_TRUE(eventually([&] { return serve->serving() == kMost; }));
  for (int i = kMost; i < kAsk; ++i) get_later("f" + std::to_string(i));
  EXPECT_TRUE(eventually([&] { return busy == kAsk - kMost; }));
  EXPECT_EQ(serve->serving(), kMost);
  purpose = Purpose::kDemand;
  EXPECT_EQ(get("small").how, Fetched::kOk);
  EXPECT_EQ(get("f0", 0, kMiB).how, Fetched::kOk);
  for (int i = 0; i < kForDemand; ++i) get_later("f" + std::to_string(kMost + i));
  EXPECT_TRUE(eventually([&] { return serve->serving() == kMost + kForDemand; }));
  EXPECT_EQ(get("small").how, Fetched::kBusy) << "all that there are";
  for (auto& [name, held] : files) held.set(2);
  EXPECT_EQ(join_gets(), kMost + kForDemand);
}

TEST_P(PeerDataTest, WhoIsGoneIsNotReachedUntilItComesAnew) {
  hold("f", "content");
  EXPECT_EQ(get("f").how, Fetched::kOk);
  TearDown();
  EXPECT_EQ(get("f").how, Fetched::kUnreachable);
  start();
  EXPECT_EQ(get("f").how, Fetched::kOk);
  EXPECT_EQ(connections, 2);
  TearDown();
  start();
  EXPECT_EQ(get("f").how, Fetched::kOk) << "by a new connection";
  there.met = 0;
  fetch.forget(1);
  EXPECT_EQ(get("f").how, Fetched::kUnreachable) << "it was not met";
}

TEST_P(PeerDataTest, WhoHangsIsNotWaitedForLong) {
  hold("f", noise(2 * kMiB, 1)).set(1);
  auto came = std::async(std::launch::async, [&] { return get("f"); });
  EXPECT_TRUE(eventually([&] { return came_of_it == 1; }) && clock.await_waiting(1));
  clock.advance_ms(patience::kPeerSilenceMs - 1);
  EXPECT_TRUE(eventually([&] { return there.looks == 1; }) && clock.await_waiting(1));
  clock.advance_ms(1);
  const Came half = came.get();
  EXPECT_EQ(half.how, Fetched::kLate);
  EXPECT_EQ(half.bytes.size(), kMiB);
}

TEST_P(PeerDataTest, WhoWaitsForANodeThatIsGoneIsEnded) {
  hold("f", noise(2 * kMiB, 1)).set(1);
  for (const bool waits : {false, true}) {
    came_of_it = 0;
    auto came = std::async(std::launch::async, [&] { return get("f"); });
    EXPECT_TRUE(eventually([&] { return came_of_it == 1; }) && clock.await_waiting(1));
    if (waits) {
      clock.advance_ms(patience::kPeerSoonMs);
      EXPECT_TRUE(eventually([&] { return there.looks > 0; }) && clock.await_waiting(1));
    }
    fetch.forget(1);
    if (waits)
      clock.advance_ms(patience::kPeerSoonMs);
    else
      files["f"].set(2);
    EXPECT_EQ(came.get().how, waits ? Fetched::kBroken : Fetched::kOk);
    files["f"].set(1);
  }
  EXPECT_EQ(connections, 1) << "it is not dialled again";
}

TEST_P(PeerDataTest, OfThoseThatWereNeededAtATimeOnlySoManyAreKept) {
  hold("f", noise(100, 1)).set(0);
  Fetch few{fetches(1), &there, clock};
  const int before = open_descriptors();
  Threads all(3, [&](uint32_t) { EXPECT_EQ(get_by(&few, "f").how, Fetched::kOk); });
  EXPECT_TRUE(eventually([&] { return serve->serving() == 3; }));
  files["f"].set(1);
  all.join();
  EXPECT_EQ(connections, 3);
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before + 2; })) << "both ends of one";
  EXPECT_EQ(get_by(&few, "f").how, Fetched::kOk);
  EXPECT_EQ(connections, 3);
}

// It may have been a moment's trouble. Where both its addresses were in vain, that says nothing of the
// network.
TEST_P(PeerDataTest, ANetworkThatDidNotWorkIsTriedAgainLater) {
  hold("f", "content");
  OneNode elsewhere;
  elsewhere.met = free_port();
  elsewhere.data = "127.0.0.9";
  Fetch one{fetches(0), &elsewhere, clock};
  EXPECT_EQ(get_by(&one, "f").how, Fetched::kUnreachable);
  elsewhere.met = there.met.load();
  const Result<Fd> listens = listen_at(elsewhere.data, there.met);
  ASSERT_TRUE(listens.ok());
  pollfd dialled = {listens->get(), POLLIN, 0};
  const auto expect_tried = [&] {
    auto came = std::async(std::launch::async, [&] { return get_by(&one, "f"); });
    ASSERT_EQ(::poll(&dialled, 1, kPatienceMs), 1);
    { const Fd hangs_up(::accept4(listens->get(), nullptr, nullptr, SOCK_CLOEXEC)); }
    EXPECT_EQ(came.get().how, Fetched::kOk);
  };
  expect_tried();
  EXPECT_EQ(get_by(&one, "f").how, Fetched::kOk);
  EXPECT_EQ(::poll(&dialled, 1, 0), 0) << "not so soon";
  clock.advance_ms(patience::kPeerBeginMs);
  expect_tried();
}

// A link that is slow, or shared: a piece takes longer than the patience, but goes on.
TEST(WireTest, APieceComesAndGoesAsLongAsItMoves) {
  constexpr int kPatience = 2000, kLeast = 1;
  constexpr size_t kPart = 64 << 10, kAll = 25 * kPart;
  ManualClock clock;
  const SocketPair pair(SOCK_NONBLOCK);
  const int there = pair.there.get();
  EXPECT_EQ(::setsockopt(pair.here.get(), SOL_SOCKET, SO_SNDBUF, &kLeast, sizeof kLeast), 0);
  Wire wire(pair.here.get(), nullptr, clock);
  std::vector<char> to(kAll), part(kPart);
  // What becomes of `work` while the other end gives or takes a part, by `step`, each tenth of a second until
  // that has ended, or all have moved: 2.5 s in all.
  const auto beside = [&](const std::function<Status()>& work, const std::function<ssize_t()>& step) {
    std::atomic<bool> ended{false};
    Status status;
    std::thread works([&] {
      status = work();
      ended = true;
    });
    for (size_t moved = 0; moved < kAll && !ended;) {
      EXPECT_TRUE(eventually([&] { return clock.waiting() == 1 || ended; }));
      clock.advance_ms(100);
      EXPECT_TRUE(eventually([&] {
        const ssize_t n = ended ? 1 : step();
        if (n > 0) moved += static_cast<size_t>(n);
        return n > 0;
      }));
    }
    works.join();
    return status;
  };
  const auto give = [&] { return ::send(there, part.data(), kPart, MSG_NOSIGNAL); };
  const auto take = [&] { return ::recv(there, part.data(), kPart, 0); };
  const Scratch scratch;
  const Fd file(::open(scratch.file("f", noise(kAll, 1)).c_str(), O_RDONLY | O_CLOEXEC));
  EXPECT_TRUE(beside([&] { return wire.receive_slowly(to.data(), kAll, kPatience); }, give).ok());
  EXPECT_TRUE(beside([&] { return wire.send_file(file.get(), 0, kAll, kPatience); }, take).ok());
  const Status late = beside([&] { return wire.receive(to.data(), kAll, kPatience); }, give);
  ASSERT_FALSE(late.ok()) << "what is no piece has a limit";
  EXPECT_EQ(late.error().code, ETIMEDOUT);
}

TEST(SocketTest, AnAddressOfThisMachineInANetwork) {
  for (const char* network : {"127.0.0.0/8", "127.0.0.1/32", "126.0.0.0/7"})
    EXPECT_EQ(own_address_in(network), kLoopback) << network;
  for (const char* network : {"203.0.113.0/24", "126.0.0.0/8", "127.0.0.2/32", "2001:db8::/32", "127.0.0.0",
                              "x/8", "127.0.0.1/33", "7f00:1::/32"})
    EXPECT_EQ(own_address_in(network), std::nullopt) << network;
  if (listen_at("::1", 0).ok()) {
    EXPECT_EQ(own_address_in("::/8"), "::1");
  }
}

// Another one, which is asked and answers what it likes.
TEST_P(PeerDataTest, WhatIsNoAnswerIsNoFile) {
  const auto got = [](uint64_t bytes) { return encode(Got{GetResult::kOk, {bytes, 1, 2, 3, 4}}); };
  const std::string piece(100, 'p');
  const uint64_t check = check_of_piece(piece.data(), piece.size());
  struct Answer {
    std::string what, bytes;
    uint64_t offset = 0;
    Fetched how = Fetched::kBroken;
    NodeIndex node = 1;
    bool ends = false;   // it hangs up then
    int at = 0;          // how far off the port is where it says that it listens
    bool is_tls = true;  // if that is spoken
  };
  const std::string none = got(0);
  const std::vector<Answer> answers = {
      {"a part of an answer", none.substr(0, none.size() - 1), 0, Fetched::kBroken, 1, true},
      {"as it should be", got(100) + encode_piece({100, check}) + piece, 0, Fetched::kOk},
      {"of another node", got(100) + encode_piece({100, check}) + piece, 0, Fetched::kUnreachable, 0},
      {"of another port", got(100) + encode_piece({100, check}) + piece, 0, Fetched::kUnreachable, 1, false,
       1},
      {"no message", std::string(MessageHeader::kBytes, '?')},
      {"no TLS", noise(1000, 1), 0, Fetched::kBroken, 1, false, 0, false},
      {"of another kind", encode_message({MessageType::kHave}, encode_body(Got{GetResult::kGone, {}}))},
      {"half a body", encode_message({MessageType::kGot}, "?")},
      {"a body without an end", encode_message({MessageType::kGot}, noise(10000, 1))},
      {"more than that there is none", encode(Got{GetResult::kGone, {}}) + "p"},
      {"a file that ends before what was asked for", got(kMiB), 2 * kMiB},
      {"no piece", got(100) + std::string(PieceHeader::kBytes, '?') + piece},
      {"a shorter piece", got(100) + encode_piece({99, check}) + piece},
      {"a longer piece", got(100) + encode_piece({101, check}) + piece + "p"},
      {"a piece that ends the file", got(100) + encode_piece({0, check}), 0, Fetched::kGone},
      {"other bytes", got(100) + encode_piece({100, check ^ 1}) + piece, 0, Fetched::kWrong},
  };
  for (const Answer& answer : answers) {
    SCOPED_TRACE(answer.what);
    const Squatter listens;
    there.met = listens.port;
    std::thread other([&] {
      Hello hello;
      hello.node = answer.node;
      hello.port = static_cast<uint16_t>(listens.port + answer.at);
      Handshake handshake(tls, Fd(::accept4(listens.fd.get(), nullptr, nullptr, SOCK_CLOEXEC)),
                          Handshake::Side::kListens, hello, GetParam());
      if (!handshake.wait(kPatienceMs).ok()) return;
      const Fd socket = handshake.take_socket();
      const Tls session = handshake.take_tls();
      Wire wire(socket.get(), session.get()), clear(socket.get(), nullptr);
      char head[MessageHeader::kBytes];
      if (!wire.receive(head, sizeof head, kPatienceMs).ok()) return;
      std::string body(decode_header({head, sizeof head})->body_bytes, '\0');
      EXPECT_TRUE(wire.receive(body.data(), body.size(), kPatienceMs).ok());
      (void)(answer.is_tls ? wire : clear).send(answer.bytes, kPatienceMs).ok();
      if (!answer.ends) (void)wire.receive(head, 1, kPatienceMs).ok();  // until it is hung up on
    });
    const Came came = get("f", answer.offset);
    EXPECT_EQ(came.how, answer.how);
    EXPECT_EQ(came.bytes, answer.how == Fetched::kOk ? piece : "");
    const bool is_kept = answer.how == Fetched::kOk || answer.how == Fetched::kGone;
    if (is_kept) fetch.forget(1);
    other.join();
    const int open = open_descriptors();
    fetch.forget(1);
    EXPECT_EQ(open_descriptors(), open) << "its connection was not kept";
  }
}

TEST_P(PeerDataTest, WhoAsksForNothingIsHungUpOn) {
  hold("f", "content");
  for (const std::string& said :
       {encode(Ping()), noise(100, 1), encode(Got()), encode_message({MessageType::kGet}, "?"),
        encode_message({MessageType::kPing},
                       encode_body(Get{0, "f", 0, 0, Follow::kNo, 0, Purpose::kDemand}))}) {
    Hello hello;
    hello.lane = Lane::kData;
    Handshake handshake(tls, dial(there.met), Handshake::Side::kDials, hello, GetParam());
    ASSERT_TRUE(handshake.wait(kPatienceMs).ok());
    const Fd socket = handshake.take_socket();
    const Tls session = handshake.take_tls();
    Wire wire(socket.get(), session.get());
    ASSERT_TRUE(wire.send(said, kPatienceMs).ok());
    char byte;
    const Status none = wire.receive(&byte, 1, kPatienceMs);
    ASSERT_FALSE(none.ok()) << "an answer";
    EXPECT_EQ(none.error().code, ECONNRESET);
  }
  EXPECT_EQ(get("f").how, Fetched::kOk);
}

// Connections without a handshake, and files of which there is none.
class ServedTest : public PeerTest {
 protected:
  void start(size_t most_connections) {
    ServeOptions options;
    options.most_connections = most_connections;
    options.threads = 2;
    options.open = [this](const Get& get, GetResult* why) -> std::unique_ptr<ServedFile> {
      if (get.path == "slow") slow.pass();
      *why = GetResult::kGone;
      return nullptr;
    };
    slow.shut();
    serve = std::make_unique<Serve>(std::move(options), clock);
    ASSERT_TRUE(serve->start().ok());
  }
  void TearDown() override {
    slow.open();
    serve.reset();
  }
  // The other end of a new connection.
  Fd connect(Fd* same = nullptr) {
    SocketPair pair(SOCK_NONBLOCK);
    if (same) *same = Fd(::dup(pair.here.get()));
    serve->add(std::move(pair.here), nullptr);
    return std::move(pair.there);
  }
  static void ask(const Fd& by, const std::string& name) {
    const std::string asks = encode(Get{0, name, 0, 0, Follow::kNo, 0, Purpose::kDemand});
    write_to(by, asks);
  }
  static bool is_answered(const Fd& by) {
    std::string answer(encode(Got()).size(), '\0');
    return Wire(by.get(), nullptr).receive(answer.data(), answer.size(), kPatienceMs).ok();
  }
  static bool answers(const Fd& by) {
    ask(by, "f");
    return is_answered(by);
  }
  ManualClock clock;  // which stands still
  Gate slow;          // for files of that name
  std::unique_ptr<Serve> serve;
};

// One thread answers both that are idle: it has done with the first when it answers the second.
TEST_F(ServedTest, WhoWasAskedLastTheLongestAgoGivesItsPlace) {
  start(3);
  const Fd works = connect(), idlest = connect(), idle = connect();
  ask(works, "slow");
  EXPECT_TRUE(slow.await_waiting(1));
  EXPECT_TRUE(answers(idlest));
  EXPECT_TRUE(answers(idle));
  const Fd comes = connect();
  EXPECT_TRUE(is_hung_up(idlest));
  EXPECT_TRUE(answers(idle));
  EXPECT_TRUE(answers(comes));
  slow.open();
  EXPECT_TRUE(is_answered(works));
}

TEST_F(ServedTest, WhereAllWorkNobodyIsHungUpOn) {
  start(1);
  const Fd works = connect();
  ask(works, "slow");
  EXPECT_TRUE(slow.await_waiting(1));
  const Fd comes = connect();
  EXPECT_TRUE(answers(comes));
  slow.open();
  EXPECT_TRUE(is_answered(works));
}

// The kernel may tell of what was said on a connection that is hung up on meanwhile.
TEST_F(ServedTest, WhatIsToldOfAConnectionThatIsGoneIsNoMatter) {
  start(1);
  Fd stays_registered;
  const Fd gone = connect(&stays_registered);
  const Fd comes = connect();
  ask(gone, "f");
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(answers(comes));
}

TEST(SocketTest, AsManyConnectionsAsNodesAreKeptIfDescriptorsAllow) {
  EXPECT_EQ(kept_connections(8, 1 << 20), 72u);
  EXPECT_EQ(kept_connections(1024, 1 << 20), 1088u);
  EXPECT_EQ(kept_connections(1024, 4096), 512u);
  EXPECT_EQ(kept_connections(1024, 0), 64u) << "nobody knows";
  EXPECT_GT(descriptor_limit(), 0u);
}

std::string name_of(const ::testing::TestParamInfo<Handshake::After>& info) {
  return info.param == Handshake::After::kClear ? "Clear" : "Encrypted";
}
INSTANTIATE_TEST_SUITE_P(Wires, PeerDataTest,
                         ::testing::Values(Handshake::After::kClear, Handshake::After::kEncrypted), name_of);

}  // namespace
}  // namespace monarch
