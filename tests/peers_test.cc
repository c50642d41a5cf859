// SPDX-License-Identifier: Apache-2.0
// Several nodes of a job, here in one process: each file is read once on the PFS, whoever needs it, and no
// node gets other bytes, whatever becomes of the others.
#include "runtime/peer/peers.h"

#include <future>
#include <map>
#include <random>
#include <sstream>
#include <tuple>

#include "runtime/layout/board_layout.h"
#include "runtime/peer/socket.h"
#include "runtime/peer/wire.h"
#include "tests/faulty_os.h"
#include "tests/gate.h"
#include "tests/manual_clock.h"
#include "tests/peer_fixture.h"

namespace monarch {
namespace {

// The PFS: names and contents, and how often files were read.
struct Pfs {
  std::string read(const std::string& name) {
    ++reads;
    return files.at(name);
  }
  FileIdentity identity(const std::string& name) const { return {files.at(name).size(), 1, 2, 3, 0}; }
  const std::string& content(const std::string& name) const { return files.at(name); }
  std::map<std::string, std::string> files;
  std::atomic<int> reads{0};
};

// What a node has of a file.
struct Copy {
  std::string path;
  FileIdentity identity;
  std::vector<uint64_t> checks;
};

// An agent without its placement: it keeps what it reads in files. Its time stands still unless a test moves
// it.
class Node : public PeersHandler {
 public:
  Node(NodeIndex own, ControlOptions options, Pfs* pfs) : pfs_(pfs) {
    options.hello.node = own;
    options.hello.incarnation = std::random_device()();
    clock.end_sleeps();
    serve_ = std::make_unique<Serve>(
        ServeOptions{.open = [this](const Get& get, GetResult* why) { return open(get, why); }}, clock);
    peers = std::make_unique<Peers>(std::move(options), this, clock);
  }
  ~Node() override {
    hears.open();
    {
      const std::lock_guard hold(lock_);
      ends_ = true;
      grew_.notify_all();
    }
    peers->stop();
    serve_->stop();
  }
  void start() {
    ASSERT_TRUE(serve_->start().ok());
    const Status started = peers->start();
    ASSERT_TRUE(started.ok()) << started.error().text;
  }

  // As a task's open does.
  std::string read(const std::string& name) {
    {
      const std::lock_guard hold(lock_);
      if (const auto at = copies_.find(name); at != copies_.end()) return contents(at->second.path);
    }
    const FileKey key = file_key(0, name);
    const Peers::Route route = peers->locate(key);
    std::string content;
    std::vector<uint64_t> checks;
    FileIdentity identity = pfs_->identity(name);
    if (route.how == Peers::Route::How::kGet) {
      std::vector<char> buffer(kPieceBytes);
      Get get;
      get.path = name;
      get.follow = Follow::kYes;
      fetched = peers->get(key, route, get, buffer.data(),
                           {[&](const FileIdentity& now) {
                              identity = now;
                              return true;
                            },
                            [&](uint64_t, const char* bytes, size_t n, uint64_t check) {
                              content.append(bytes, n);
                              checks.push_back(check);
                              return true;
                            }});
    }
    if (route.how != Peers::Route::How::kGet || fetched != Fetched::kOk) {
      content = pfs_->read(name);
      if (route.how == Peers::Route::How::kPass) return content;
      reads.pass();
      checks = checks_of(content);
    }
    identity.check = check_of(checks);
    keep(name, content, identity, checks);
    peers->done({key, route.lease, ReadResult::kHeld, identity});
    return content;
  }
  void spoil(const std::string& name) {
    const std::lock_guard hold(lock_);
    overwrite(copies_.at(name).path, "?", 0);
  }
  void forget(const std::string& name) {
    const std::lock_guard hold(lock_);
    copies_.erase(name);
  }
  ManualClock clock;
  std::unique_ptr<Peers> peers;
  Gate reads;  // of the PFS: before it keeps what it has read there
  Gate hears;  // its control thread waits in a handler, as in a process that is stopped
  std::atomic<int> followers{0};
  std::atomic<Fetched> fetched{Fetched::kOk};  // what became of the last that it got from another one

