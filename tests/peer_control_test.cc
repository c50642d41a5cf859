// SPDX-License-Identifier: Apache-2.0
// Agents that talk to each other over TCP, and what is between them.
#include "runtime/peer/control.h"

#include <netinet/tcp.h>

#include <future>

#include "runtime/peer/socket.h"
#include "tests/faulty_os.h"
#include "tests/manual_clock.h"
#include "tests/peer_fixture.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

// A node's control, which answers Want by Read with the number of the node that asks. Its time stands still
// unless a test moves it.
struct Agent : ControlHandler {
  Agent(NodeIndex own, const std::vector<PeerAddress>& nodes, const PeerTls* tls,
        const std::function<void(ControlOptions*)>& change = {}) {
    ControlOptions options;
    options.hello.node = own;
    options.hello.incarnation = 100 + own;
    options.hello.dataset = 42;
    options.nodes = nodes;
    options.tls = tls;
    if (change) change(&options);
    control = std::make_unique<Control>(std::move(options), this, clock);
  }
  std::string message(NodeIndex from, const MessageHeader& header, std::string_view body) override {
    told.add(header, body);
    const std::lock_guard hold(lock);
    if (says) return says();
    return header.type == MessageType::kWant && answers ? encode(Read{from}) : std::string();
  }
  void met(const Hello& there) override {
    const std::lock_guard hold(lock);
    all_met.emplace_back(there.node, there.incarnation);
  }
  void gone(NodeIndex node) override { note(node, &all_gone); }
  void unreachable(NodeIndex node, Away) override { note(node, &all_unreachable); }
  void wrong(NodeIndex node) override { note(node, &all_wrong); }
  void late(NodeIndex node) override { note(node, &all_late); }
  void rings() override { ++rung; }
  void note(NodeIndex node, std::vector<NodeIndex>* all) {
    const std::lock_guard hold(lock);
    all->push_back(node);
  }
  template <typename T>
  T seen(T Agent::*what) {
    const std::lock_guard hold(lock);
    return this->*what;
  }
  // The words that it was told, in their order.
  std::vector<uint32_t> marks() {
    std::vector<uint32_t> all;
    for (const Mark& mark : told.all<Mark>()) all.insert(all.end(), mark.marks.begin(), mark.marks.end());
    return all;
  }
  Result<Reply> want(NodeIndex node) { return control->ask(node, encode(Want{}), kPatienceMs); }
  void be_silent() {
    const std::lock_guard hold(lock);
    answers = false;
  }
  ManualClock clock;
  std::mutex lock;
  bool answers = true;
  Sayings told;
  std::function<std::string()> says;  // to whatever is said
  std::atomic<int> rung{0};
  std::vector<std::pair<NodeIndex, uint64_t>> all_met;
  std::vector<NodeIndex> all_gone, all_unreachable, all_wrong, all_late;
  std::unique_ptr<Control> control;
};

// Somebody at a port, who hands on what comes there to another port, and the answers, until who has dialled
// hangs up; then it says something of its own.
class Relay {
 public:
  ~Relay() { join(); }
  void start(uint16_t to) {
    thread_ = std::thread([this, to] { run(to); });
  }
  // Returns once the other port has hung up, too.
  void join() {
    if (thread_.joinable()) thread_.join();
  }
  uint16_t port() const { return squatter_.port; }
  // After join(): whether a message has passed in clear.
  bool saw_messages() const { return saw_.find(encode(Ping()).substr(0, 4)) != std::string::npos; }

