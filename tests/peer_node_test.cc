// SPDX-License-Identifier: Apache-2.0
// The agents of several nodes, here in one process, each with its tier, catalog and board: a file is read
// once on the PFS, whichever of them needs it, and each node has it as it is there.
#include "runtime/peer/node.h"

#include <set>
#include <tuple>

#include "runtime/base/patience.h"
#include "runtime/metadata/walker.h"
#include "runtime/peer/directory.h"
#include "runtime/peer/key.h"
#include "runtime/placement/placement.h"
#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/logged.h"
#include "tests/manual_clock.h"
#include "tests/peer_fixture.h"

namespace monarch {
namespace {

// A node of the job: all of its agent but the requests.
class Member {
 public:
  Member(const std::string& pfs, const PeerNodeOptions& job, AgentConfig config, uint64_t quota,
         ManualClock* clock)
      : clock_(clock),
        config_(std::move(config)),
        rates_(config_),
        parts_(scratch_, pfs, quota,
               {config_.stage_wait_max, 0, false, config_.metadata == AgentConfig::Metadata::kServe}),
        source_(parts_.catalog.get(), &*parts_.dataset, board(), &rates_) {
    Result<std::unique_ptr<PeerNode>> node = PeerNode::create(
        job, config_, {parts_.catalog.get(), &*parts_.hierarchy, &*parts_.dataset, board(), &source_},
        *clock_);
    EXPECT_TRUE(node.ok());
    peers = node.take();
    placement = std::make_unique<PlacementHandler>(parts_.catalog.get(), &*parts_.hierarchy, &*parts_.dataset,
                                                   board(), config_, &rates_, peers->source());
    EXPECT_TRUE(placement->start().ok());
    const Status started =
        peers->start({[this](const RelPath& path, uint32_t piece) { placement->demand_chunk(path, piece); },
                      [this](Ref ref, Fd copy) { placement->withdraw(ref, std::move(copy)); }});
    EXPECT_TRUE(started.ok()) << started.error().text;
  }
  ~Member() {
    peers->stop();
    walker_.reset();
    placement->stop();
  }
  // As an agent does at its end, but for as long as it takes.
  void account(int64_t patience_ns) { peers->account(clock_->now_ns() + patience_ns); }
  // As if it was found in a walk.
  void find(const std::string& path) {
    EXPECT_NE(parts_.catalog->add(rel(path), DT_REG), 0u);
    placement->catalog_grew();
  }
  void walk() {
    walker_ = std::make_unique<Walker>(parts_.catalog.get(), &*parts_.dataset, board(), &rates_.pfs_stats,
                                       [this] { placement->catalog_grew(); });
    peers->walk(walker_.get(), 2);
  }

  uint64_t word(const std::string& path) const {
    const Found found = reader().find(rel(path));
    return found ? found.entry->state.load(std::memory_order_acquire) : 0;
  }
  State state(const std::string& path) const { return state_of(word(path)); }
  // As a task's open does; whether the file is placed then. Time passes no faster than it does: two nodes may
  // have missed each other as they began.
  bool place(const std::string& path) {
    placement->demand(rel(path));
    return eventually([&, polls = 0]() mutable {
      if (++polls % 50 == 0) clock_->advance_ms(50);
      if (state(path) == State::kLarge) placement->demand(rel(path));  // the whole of it
      return state(path) == State::kPlaced;
    });
  }
  std::string copy(const std::string& path) {
    return path_of_copy(parts_.tier(), reader().find(rel(path)).ref);
  }
  // Whether another node has told what the PFS says of the file.
  bool is_told(const std::string& path) const {
    const Found found = reader().find(rel(path));
    return found && reader().seen_file(*found.entry) != nullptr;
  }
  const CatalogReader& reader() const { return parts_.catalog->reader(); }
  uint64_t counter(AgentCounter c) const { return parts_.counter(c); }
  Board* board() const { return parts_.board(); }
  int files() { return files_on(parts_.tier()); }
  uint64_t used() { return parts_.tier().used(); }

  std::unique_ptr<PeerNode> peers;
  std::unique_ptr<PlacementHandler> placement;