 private:
  HeldPage held(const Gather& gather, const std::function<bool(const FileKey&)>& takes) override {
    constexpr uint64_t kPage = 7;
    const std::lock_guard hold(lock_);
    HeldPage page;
    page.log = 1;
    page.from = gather.from;
    page.next = std::min<uint64_t>(page.from + kPage, log_.size());
    page.ended = page.next == log_.size();
    for (uint64_t at = page.from; at < page.next; ++at)
      if (const auto copy = copies_.find(log_[at]); copy != copies_.end() && takes(file_key(0, log_[at])))
        page.files.push_back({file_key(0, log_[at]), 0, copy->second.identity});
    return page;
  }
  void changed(const Mark&) override { hears.pass(); }
  void data(Fd socket, Tls tls) override { serve_->add(std::move(socket), std::move(tls)); }
  bool take(const Told& told) override { return told.files.empty(); }

  // Who follows may come before the reader has begun.
  std::unique_ptr<ServedFile> open(const Get& get, GetResult* why) {
    *why = GetResult::kGone;
    std::unique_lock hold(lock_);
    const auto here = [&] { return copies_.count(get.path) != 0; };
    if (get.follow != Follow::kNo) {
      followers += here() ? 0 : 1;
      grew_.wait(hold, [&] { return here() || ends_; });
    }
    if (!here()) return nullptr;
    const Copy& copy = copies_[get.path];
    return std::make_unique<SentFile>(copy.path, copy.identity,
                                      [checks = copy.checks](uint64_t piece) { return checks.at(piece); });
  }
  void keep(const std::string& name, const std::string& content, const FileIdentity& identity,
            const std::vector<uint64_t>& checks) {
    const std::lock_guard hold(lock_);
    copies_[name] = {scratch_.file(name, content), identity, checks};
    log_.push_back(name);
    grew_.notify_all();
  }

  Pfs* const pfs_;
  const Scratch scratch_;
  std::unique_ptr<Serve> serve_;
  std::mutex lock_;
  std::condition_variable grew_;
  std::map<std::string, Copy> copies_;
  std::vector<std::string> log_;
  bool ends_ = false;
};

class PeersTest : public PeerTest {
 protected:
  static constexpr uint32_t kNodes = 4;
  static constexpr int kFiles = 120;
  void SetUp() override {
    for (int i = 0; i < kFiles; ++i)
      pfs.files["f" + std::to_string(i)] = noise(static_cast<size_t>(i) * 500, static_cast<uint64_t>(i));
    options.nodes = nodes_here(kNodes);
    options.tls = &tls;
  }
  void start(NodeIndex own) {
    nodes[own] = std::make_unique<Node>(own, options, &pfs);
    nodes[own]->start();
  }
  void start_all() {
    for (NodeIndex own = 0; own < kNodes; ++own) start(own);
  }
  void expect_read(NodeIndex node, const std::string& name) {
    EXPECT_TRUE(nodes[node]->read(name) == pfs.content(name)) << name << " by node " << node;
  }
  // Nodes come, as in "+012", go, as in "-3", and read all files, as in "r01", or one of nodes 1 and 0, as in
  // "m1".
  void act(const std::string& steps) {
    std::istringstream words(steps);
    for (std::string word; words >> word;) {
      std::vector<NodeIndex> who;
      for (const char node : word.substr(1)) who.push_back(static_cast<NodeIndex>(node - '0'));
      if (word[0] == 'r') epoch(who);
      for (const NodeIndex node : who) {
        if (word[0] == '+') start(node);
        if (word[0] == '-') nodes[node].reset();
        if (word[0] == 'm') expect_read(node, file_of(1, 0));
      }
    }
  }
  // As a task of that node does, in a thread of its own.
  std::future<std::string> read_beside(NodeIndex node, const std::string& name) {
    return std::async(std::launch::async, [this, node, name] { return nodes[node]->read(name); });
  }
  // The same, by a node that waits in vain for an answer: its patience ends.
  std::string read_in_vain(NodeIndex node, const std::string& name) {
    auto content = read_beside(node, name);
    EXPECT_TRUE(nodes[node]->clock.await_waiting(1));
    nodes[node]->clock.advance_ms(patience::kPeerSilenceMs);
    return content.get();
  }
  // From now on, and until the test opens `hears`: another node has just told it something.
  void make_deaf(NodeIndex node, NodeIndex teller) {
    nodes[node]->hears.shut();
    nodes[teller]->peers->changed({kChangedFiles, 0, {1}});
    EXPECT_TRUE(nodes[node]->hears.await_waiting(1));
  }
  // All these nodes read all files, each in an order of its own, and see what is on the PFS.
  void epoch(const std::vector<NodeIndex>& who) {
    Threads all(static_cast<uint32_t>(who.size()), [&](uint32_t i) {
      std::vector<std::string> names;
      for (const auto& [name, content] : pfs.files) names.push_back(name);
      std::shuffle(names.begin(), names.end(), std::minstd_rand(i + 1));
      for (const std::string& name : names)
        EXPECT_TRUE(nodes[who[i]]->read(name) == pfs.content(name)) << name;
    });
  }
  // The first node does, and goes on only in expect_followed().
  void begin_to_read(const std::string& name) {
    nodes[0]->reads.shut();
    reader = read_beside(0, name);
    EXPECT_TRUE(nodes[0]->reads.await_waiting(1));
  }
  // All these get it from the first node.
  void expect_followed(const std::string& name, const std::vector<NodeIndex>& by) {
    std::vector<std::future<std::string>> followers;
    for (const NodeIndex node : by) followers.push_back(read_beside(node, name));
    EXPECT_TRUE(eventually([&] { return nodes[0]->followers == static_cast<int>(by.size()); }));
    nodes[0]->reads.open();
    for (auto& follower : followers) EXPECT_TRUE(follower.get() == pfs.content(name));
    EXPECT_TRUE(reader.get() == pfs.content(name));
  }
  // A file whose home and deputy are these.
  std::string file_of(NodeIndex home, std::optional<NodeIndex> deputy = {}) const {
    for (const auto& [name, content] : pfs.files)
      if (home_of(file_key(0, name), kNodes) == home && name != "f0" &&
          (!deputy || deputy_of(file_key(0, name), kNodes) == *deputy))
        return name;
    ADD_FAILURE() << "no file of node " << home;
    return "f1";
  }