 private:
  void run(uint16_t to) {
    pollfd waits = {squatter_.fd.get(), POLLIN, 0};
    if (::poll(&waits, 1, kPatienceMs) != 1) return;
    const Fd from(::accept4(squatter_.fd.get(), nullptr, nullptr, SOCK_CLOEXEC)), agent = dial(to);
    pollfd ends[] = {{from.get(), POLLIN, 0}, {agent.get(), POLLIN, 0}};
    while (::poll(ends, 2, kPatienceMs) > 0) {
      char bytes[4096];
      if (ends[1].revents != 0) {
        const ssize_t n = ::read(agent.get(), bytes, sizeof bytes);
        if (n <= 0) return;
        saw_.append(bytes, static_cast<size_t>(n));
        (void)::send(from.get(), bytes, static_cast<size_t>(n), 0);
      }
      if (ends[0].revents != 0) {
        const ssize_t n = ::read(from.get(), bytes, sizeof bytes);
        if (n > 0) saw_.append(bytes, static_cast<size_t>(n));
        if (n <= 0) ends[0].fd = -1;
        const std::string says = n > 0 ? std::string(bytes, static_cast<size_t>(n)) : noise(100, 3);
        (void)::send(agent.get(), says.data(), says.size(), 0);
      }
    }
  }
  const Squatter squatter_;
  std::string saw_;
  std::thread thread_;
};