 private:
  ManualClock* const clock_;
  const Scratch scratch_;
  const AgentConfig config_;
  Rates rates_;
  AgentParts parts_;
  PfsSource source_;
  std::unique_ptr<Walker> walker_;
};

class PeerNodeTest : public PeerTest {
 protected:
  void SetUp() override {
    ::signal(SIGIO, SIG_IGN);  // as the agent does
    clock_.end_sleeps();
    config_.threads = 6;
    config_.prefetch = AgentConfig::Prefetch::kOff;
  }
  void file(const std::string& name, uint64_t bytes) {
    scratch_.file("pfs/" + name, noise(bytes, std::hash<std::string>()(name)));
    names_.push_back(name);
    bytes_ += bytes;
  }
  void small_files() {
    scratch_.dir("pfs/d");
    for (int i = 0; i < 60; ++i)
      file((i % 2 ? "d/" : "") + std::to_string(i), static_cast<uint64_t>(i) * 4001);
    file("three", 3 * kMiB + 5);
  }
  void start(uint32_t nodes) {
    job_.nodes = nodes_here(nodes);
    job_.identity = "c.1.0";
    for (uint32_t i = 0; i < nodes; ++i) start_one(i);
  }
  void start_one(NodeIndex own) {
    job_.own = own;
    if (nodes_.size() <= own) nodes_.resize(own + 1);
    nodes_[own] = std::make_unique<Member>(pfs_, job_, config_, quota_, &clock_);
  }
  // All these nodes place all files, each in an order of its own.
  void epoch(const std::vector<NodeIndex>& who) {
    Threads all(static_cast<uint32_t>(who.size()), [&](uint32_t i) {
      std::vector<std::string> names = names_;
      std::shuffle(names.begin(), names.end(), std::minstd_rand(i + 1));
      for (const std::string& name : names) EXPECT_TRUE(nodes_[who[i]]->place(name)) << name;
    });
  }
  void expect_right(NodeIndex node) {
    for (const std::string& name : names_)
      EXPECT_TRUE(contents(nodes_[node]->copy(name)) == contents(pfs_ + "/" + name)) << name;
  }
  // A byte of the node's copy is another one then.
  void rot(NodeIndex node, const std::string& name) { overwrite(nodes_[node]->copy(name), "?", kMiB + 3); }
  void link_to(const std::string& name, const std::string& other) {
    std::filesystem::create_hard_link(pfs_ + "/" + name, pfs_ + "/" + other);
  }
  struct stat pfs_stat(const std::string& name) const {
    return stat_of(pfs_ + "/" + name);
  }
  bool settles(NodeIndex node, const std::string& name, State state) {
    return eventually([&] { return nodes_[node]->state(name) == state; });
  }
  // As time passes: seldom enough for what has begun to end before.
  bool eventually_later(const std::function<bool()>& condition, int step_ms = patience::kPeerRestMs) {
    int polls = 0;
    return eventually([&] {
      if (++polls % 50 == 0) clock_.advance_ms(step_ms);
      return condition();
    });
  }
  bool is_told(NodeIndex node, const std::string& name) {
    return eventually_later([&] { return nodes_[node]->is_told(name); }, patience::kPeerLookMs);
  }
  // All that it has told the other one before is known there.
  void sync(NodeIndex from, NodeIndex to) {
    const uint32_t mark = rel("no file of the job, " + std::to_string(++syncs_)).hash;
    set_invalid(nodes_[from]->board(), mark);
    nodes_[from]->peers->tell_changes();
    EXPECT_TRUE(eventually([&] { return is_invalid(*nodes_[to]->board(), mark); }));
  }
  uint64_t sum(AgentCounter c) {
    uint64_t all = 0;
    for (const auto& node : nodes_) all += node ? node->counter(c) : 0;
    return all;
  }