  Pfs pfs;
  const PeerTls tls = make_tls();
  ControlOptions options;
  std::unique_ptr<Node> nodes[kNodes];
  std::future<std::string> reader;
};

TEST_F(PeersTest, WhoeverComesOrGoesAFileIsReadOnce) {
  struct Case {
    const char *first, *then;
    int more = 0;  // that each was about to ask for who is not there
  };
  for (const Case& c : {Case{"+012 r012", "+3 r3", 3},   // a home comes late, and is told
                        {"+012 r0", "+3 r123"},          // it asks for what it has not heard
                        {"+0123 r0", "-3 +3 r123"},      // it comes anew
                        {"+0123 r0", "-3 r12 +3 r3"},    // its deputies keep what it knew
                        {"+0123 r0123", "-3 +3 r3"}}) {  // it held what others hold, too
    SCOPED_TRACE(std::string(c.first) + ", " + c.then);
    pfs.reads = 0;
    act(c.first);
    const int reads = pfs.reads;
    EXPECT_TRUE(reads >= kFiles && reads <= kFiles + c.more) << reads;
    act(c.then);
    EXPECT_EQ(pfs.reads, reads);
    act("-0123");
  }
}

TEST_F(PeersTest, WhoComesWhileAFileIsReadFollows) {
  struct Case {
    const char* there;
    NodeIndex home, deputy;
    const char* then;
    std::vector<NodeIndex> follow;
    int reads = 1;
  };
  for (const Case& c :
       {Case{"+0123", 1, 2, "", {1, 2, 3}},
        {"+0123", 3, 2, "-3", {1}},         // the deputy knows
        {"+02", 1, 2, "+1", {1}},           // the home asks
        {"+0", 1, 2, "+12 m1", {1}, 2}}) {  // nobody told it to read: it tells the home once met
    SCOPED_TRACE(std::string(c.there) + ", " + c.then);
    pfs.reads = 0;
    act(c.there);
    const std::string name = file_of(c.home, c.deputy);
    begin_to_read(name);
    act(c.then);
    expect_followed(name, c.follow);
    EXPECT_EQ(pfs.reads, c.reads);
    act("-0123");
  }
}

TEST_F(PeersTest, WhoSendsWrongBytesAgainAndAgainIsNotAsked) {
  start_all();
  int spoilt = 0;
  for (const auto& [name, content] : pfs.files) {
    if (name == "f0" || spoilt == 6) continue;
    expect_read(0, name);
    nodes[0]->spoil(name);
    ++spoilt;
    expect_read(2, name);
  }
  EXPECT_EQ(nodes[2]->peers->counts().wrong, 3u);
}

// A node that has the key, and says what none does.
class BadNodeTest : public PeersTest, public ControlHandler {
 protected:
  static constexpr NodeIndex kBad = 3;
  void SetUp() override {
    PeersTest::SetUp();
    come(1);
  }
  std::string message(NodeIndex, const MessageHeader& header, std::string_view body) override {
    heard.add(header, body);
    const std::lock_guard hold(lock);
    if (header.type == MessageType::kWant || header.type == MessageType::kWalk) {
      thinks.pass();
      return says;
    }
    const std::optional<Gather> gather = decode<Gather>(body);
    if (header.type != MessageType::kGather || !gather) return "";
    return encode(Gathered{gather->share, 1, gather->from, gather->from, 1, 0, {}, {}});
  }
  int wanted() { return static_cast<int>(heard.count<Want>()); }
  void TearDown() override { bad.reset(); }
  // The first node has heard all that it was told before.
  bool is_heard() { return bad->ask(0, encode(Ping()), kPatienceMs).ok(); }
  // Tells the first node, which has heard it then.
  void tell(const std::string& message) {
    EXPECT_TRUE(eventually([&] { return is_heard(); }));
    bad->tell(0, message);
    EXPECT_TRUE(is_heard());
  }
  // The first node leaves it alone from then on.
  void say_nonsense() {
    for (int i = 0; i < Members::kMostWrong; ++i) tell(encode(Told{1, {ToldFile()}}));
  }
  // Where the first node is to have a file from.
  Peers::Route locate(const FileKey& key) { return nodes[0]->peers->locate(key); }
  // What it is told by the first node of what that holds.
  Gathered gather() {
    const auto of_share = [this] {
      std::vector<Gathered> all = heard.all<Gathered>();
      std::erase_if(all, [](const Gathered& one) { return one.share != kBad; });
      return all;
    };
    const size_t before = of_share().size();
    bad->tell(0, encode(Gather{kBad, 0, 0, 0}));
    EXPECT_TRUE(eventually([&] { return of_share().size() > before; }));
    return of_share().back();
  }
  // It is there anew, or another connection of the same one is.
  void come(uint64_t incarnation) {
    bad.reset();
    ControlOptions bad_options = options;
    bad_options.hello.node = kBad;
    bad_options.hello.incarnation = incarnation;
    bad = std::make_unique<Control>(bad_options, this, still);
    ASSERT_TRUE(bad->start().ok());
  }
  void say(const std::string& message) {
    const std::lock_guard hold(lock);
    says = message;
  }
  // What the first node answers to who wants that file.
  MessageType answer_for(const FileKey& key) {
    MessageType type = MessageType::kLater;
    EXPECT_TRUE(eventually([&] {
      const Result<Reply> reply = bad->ask(0, encode(Want{key}), kPatienceMs);
      if (reply.ok()) type = reply->header.type;
      return type != MessageType::kLater;
    }));
    return type;
  }
  Sayings heard;
  Gate thinks;  // before it says where a file is
  std::mutex lock;
  std::string says = encode(Pass());  // to who wants a file, or asks of its walk
  ManualClock still;                  // which nobody moves: it waits for as long as it takes
  std::unique_ptr<Control> bad;
};

TEST_F(BadNodeTest, AHomeHearsFromItsDeputyWhatIsHeldUnlessItIsLeftAlone) {
  const FileKey key = file_key(0, file_of(kBad, 0));
  const std::string held = encode(Done{key, 0, ReadResult::kHeld, {1, 2, 3, 4, 5}});
  start(0);
  tell(encode(Done{key, 0, ReadResult::kNotHeld, {}}));
  EXPECT_EQ(heard.count<Announce>(), 0u);
  tell(held);
  ASSERT_EQ(heard.count<Announce>(), 1u);
  const HeldFile file = heard.all<Announce>()[0].file;
  EXPECT_EQ(file.key, key);
  EXPECT_EQ(file.holder, kBad);
  say_nonsense();
  EXPECT_EQ(gather().earlier, 0);
  tell(held);
  EXPECT_EQ(gather().earlier, 1) << "it has missed that";
  EXPECT_EQ(heard.count<Announce>(), 1u);
}

TEST_F(BadNodeTest, WhatANodeCanKnowIsEntered) {
  const FileKey own = file_key(0, file_of(0, 1)), of_deputy = file_key(0, file_of(kBad, 0)),
                others = file_key(0, file_of(1, 2));
  const FileIdentity identity = {1, 2, 3, 4, 5};
  const std::tuple<std::string, FileKey, MessageType> sayings[] = {
      {encode(Announce{{own, 1, identity}}), own, MessageType::kHave},
      {encode(Announce{{of_deputy, 1, identity}}), of_deputy, MessageType::kHave},
      {encode(Reading{{own, 1, 7}}), own, MessageType::kBusy},
      // There is no such node.
      {encode(Announce{{own, kNodes, identity}}), own, MessageType::kRead},
      {encode(Reading{{own, kNodes, 7}}), own, MessageType::kRead},
      // It says that of another node.
      {encode(Gathered{0, 1, 0, 1, 1, 0, {{own, 2, identity}}, {}}), own, MessageType::kRead},
      {encode(Gathered{0, 1, 0, 1, 1, 0, {}, {{own, 2, 7}}}), own, MessageType::kRead},
      // That is no file of the first node's.
      {encode(Announce{{others, 1, identity}}), others, MessageType::kRead},
      {encode(Reading{{others, 1, 7}}), others, MessageType::kRead},
      {encode(Done{others, 0, ReadResult::kHeld, identity}), others, MessageType::kRead},
      {encode(Gathered{1, 1, 0, 1, 1, 0, {{others, kBad, identity}}, {}}), others, MessageType::kRead},
      {encode(Gathered{0, 1, 0, 1, 1, 0, {{others, kBad, identity}}, {}}), others, MessageType::kRead}};
  int n = 0;
  for (const auto& [said, key, answer] : sayings) {
    SCOPED_TRACE(n++);
    start(0);
    tell(said);
    EXPECT_EQ(answer_for(key), answer);
    nodes[0].reset();
  }
}

TEST_F(BadNodeTest, AnAnswerThatTakesFourSecondsIsTaken) {
  std::atomic<uint64_t> waits{0};
  options.waits = &waits;
  start(0);
  thinks.shut();
  auto route = std::async(std::launch::async, [&] { return locate(file_key(0, file_of(kBad, 1))); });
  EXPECT_TRUE(eventually([&] { return wanted() == 1; }) && nodes[0]->clock.await_waiting(1));
  nodes[0]->clock.advance_ms(4000);
  EXPECT_TRUE(eventually([&] { return waits == 1; })) << "tasks see that";
  thinks.open();
  EXPECT_EQ(route.get().how, Peers::Route::How::kPass);
  EXPECT_EQ(nodes[0]->peers->counts().timeouts, 0u);
  nodes[0].reset();
}

TEST_F(BadNodeTest, WhatNobodySendsIsReadHereOnceTwoWereTried) {
  using Nodes = std::vector<NodeIndex>;
  const Nodes silent = {1, 2, kBad}, none = {0, kNodes};  // this one, and one that there is not
  for (const Nodes& holders : {silent, none}) {
    say(encode(Have{holders, {1, 2, 3, 4, 5}}));
    start(0);
    expect_read(0, file_of(kBad, 1));
    EXPECT_EQ(nodes[0]->peers->counts().errors, holders == silent ? 2u : 0u);
    nodes[0].reset();
  }
}

// What the home says counts.
TEST_F(BadNodeTest, AnotherFileThanTheHomeSaysIsNotTaken) {
  says = encode(Read{7});
  start(0);
  const std::string name = file_of(kBad, 2);
  for (const NodeIndex holder : {1u, 2u}) {
    start(holder);
    expect_read(holder, name);
  }
  FileIdentity identity = pfs.identity(name);
  identity.check = 12345;
  for (const Fetched how : {Fetched::kWrong, Fetched::kRefused}) {
    identity.mtime_ns += how == Fetched::kWrong ? 0 : 1;
    say(encode(Have{{1, 2}, identity}));
    const int before = pfs.reads;
    expect_read(0, name);
    EXPECT_EQ(pfs.reads, before + 1);
    nodes[0]->forget(name);
    EXPECT_EQ(nodes[0]->fetched.load(), how) << "nor does the other one make it right";
  }
  EXPECT_EQ(nodes[0]->peers->counts().wrong, 1u);
}

TEST_F(BadNodeTest, WhoPutsOffForLongerThanAnybodyWaitsIsLeft) {
  says = encode(Later());
  start(0);
  ManualClock& clock = nodes[0]->clock;
  clock.hold_sleeps();
  auto route = std::async(std::launch::async, [&] { return locate(file_key(0, file_of(kBad, 1))); });
  for (int64_t nap = 0; wanted() < 5;) {
    EXPECT_TRUE(clock.await_sleeping(1));
    EXPECT_GT(clock.next_ns() - clock.now_ns(), std::exchange(nap, clock.next_ns() - clock.now_ns()))
        << "it asks ever less often";
    const int before = wanted();
    clock.advance_to_next();
    EXPECT_TRUE(eventually([&] { return wanted() == before + 1; }));
  }
  EXPECT_TRUE(clock.await_sleeping(1));
  clock.advance_ms(patience::kPeerSilenceMs);
  EXPECT_EQ(route.get().how, Peers::Route::How::kRead);
  EXPECT_EQ(wanted(), 6) << "once more, and it is not put off then";
  EXPECT_EQ(nodes[0]->peers->counts().alone, 1u);
}

TEST_F(BadNodeTest, AHomeHearsOfTheLeasesThatItsDeputyGives) {
  const FileKey key = file_key(0, file_of(kBad, 0));
  start(0);
  EXPECT_EQ(answer_for(key), MessageType::kRead);
  EXPECT_TRUE(eventually([&] {
    const std::vector<Reading> all = heard.all<Reading>();
    if (all.empty()) return false;
    const FileInReading read = all[0].file;
    return read.key == key && read.reader == kBad && read.lease != 0;
  }));
}

TEST_F(BadNodeTest, WhoAnswersNonsenseAgainAndAgainIsNotAsked) {
  const std::string nonsense[] = {encode_message({MessageType::kRead}, "?"), encode(List()),
                                  encode_message({MessageType::kHave}, encode_body(List()))};
  for (const std::string& answer : nonsense) {
    SCOPED_TRACE(&answer - nonsense);
    const bool walks = &answer == &nonsense[2];
    say(answer);
    heard.forget();
    start(0);
    const std::string name = file_of(kBad, 1);
    for (int i = 0; i < 2 * Members::kMostWrong; ++i) {
      if (walks)
        EXPECT_FALSE(nodes[0]->peers->ask_walk(kBad, Walk()).ok());
      else
        EXPECT_EQ(locate(file_key(0, name)).how, Peers::Route::How::kRead);
    }
    EXPECT_EQ(heard.count<Want>() + heard.count<Walk>(), static_cast<size_t>(Members::kMostWrong));
    nodes[0].reset();
  }
}

TEST_F(BadNodeTest, WhoSaysNonsenseAgainAndAgainIsNotAsked) {
  const std::string name = file_of(kBad, 1);
  const FileKey key = file_key(0, file_of(0, 1));
  const std::pair<std::string, bool> sayings[] = {
      {encode(Announce()), true},
      {encode(Told{1, {}}), true},
      {encode(Told{1, {ToldFile()}}), false},
      {encode_message({MessageType::kWant}, "?"), false},
      {encode_message({MessageType::kMark}, "?"), false},
      {encode(Gathered{0, 1, 0, 1, 1, 0, {{key, 2, {}}}, {}}), false},
      {encode(Gathered{0, 1, 0, 1, 1, 0, {}, {{key, 2, 7}}}), false},
      {encode(Gathered{2, 1, 0, 1, 1, 0, {}, {}}), false}};  // nobody has asked for it
  start(1);
  for (const auto& [said, is_sense] : sayings) {
    SCOPED_TRACE(static_cast<int>(decode_header(said)->type));
    start(0);
    for (int i = 0; i < Members::kMostWrong; ++i) tell(said);
    heard.forget();
    expect_read(0, name);
    EXPECT_EQ(wanted(), is_sense ? 1 : 0);
    nodes[0].reset();
  }
}

TEST_F(PeersTest, ANodeThatHangsIsNotWaitedForLong) {
  start_all();
  const std::string name = file_of(1, 2), other = file_of(1, 3);
  expect_read(0, name);
  make_deaf(1, 3);
  for (const NodeIndex node : {0u, 2u}) EXPECT_TRUE(read_in_vain(node, other) == pfs.content(other));
  EXPECT_EQ(pfs.reads, 2) << "the deputy knows of it";
  EXPECT_EQ(nodes[0]->peers->counts().timeouts, 1u);
  EXPECT_EQ(nodes[2]->peers->counts().timeouts, 1u);
}

// Nobody hangs up on a home that hangs for a moment: what its deputies could not tell it meanwhile it asks
// for.
TEST_F(PeersTest, AHomeThatHungForAMomentHearsOfWhatItMissed) {
  start_all();
  std::vector<std::string> names;
  for (const auto& [name, content] : pfs.files)
    if (home_of(file_key(0, name), kNodes) == 1 && deputy_of(file_key(0, name), kNodes) == 2)
      names.push_back(name);
  expect_read(3, names.at(0));  // "the home has heard its deputy"
  for (const NodeIndex node : {0u, 2u}) ASSERT_TRUE(nodes[node]->peers->ask_walk(1, Walk()).ok());
  make_deaf(1, 3);
  // Of the first one of each it was asked itself.
  for (const auto& [node, n] : {std::pair(2u, 1u), {0u, 3u}}) {
    EXPECT_TRUE(read_in_vain(node, names.at(n)) == pfs.content(names.at(n)));
    expect_read(node, names.at(n + 1));
  }
  EXPECT_EQ(pfs.reads, 5);
  EXPECT_EQ(nodes[2]->peers->counts().timeouts, 1u) << "the deputy leaves it alone";
  nodes[1]->hears.open();
  for (const NodeIndex node : {0u, 2u})
    EXPECT_TRUE(eventually([&] { return nodes[node]->peers->ask_walk(1, Walk()).ok(); }));
  for (const size_t n : {1u, 2u, 3u, 4u}) expect_read(3, names.at(n));
  EXPECT_EQ(pfs.reads, 5);
}

// The answers of who is asked may take longer than any task waits. Then one reads, not each.
TEST_F(PeersTest, WhoHasWaitedForLongEnoughIsToldWhatIsKnown) {
  for (const NodeIndex node : {0u, 2u, 3u}) start(node);
  const std::string name = file_of(1, 3);
  ASSERT_TRUE(nodes[2]->peers->ask_walk(3, Walk()).ok());
  ASSERT_TRUE(nodes[0]->peers->ask_walk(3, Walk()).ok());
  start(1);
  ASSERT_TRUE(nodes[0]->peers->ask_walk(1, Walk()).ok());
  ASSERT_TRUE(nodes[2]->peers->ask_walk(1, Walk()).ok());
  ASSERT_TRUE(nodes[3]->peers->ask_walk(1, Walk()).ok());
  make_deaf(3, 0);
  nodes[0]->reads.shut();
  std::vector<std::future<std::string>> both;
  for (const NodeIndex node : {0u, 2u}) {
    nodes[node]->clock.hold_sleeps();
    both.push_back(read_beside(node, name));
    EXPECT_TRUE(nodes[node]->clock.await_sleeping(1)) << "it is put off";
  }
  nodes[0]->clock.advance_ms(patience::kPeerSilenceMs);
  EXPECT_TRUE(nodes[0]->reads.await_waiting(1));
  nodes[2]->clock.advance_ms(patience::kPeerSilenceMs);
  EXPECT_TRUE(eventually([&] { return nodes[0]->followers == 1; }));
  nodes[0]->reads.open();
  for (auto& content : both) EXPECT_TRUE(content.get() == pfs.content(name));
  EXPECT_EQ(pfs.reads, 1);
  EXPECT_EQ(nodes[0]->peers->counts().alone + nodes[2]->peers->counts().alone, 0u);
}

}  // namespace
}  // namespace monarch