class ControlTest : public PeerTest {
 protected:
  std::unique_ptr<Agent> start(NodeIndex own, const std::function<void(ControlOptions*)>& change = {}) {
    auto agent = std::make_unique<Agent>(own, nodes, &ours, change);
    const Status started = agent->control->start();
    EXPECT_TRUE(started.ok()) << started.error().text;
    return agent;
  }
  static Hello hello(NodeIndex node) {
    Hello h;
    h.node = node;
    h.dataset = 42;
    return h;
  }
  static void expect_read(const Result<Reply>& reply, uint64_t lease) {
    ASSERT_TRUE(reply.ok()) << reply.error().text;
    const std::optional<Read> read = decode<Read>(reply->body);
    ASSERT_TRUE(read && reply->header.type == MessageType::kRead);
    EXPECT_EQ(read->lease, lease);
  }
  // Returns once the agent has dealt with what has come until now.
  static void settle(const Agent& agent) {
    std::atomic<bool> settled{false};
    agent.control->soon([&] { settled = true; });
    EXPECT_TRUE(eventually([&] { return settled.load(); }));
  }
  // A connection that somebody is making to it.
  static Fd accept(const Squatter& squatter) {
    Fd fd(::accept4(squatter.fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    EXPECT_TRUE(fd);
    return fd;
  }
  const PeerTls ours = make_tls();
  std::vector<PeerAddress> nodes = nodes_here(3, 2);
};

TEST_F(ControlTest, ItRingsOnceAtTheSoonestTime) {
  const auto agent = start(0);
  for (const int ms : {60000, 50, 60000}) agent->control->ring_after(ms);
  for (const auto& [ms, times] : {std::pair(49, 0), {1, 1}, {60000, 1}}) {
    settle(*agent);
    agent->clock.advance_ms(ms);
    settle(*agent);
    EXPECT_TRUE(eventually([&, least = times] { return agent->rung >= least; }));
    EXPECT_EQ(agent->rung, times) << "what was to be later is forgotten";
  }
  agent->control->ring_after(60000);
  settle(*agent);
  agent->clock.advance_ms(60000);
  EXPECT_TRUE(eventually([&] { return agent->rung == 2; })) << "and again";
}

// Its kernel confirms nothing. As long as it does, the agent may take its time.
TEST_F(ControlTest, AMachineThatVanishesIsNoticedSoonUnlessItConfirms) {
  const auto one = start(0), other = start(1);
  expect_read(one->want(1), 0);
  other->be_silent();
  std::atomic<int> looks{0};
  std::atomic<bool> confirms{true};
  const Intercept kernel(Call::kConnectionInfoResult, [&](Arguments& a) {
    a.tcp->tcpi_unacked = looks == 0 ? 0 : 1;
    a.tcp->tcpi_last_ack_recv = confirms && looks > 0 ? 0 : 3'600'000;
    ++looks;
  });
  auto waits = std::async(std::launch::async, [&] { return one->want(1); });
  const auto look = [&](int times) {
    for (int i = 0; i < times; ++i) {
      const int before = looks;
      EXPECT_TRUE(one->clock.await_waiting(1));
      one->clock.advance_ms(patience::kPeerLookMs);
      EXPECT_TRUE(eventually([&] { return looks > before; }));
      settle(*one);
    }
  };
  look(20);
  confirms = false;
  look(patience::kPeerConfirmMs / patience::kPeerLookMs - 1);
  EXPECT_TRUE(one->seen(&Agent::all_unreachable).empty());
  look(1);
  EXPECT_EQ(waits.get().error().code, EHOSTUNREACH);
  EXPECT_EQ(one->seen(&Agent::all_unreachable), std::vector<NodeIndex>{1});
  EXPECT_TRUE(one->seen(&Agent::all_gone).empty()) << "its connection is kept";
}

TEST_F(ControlTest, WhatIsToldArrivesInItsOrder) {
  const auto one = start(0), other = start(1);
  std::vector<uint32_t> told;
  for (uint32_t i = 0; i < 1000; ++i) {
    told.push_back(i);
    one->control->tell(1, encode(Mark{0, 0, {i}}));
  }
  EXPECT_TRUE(eventually([&] { return other->marks().size() == told.size(); }));
  EXPECT_EQ(other->marks(), told);
  for (const NodeIndex nobody : {7u, 0u}) one->control->tell(nobody, encode(Mark{0, 0, {1}}));
  expect_read(one->want(1), 0);
  EXPECT_TRUE(one->marks().empty());
}

TEST_F(ControlTest, WhatComesTooLateIsNobodysAnswer) {
  const auto one = start(0), other = start(1);
  expect_read(one->want(1), 0);
  other->lock.lock();  // its control thread waits
  auto late = std::async(std::launch::async, [&] { return one->want(1); });
  ASSERT_TRUE(one->clock.await_waiting(1));
  one->clock.advance_ms(kPatienceMs);
  EXPECT_EQ(late.get().error().code, ETIMEDOUT);
  other->lock.unlock();
  for (int i = 0; i < 20; ++i) expect_read(one->want(1), 0);
}

// It has another port than the one that is being dialled: that one comes to nothing then.
TEST_F(ControlTest, WhoHasDialledMeanwhileCanBeReached) {
  const Squatter there;
  nodes[1].ports = {there.port};
  const auto one = start(0);
  one->control->tell(1, encode(Mark{0, 0, {3}}));
  Fd dialled = accept(there);
  const Fd met = meet_as(hello(1), one->control->port(), ours);
  EXPECT_TRUE(eventually([&] { return one->seen(&Agent::all_met).size() == 1; }));
  dialled.reset();
  settle(*one);
  EXPECT_TRUE(one->seen(&Agent::all_unreachable).empty());
  EXPECT_TRUE(one->seen(&Agent::all_gone).empty());
}

TEST_F(ControlTest, TheNextPortIsTakenAndFound) {
  for (const bool listens : {true, false}) {
    // Somebody else has the first port, and accepts without a word, or is no more than a bound socket.
    Squatter squatter;
    nodes[1].ports = {squatter.port, free_port()};
    if (!listens) squatter.fd.reset();
    const auto one = start(0), other = start(1);
    EXPECT_EQ(other->control->port(), nodes[1].ports[listens ? 1 : 0]);
    auto reply = std::async(std::launch::async, [&] { return one->want(1); });
    if (listens) {
      const Fd dialled = accept(squatter);
      EXPECT_TRUE(is_told(dialled)) << "the handshake has begun";
      one->clock.advance_ms(patience::kPeerSlowMs);
    }
    expect_read(reply.get(), 0);
  }
}

// It proves the key, as it has the agent's answers: those of the agent that is dialled, or of another node's,
// which may well have the port of that number. None goes on in clear with it.
TEST_F(ControlTest, WhoHandsOnToAnAgentIsNotTakenForIt) {
  for (const NodeIndex to : {1u, 2u}) {
    Relay relay;
    nodes[1].ports = {relay.port(), free_port()};
    nodes[2].ports = {free_port()};
    const auto one = start(0), other = start(1), third = start(2);
    ASSERT_EQ(other->control->port(), nodes[1].ports[1]);
    const Agent& agent = to == 1 ? *other : *third;
    relay.start(agent.control->port());
    expect_read(one->want(1), 0);
    one->control->stop();
    relay.join();
    EXPECT_FALSE(relay.saw_messages());
    settle(agent);
    EXPECT_TRUE(other->seen(&Agent::all_wrong).empty() && third->seen(&Agent::all_wrong).empty());
    EXPECT_TRUE(third->seen(&Agent::all_met).empty());
  }
}

TEST_F(ControlTest, WhoHasNoAddressCannotBeReached) {
  nodes[1].host = "localhost";  // no number
  nodes[2].ports.clear();
  const auto one = start(0);
  for (const NodeIndex node : {1u, 2u}) EXPECT_FALSE(one->want(node).ok());
  EXPECT_EQ(one->seen(&Agent::all_unreachable), (std::vector<NodeIndex>{1, 2}));
}

TEST_F(ControlTest, OtherJobsDatasetsAndSettingsDoNotMeet) {
  const auto one = start(0);
  const PeerTls others = make_tls("c.2.0");
  const std::function<void(ControlOptions*)> changes[] = {
      [&](ControlOptions* o) { o->tls = &others; },
      [](ControlOptions* o) { o->hello.dataset = 43; },
      [](ControlOptions* o) { o->hello.settings = 1; },
  };
  for (const auto& change : changes) {
    const auto other = start(1, change);
    const Result<Reply> refused = one->want(1);
    EXPECT_NE(refused.error().code, ECONNREFUSED) << "that nobody is at the next port says less";
    EXPECT_FALSE(other->want(0).ok());
    EXPECT_TRUE(one->seen(&Agent::all_met).empty());
    EXPECT_TRUE(other->seen(&Agent::all_met).empty());
  }
}

// With the key, but not one of the nodes, or this very one.
TEST_F(ControlTest, WhoSaysToBeNobodyIsNotBelieved) {
  const auto one = start(0);
  for (const NodeIndex node : {0u, 3u, 0xffffffffu}) {
    Handshake dials(ours, dial(one->control->port()), Handshake::Side::kDials, hello(node),
                    Handshake::After::kClear);
    (void)dials.wait(kPatienceMs).ok();
    const Fd socket = dials.take_socket();
    EXPECT_TRUE(is_hung_up(socket)) << "it is hung up on";
  }
  EXPECT_TRUE(one->seen(&Agent::all_met).empty());
}

TEST_F(ControlTest, WhoSaysWhatIsNoMessageIsHungUpOn) {
  const auto one = start(0);
  for (const std::string& nonsense : {noise(100, 3), std::string(MessageHeader::kBytes, '?')}) {
    const Fd socket = meet_as(hello(1), one->control->port(), ours);
    write_to(socket, nonsense);
    EXPECT_TRUE(is_hung_up(socket));
  }
  EXPECT_TRUE(eventually([&] { return one->seen(&Agent::all_gone) == std::vector<NodeIndex>{1, 1}; }));
  EXPECT_EQ(one->seen(&Agent::all_wrong), (std::vector<NodeIndex>{1, 1}));
  const auto other = start(1);
  expect_read(one->want(1), 0);
}

// Else the answers to what it asks, or what it is told, would fill the memory until the kernel gives it up.
TEST_F(ControlTest, WhoDoesNotReadIsHungUpOn) {
  const std::string question = encode(Walk{1, 0}), answer(List::kMostParts, 'x'),
                    message = encode(Mark{0, 0, std::vector<uint32_t>(Mark::kMost)});
  constexpr int kAsk = 4000, kMost = 1000, kTell = 4000;  // more than the two ends have room for
  const std::vector<NodeIndex> node = {1};
  std::atomic<int> answered{0};
  const auto one = start(0);
  {
    const std::lock_guard hold(one->lock);
    one->says = [&] {
      ++answered;
      return encode(List{1, 2, 3, WalkState::kWalks, answer});
    };
  }
  const Fd asks = meet_as(hello(1), one->control->port(), ours);
  int asked = 0;
  EXPECT_TRUE(eventually([&] {
    while (asked<kAsk&& ::send(asks.get(), question.data(), question.size(), MSG_DONTWAIT)> 0) ++asked;
    return one->seen(&Agent::all_gone) == node;
  })) << asked;
  EXPECT_LT(answered, kMost);
  const auto other = start(0, [](ControlOptions* o) { o->nodes[0].ports = {free_port()}; });
  const Fd is_told_much = meet_as(hello(1), other->control->port(), ours);
  ASSERT_TRUE(eventually([&] { return other->seen(&Agent::all_met).size() == 1; }));
  for (int i = 0; i < kTell; ++i) other->control->tell(1, message);
  settle(*other);
  EXPECT_EQ(other->seen(&Agent::all_gone), node);
}

// It has the key, and guesses the number of a question.
TEST_F(ControlTest, NobodyAnswersForAnother) {
  const auto one = start(0);
  const auto other = start(2);
  expect_read(one->want(2), 0);
  other->be_silent();
  std::thread speaks([&] {
    const Fd socket = meet_as(hello(1), one->control->port(), ours);
    for (uint64_t number = 0; number < 10; ++number) {
      const std::string answer = encode(Read{77}, {{}, 0, number});
      write_to(socket, answer);
    }
    EXPECT_TRUE(eventually([&] { return one->seen(&Agent::all_late) == std::vector<NodeIndex>(9, 1); }))
        << "all but to 0, which was no question";
  });  // and hangs up
  auto vain = std::async(std::launch::async, [&] { return one->want(2); });
  speaks.join();
  EXPECT_TRUE(one->clock.await_waiting(1)) << "nobody has answered it";
  one->clock.advance_ms(kPatienceMs);
  const Result<Reply> none = vain.get();
  EXPECT_EQ(none.error().code, ETIMEDOUT) << none.error().text;
  EXPECT_TRUE(eventually([&] { return one->seen(&Agent::all_gone) == std::vector<NodeIndex>{1}; }));
}

// It has the key, and never hangs up.
TEST_F(ControlTest, ANodeKeepsOnlySoManyConnections) {
  const auto one = start(0);
  const int before = open_descriptors();
  std::vector<Fd> kept;
  for (int i = 0; i < 50; ++i) kept.push_back(meet_as(hello(1), one->control->port(), ours));
  EXPECT_TRUE(eventually([&] { return one->seen(&Agent::all_met).size() == 50 - 4 + 1; }))
      << "with each that is left something may be lost";
  settle(*one);
  EXPECT_LE(open_descriptors(), before + 50 + 4);
  EXPECT_TRUE(is_hung_up(kept.front()));
  EXPECT_TRUE(one->seen(&Agent::all_gone).empty());
}

// Strangers keep all their places, and say nothing: who has the key gets in when they are hung up on.
TEST_F(ControlTest, StrangersDoNotKeepOthersOut) {
  const auto one = start(0), other = start(1);
  const int before = open_descriptors();
  std::vector<Fd> strangers;
  for (int i = 0; i < 100; ++i) strangers.push_back(dial(one->control->port()));
  EXPECT_TRUE(eventually([&] { return open_descriptors() == before + 100 + 64; }));
  settle(*one);
  EXPECT_EQ(open_descriptors(), before + 100 + 64) << "the others wait to be accepted";
  auto reply = std::async(std::launch::async, [&] { return other->want(0); });
  EXPECT_TRUE(eventually([&] { return open_descriptors() > before + 100 + 64; })) << "it dials";
  one->clock.advance_ms(patience::kPeerSilenceMs);
  expect_read(reply.get(), 1);
  one->clock.advance_ms(patience::kPeerSilenceMs);
  for (const Fd& fd : strangers) EXPECT_TRUE(is_hung_up(fd));
}

// As where the process may open no more files: the kernel would tell of who waits again and again.
TEST_F(ControlTest, WhereNobodyCanBeAcceptedItRests) {
  const int result = in_child([&] {
    static std::atomic<int> asked{0};
    static std::atomic<bool> is_short{true};
    if (!before_call(SYS_accept4, [](CallArguments) {
          ++asked;
          return is_short ? EMFILE : 0;
        }))
      return 77;
    const auto one = start(0);
    const Fd stranger = dial(one->control->port());
    if (!eventually([&] { return asked == 1; })) return 1;
    for (int i = 0; i < 5; ++i) settle(*one);
    if (asked != 1) return 2;
    is_short = false;
    one->clock.advance_ms(patience::kPeerRestMs);
    return start(1)->want(0).ok() ? 0 : 3;
  });
  if (result == 77) GTEST_SKIP() << "not to be had here";
  EXPECT_EQ(result, 0);
}

TEST_F(ControlTest, OnlySoMuchWaitsForANodeThatIsNotReachedYet) {
  constexpr size_t kMost = 4096;
  std::optional<Squatter> silent;
  silent.emplace();  // has the first port
  nodes[1].ports = {silent->port, free_port()};
  const auto one = start(0), other = start(1);
  for (uint32_t i = 0; i < kMost + 100; ++i) one->control->tell(1, encode(Mark{0, 0, {i}}));
  settle(*one);
  silent.reset();
  EXPECT_TRUE(eventually([&] { return other->marks().size() == kMost; }));
  expect_read(one->want(1), 0);
  const std::vector<uint32_t> marks = other->marks();
  ASSERT_EQ(marks.size(), kMost);
  EXPECT_EQ(marks.back(), kMost - 1) << "the first ones, in their order";
}

// Whoever waits for the one before is told that it is gone, though nobody has closed its connection.
TEST_F(ControlTest, ANewAgentTakesThePlaceOfTheOneBefore) {
  const auto one = start(0);
  const auto connect = [&](uint64_t incarnation) {
    Hello h = hello(1);
    h.incarnation = incarnation;
    return meet_as(h, one->control->port(), ours);
  };
  const auto met = [&] { return one->seen(&Agent::all_met); };
  const Fd before = connect(7);
  EXPECT_TRUE(eventually([&] { return met().size() == 1; }));
  Result<Reply> answer = Error{0, ""};
  std::thread asks([&] { answer = one->want(1); });
  char head[MessageHeader::kBytes];
  EXPECT_TRUE(eventually([&] { return ::recv(before.get(), head, sizeof head, MSG_DONTWAIT) > 0; }));
  const Fd again = connect(7);  // the same one, by another connection
  write_to(again, encode(Mark{0, 0, {3}}));
  EXPECT_TRUE(eventually([&] { return one->marks().size() == 1; }));
  EXPECT_EQ(met().size(), 1u);
  const Fd after = connect(8);
  asks.join();
  EXPECT_EQ(answer.error().code, ECONNRESET);
  // The one that asks is told first.
  EXPECT_TRUE(eventually([&] { return met().size() == 2; }));
  EXPECT_EQ(met(), (std::vector<std::pair<NodeIndex, uint64_t>>{{1, 7}, {1, 8}}));
  EXPECT_TRUE(one->seen(&Agent::all_gone).empty());
  EXPECT_TRUE(is_hung_up(again));
}

TEST_F(ControlTest, EncryptedItIsTheSame) {
  const auto encrypt = [](ControlOptions* o) { o->after = Handshake::After::kEncrypted; };
  const auto one = start(0, encrypt), other = start(1, encrypt);
  for (int i = 0; i < 20; ++i) expect_read(one->want(1), 0);
  one->control->tell(1, encode(Mark{0, 0, std::vector<uint32_t>(Mark::kMost)}));
  EXPECT_TRUE(eventually([&] { return other->marks().size() == Mark::kMost; }));
}

TEST_F(ControlTest, WhoWaitsIsToldOfTheEndOfEither) {
  for (const bool own : {true, false}) {
    const auto one = start(0), other = start(1);
    other->be_silent();
    auto waits = std::async(std::launch::async, [&] { return one->want(1); });
    EXPECT_TRUE(eventually([&] { return other->told.count<Want>() == 1; }));
    (own ? one : other)->control->stop();
    const Result<Reply> ended = waits.get();
    EXPECT_TRUE(own || ended.error().code == ECONNRESET) << ended.error().text;
    if (own) {
      EXPECT_EQ(one->want(1).error().code, ESHUTDOWN);
    }
  }
}

}  // namespace
}  // namespace monarch