  ManualClock clock_;  // in which sleeps end, and no time passes unless a test moves it
  int syncs_ = 0;
  const Scratch scratch_;
  const std::string pfs_ = scratch_.dir("pfs");
  AgentConfig config_;
  uint64_t quota_ = 1 << 30;
  PeerNodeOptions job_;
  std::vector<std::string> names_;
  uint64_t bytes_ = 0;
  std::vector<std::unique_ptr<Member>> nodes_;
};

TEST_F(PeerNodeTest, EachPrefetchesItsShare) {
  const LaterBy quiet(3 * 86400);
  small_files();
  config_.prefetch = AgentConfig::Prefetch::kOn;
  start(3);
  for (const auto& node : nodes_) node->walk();
  EXPECT_TRUE(eventually([&] { return sum(AgentCounter::staged_files) == names_.size(); }));
  EXPECT_EQ(sum(AgentCounter::agent_bytes_pfs), bytes_);
  EXPECT_EQ(sum(AgentCounter::peer_bytes), 0u);
  EXPECT_EQ(sum(AgentCounter::walk_dirs), 2u) << "one node reads the directories for all";
  for (const auto& node : nodes_) EXPECT_GT(node->counter(AgentCounter::staged_files), 0u);
  epoch({0, 1, 2});
  EXPECT_EQ(sum(AgentCounter::agent_bytes_pfs), bytes_);
  for (const NodeIndex node : {0u, 1u, 2u}) expect_right(node);
}

TEST_F(PeerNodeTest, TheNamesOfOneFileAreReadOnce) {
  file("a", 3 * kMiB + 5);
  for (const char* name : {"b", "c"}) {
    link_to("a", name);
    names_.emplace_back(name);
  }
  start(3);
  for (const NodeIndex node : {0u, 1u, 2u}) EXPECT_TRUE(nodes_[node]->place(names_[node]));
  EXPECT_EQ(sum(AgentCounter::agent_bytes_pfs), bytes_);
  EXPECT_EQ(sum(AgentCounter::peer_bytes), 2 * bytes_);
  epoch({2, 0, 1});
  EXPECT_EQ(sum(AgentCounter::agent_bytes_pfs), bytes_);
  for (const NodeIndex node : {0u, 1u, 2u}) expect_right(node);
}

// How often a file of this name is opened or looked at on the PFS.
class Asked {
 public:
  explicit Asked(const std::string& name) : name_(name) {}
  int times() const { return times_; }

 private:
  const std::string name_;
  std::atomic<int> times_{0};
  const Intercept opens_{Call::kOpenBeneath, [this](Arguments& a) { times_ += a.path && name_ == a.path; }};
};

TEST_F(PeerNodeTest, OneNodeAsksThePfsForAll) {
  config_.stage_wait_max = kMiB;
  file("f", 100000);
  file("empty", 0);
  file("large", 2 * kMiB + 3);
  start(3);
  for (const std::string& name : names_) {
    EXPECT_TRUE(nodes_[0]->place(name));
    for (const NodeIndex node : {1u, 2u}) ASSERT_TRUE(is_told(node, name));
    const Asked asked(name);
    for (const NodeIndex node : {1u, 2u}) EXPECT_TRUE(nodes_[node]->place(name));
    EXPECT_EQ(asked.times(), 0) << name;
  }
  EXPECT_EQ(sum(AgentCounter::agent_opens_pfs), 3u);
  for (const NodeIndex node : {0u, 1u, 2u}) expect_right(node);
  nodes_[2].reset();
  start_one(2);
  nodes_[2]->peers->tell_changes();
  EXPECT_TRUE(nodes_[2]->place("f"));
  for (const char* name : {"large", "empty"}) EXPECT_TRUE(is_told(2, name)) << "who comes late is told all";
}

TEST_F(PeerNodeTest, WhoEndsClosesNoOtherNodesBoard) {
  start(3);
  for (const auto& [says, closed] : {std::pair(kEnding, kServes), {kRootChanged, kRootChanged}}) {
    nodes_[1]->board()->header.closed = says;
    for (const NodeIndex node : {0u, 2u}) {
      for (int i = 0; i < 2; ++i) sync(1, node);  // then all of the first one has been entered
      EXPECT_EQ(nodes_[node]->board()->header.closed, closed) << node;
    }
  }
}

TEST_F(PeerNodeTest, WhoIsGoneIsNotHeardUntilAllIsTold) {
  file("f", 100000);
  file("g", 100000);
  start(3);
  epoch({0, 1});
  const auto unheard = [&](NodeIndex node) { return nodes_[node]->board()->header.unheard.load(); };
  EXPECT_TRUE(eventually([&] { return unheard(0) == 0 && unheard(1) == 0; }))
      << "what was not met is not gone";
  nodes_[1].reset();
  EXPECT_TRUE(eventually([&] { return unheard(0) == 1; }));
  start_one(1);
  set_invalid(nodes_[1]->board(), rel("f").hash);
  EXPECT_TRUE(eventually_later([&] {
    nodes_[0]->peers->tell_changes();
    return unheard(0) == 0;
  })) << "it is looked for, though nothing is to be told";
}

TEST_F(PeerNodeTest, AMarkedFileIsNotSent) {
  for (const char* name : {"by/its/path", "by/its/inode", "by/other"}) file(name, 100000);
  link_to("by/other", "name");
  start(2);
  for (const std::string& name : names_) EXPECT_TRUE(nodes_[0]->place(name));
  for (const char* name : {"by/its/path", "by/other"}) set_invalid(nodes_[0]->board(), rel(name).hash);
  set_invalid(nodes_[0]->board(), mark_of_inode(pfs_stat("by/its/inode").st_ino), kChangedInodes);
  names_.back() = "name";
  for (const std::string& name : names_) EXPECT_TRUE(nodes_[1]->place(name));
  EXPECT_EQ(sum(AgentCounter::peer_bytes), 0u);
  EXPECT_EQ(nodes_[1]->counter(AgentCounter::agent_bytes_pfs), bytes_);
  EXPECT_EQ(sum(AgentCounter::dup_files), 0u) << "no node had it as it is";
}

TEST_F(PeerNodeTest, ACopyThatHasRottenIsFoundOut) {
  file("f", 2 * kMiB + 7);
  start(3);
  EXPECT_TRUE(nodes_[0]->place("f"));
  rot(0, "f");
  for (const NodeIndex node : {1u, 2u}) {
    EXPECT_TRUE(nodes_[node]->place("f"));
    EXPECT_TRUE(contents(nodes_[node]->copy("f")) == contents(pfs_ + "/f"));
  }
  EXPECT_EQ(sum(AgentCounter::agent_bytes_pfs), 2 * bytes_) << "once more, by one node";
  EXPECT_EQ(sum(AgentCounter::dup_files), 0u) << "no node had it any more";
  for (const auto& node : nodes_) node->account(0);
  EXPECT_EQ(sum(AgentCounter::peer_bad), 1u);
}

// Whichever of its names leads to the copy.
TEST_F(PeerNodeTest, ARottenCopyIsFoundByNoneOfItsNames) {
  constexpr NodeIndex kHome = 1;
  do {  // a file of that home, by its inode
    file("x" + std::to_string(names_.size()), 2 * kMiB + 7);
  } while (home_of(key_of_inode(0, pfs_stat(names_.back()).st_ino), 3) != kHome);
  for (const char* name : {"f", "g", "h"}) link_to(names_.back(), name);
  start(3);
  for (const char* name : {"f", "g"}) EXPECT_TRUE(nodes_[0]->place(name));
  rot(0, "f");
  EXPECT_TRUE(nodes_[kHome]->place("f"));
  for (const NodeIndex node : {0u, 2u}) sync(kHome, node);  // it has told what it got
  // Its deputy hears of all copies that there are.
  nodes_[kHome].reset();
  EXPECT_TRUE(nodes_[2]->place("f"));
  for (const char* name : {"f", "g"}) EXPECT_TRUE(settles(0, name, State::kNoFit)) << name;
  EXPECT_TRUE(eventually([&] { return nodes_[0]->used() == 0; }));
  EXPECT_EQ(tier_totals(*nodes_[0]->board(), 0).placed_bytes, 0u);
  EXPECT_EQ(nodes_[0]->files(), 0);
  EXPECT_TRUE(nodes_[0]->place("h"));
  EXPECT_TRUE(contents(nodes_[0]->copy("h")) == contents(pfs_ + "/f"));
}

// Whatever becomes of the connections: the reader is there, and its home says so.
TEST_F(PeerNodeTest, WhoFollowsAReaderDoesNotGiveUpBeforeItsLeaseEnds) {
  config_.threads = 1;
  file("f", 4 * kMiB + 5);
  start(3);
  std::atomic<int> reads{0}, broken{0};
  const Intercept slow(Call::kPread, [&](Arguments& call) {
    if (call.bytes < 5) return 0;
    if (++reads == 2) (void)eventually([&] { return broken >= 8; });
    return 0;
  });
  const Intercept piece_by_piece(Call::kUringSubmit, ENOMEM);
  const Intercept breaks(Call::kSendfile, [&](Arguments&) { return broken++ < 8 ? EIO : 0; });
  nodes_[0]->placement->demand(rel("f"));
  EXPECT_TRUE(eventually([&] { return reads > 0; }));
  for (const NodeIndex node : {1u, 2u}) nodes_[node]->placement->demand(rel("f"));
  for (const auto& node : nodes_) EXPECT_TRUE(node->place("f"));
  EXPECT_GE(broken, 8);
  EXPECT_EQ(sum(AgentCounter::agent_bytes_pfs), bytes_);
  EXPECT_EQ(sum(AgentCounter::dup_files), 0u);
  for (const NodeIndex node : {0u, 1u, 2u}) expect_right(node);
}

// Who reads it finds out at the end that it has changed. Who follows, and has never looked at it, must as
// well.
TEST_F(PeerNodeTest, WhoFollowsAReaderOfAFileThatChangesHasNoMixture) {
  config_.threads = 1;
  file("f", 4 * kMiB + 5);
  start(3);
  EXPECT_TRUE(nodes_[0]->place("f"));
  for (const NodeIndex node : {1u, 2u}) ASSERT_TRUE(is_told(node, "f"));
  nodes_[0].reset();
  const std::string path = pfs_ + "/f", before = contents(path), after = noise(before.size(), 99);
  std::atomic<int> reads{0};
  std::atomic<bool> looked{false};
  const auto follows = [&](uint64_t bytes) {  // so far
    (void)eventually([&] { return nodes_[2]->counter(AgentCounter::peer_bytes) >= bytes; });
  };
  const Intercept slow(Call::kPread, [&](Arguments& call) {
    if (call.bytes < 5) return 0;
    if (++reads == 3) {
      overwrite(path, after, 0);
    }
    follows(static_cast<uint64_t>(reads - 1) * kMiB);
    return 0;
  });
  const Intercept piece_by_piece(Call::kUringSubmit, ENOMEM);
  // It sends all that it has read before it looks whether that is right.
  const Intercept late(Call::kFstat, [&](Arguments&) {
    if (reads >= 5 && !looked.exchange(true)) follows(bytes_);
  });
  nodes_[1]->placement->demand(rel("f"));
  EXPECT_TRUE(eventually([&] { return reads > 0; }));
  nodes_[2]->placement->demand(rel("f"));
  const auto is_settled = [&](NodeIndex node) {
    const State now = nodes_[node]->state("f");
    return now == State::kPlaced || now == State::kDropped;
  };
  for (const NodeIndex node : {1u, 2u}) EXPECT_TRUE(eventually([&] { return is_settled(node); }));
  for (const NodeIndex node : {1u, 2u})
    EXPECT_TRUE(nodes_[node]->state("f") == State::kDropped ||
                contents(nodes_[node]->copy("f")) == contents(path));
  EXPECT_GT(nodes_[2]->counter(AgentCounter::peer_bytes), 0u) << "it has followed";
}

// A piece takes longer than a lease at its rate: who comes meanwhile hurries the reader.
TEST_F(PeerNodeTest, WhoWaitsForItsRateIsHurried) {
  config_.prefetch = AgentConfig::Prefetch::kOn;
  config_.pfs_bandwidth = 256 << 10;
  start(2);
  std::string name = "f";
  while (home_of(file_key(0, name), 2) != 0) name += "f";
  file(name, 3 * kMiB);
  nodes_[0]->find(name);
  ASSERT_TRUE(eventually([&] { return nodes_[0]->counter(AgentCounter::agent_bytes_pfs) >= kMiB; }));
  EXPECT_TRUE(nodes_[1]->place(name));
  EXPECT_TRUE(settles(0, name, State::kPlaced));
  EXPECT_EQ(sum(AgentCounter::agent_bytes_pfs), bytes_);
  EXPECT_EQ(sum(AgentCounter::dup_files), 0u);
}

// Nobody is asked about what there is no room for: neither for the first time nor later.
TEST_F(PeerNodeTest, WithoutRoomNobodyIsAsked) {
  config_.metadata = AgentConfig::Metadata::kPass;  // else nodes tell each other what the PFS says
  quota_ = kMiB;
  const Squatter others[2];
  job_.identity = "c.1.0";
  job_.nodes = {{kLoopback, {free_port()}}, {kLoopback, {others[0].port}}, {kLoopback, {others[1].port}}};
  for (int i = 0; i < 12; ++i) file("full" + std::to_string(i), 2 * kMiB);
  file("g", 1000);
  start_one(0);
  for (int round = 0; round < 2; ++round)
    for (size_t i = 0; i < 12; ++i) {
      nodes_[0]->placement->demand(rel(names_[i]));
      EXPECT_TRUE(settles(0, names_[i], State::kNoFit));
    }
  pollfd dialled[] = {{others[0].fd.get(), POLLIN, 0}, {others[1].fd.get(), POLLIN, 0}};
  EXPECT_EQ(::poll(dialled, 2, 0), 0);
  nodes_[0]->placement->demand(rel("g"));
  EXPECT_GT(::poll(dialled, 2, kPatienceMs), 0) << "there is room for that";
}

// Where connections of this process lead to that end at this port.
std::set<std::string> addresses_at(uint16_t port) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    sockaddr_in at = {};
    socklen_t bytes = sizeof at;
    char text[INET_ADDRSTRLEN];
    if (::getpeername(std::stoi(entry.path().filename()), reinterpret_cast<sockaddr*>(&at), &bytes) == 0 &&
        at.sin_family == AF_INET && at.sin_port == htons(port))
      found.insert(::inet_ntop(AF_INET, &at.sin_addr, text, sizeof text));
  }
  return found;
}

TEST_F(PeerNodeTest, DataGoesByTheNetworkThatIsWanted) {
  file("f", 1000);
  const std::set<std::string> own = {"127.0.0.2"}, both = {"127.0.0.1", "127.0.0.2"};
  for (const auto& [host, network, where] : {std::tuple("127.0.0.2", "", own),
                                             {"127.0.0.2", "203.0.113.0/24", own},
                                             {"127.0.0.2", "127.0.0.1/32", both},
                                             {kLoopback, "127.0.0.0/8", {kLoopback}}}) {
    SCOPED_TRACE(network);
    job_ = {};
    job_.identity = "c.1.0";
    job_.network = network;
    for (int i = 0; i < 2; ++i) job_.nodes.push_back({host, {free_port()}});
    for (const NodeIndex node : {0u, 1u}) start_one(node);
    for (const auto& node : nodes_) EXPECT_TRUE(node->place("f"));
    EXPECT_EQ(sum(AgentCounter::agent_bytes_pfs), 1000u);
    std::set<std::string> found;
    for (const PeerAddress& node : job_.nodes) found.merge(addresses_at(node.ports.front()));
    EXPECT_EQ(found, where);
    nodes_.clear();
  }
}

// Nodes that do not agree do not get each other's files, and the log says why.
TEST_F(PeerNodeTest, WhoHasOtherSettingsIsToldOf) {
  file("f", 1000);
  job_.nodes = nodes_here(2);
  job_.identity = "c.1.0";
  (void)logged(scratch_, [&] {
    start_one(0);
    config_.stage_wait_max *= 2;
    start_one(1);
    EXPECT_TRUE(nodes_[0]->place("f") && nodes_[1]->place("f"));
    EXPECT_TRUE(eventually(
        [&] { return contents(scratch_ / "log").find("it has other settings") != std::string::npos; }));
    EXPECT_EQ(sum(AgentCounter::peer_bytes), 0u);
  });
}

}  // namespace
}  // namespace monarch
