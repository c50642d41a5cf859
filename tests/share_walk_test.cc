// SPDX-License-Identifier: Apache-2.0
// One walk for several nodes, here without connections: each directory is read once, all have the same, and
// whatever becomes of who walks, each comes to know all.
#include "runtime/peer/share_walk.h"

#include "runtime/base/throttle.h"
#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/gate.h"
#include "tests/listed.h"
#include "tests/manual_clock.h"
#include "tests/peer_fixture.h"

namespace monarch {
namespace {

constexpr int64_t kDays = 3 * 86400;

// A node's catalog, and what fills it.
struct Place {
  Place(const std::string& pfs, ShareWalkOptions options)
      : parts(scratch, pfs, 0, {0, 0, false, true}), share(std::move(options), clock) {
    walker = std::make_unique<Walker>(parts.catalog.get(), &*parts.dataset, parts.board(), &stats, [] {});
  }
  ~Place() {
    share.stop();
    walker->stop();
  }
  const CatalogReader& reader() const { return parts.catalog->reader(); }
  bool walked() const { return reader().walked(0); }
  uint64_t counter(AgentCounter c) const { return parts.counter(c); }
  // How much time it knows to have passed.
  int64_t passed_ms() { return clock.now_ms() - began_ms; }

  ManualClock clock;
  const int64_t began_ms = clock.now_ms();
  const Scratch scratch;
  Throttle stats{0};
  AgentParts parts;
  ShareWalk share;
  std::unique_ptr<Walker> walker;
};

// For a node time passes only by its questions: so much as those to a node that is away, or hangs, take.
class ShareWalkTest : public ::testing::Test {
 protected:
  enum class Is { kThere, kAway, kHangs, kDeaf };

  void SetUp() override {
    options_.start_ms = 100;
    options_.silence_ms = 5000;
    options_.nap_ms = 0;
  }
  void TearDown() override {
    for (const auto& node : nodes_) node->share.stop();
  }
  void tree(int directories, int files) {
    paths_ = {""};
    for (int i = 0; i < directories; ++i) {
      const std::string path = "d" + std::to_string(i % 7) + (i < 7 ? "" : "/e" + std::to_string(i));
      scratch_.dir("pfs/" + path);
      paths_.push_back(path);
      for (int j = 0; j < files; ++j) scratch_.file("pfs/" + path + "/f" + std::to_string(j), "x");
    }
  }
  // More than a part.
  void long_directory(int files) {
    const std::string long_name(150, 'n');
    for (int i = 0; i < files; ++i) scratch_.file("pfs/d1/" + long_name + std::to_string(i), "");
  }
  void make(uint32_t count) {
    options_.nodes = count;
    is_ = std::vector<std::atomic<Is>>(count);
    asked_ = std::vector<std::atomic<uint64_t>>(count * count);
    for (uint32_t i = 0; i < count; ++i) {
      is_[i] = Is::kThere;
      options_.own = i;
      options_.log = 1000 + i;
      options_.wrong = [this](NodeIndex) { ++wrong_; };
      options_.ask = [this, i, count](NodeIndex node, const Walk& question) -> Result<List> {
        ManualClock& clock = nodes_[i]->clock;
        clock.sleep_ns(1);  // the others have the processor
        if (is_[i] == Is::kHangs || is_[i] == Is::kDeaf) return Error{ETIMEDOUT, ""};
        ++asked_[i * count + node];
        switch (is_[node].load()) {
          case Is::kHangs:
            clock.advance_ms(100);
            return Error{ETIMEDOUT, ""};
          case Is::kAway:
            clock.advance_ms(away_ms_);
            return Error{ECONNREFUSED, ""};
          case Is::kDeaf:
            clock.advance_ms(50);
            break;
          case Is::kThere:
            break;
        }
        List list = nodes_[node]->share.answer(question);
        if (list.state == WalkState::kNone) clock.advance_ms(none_ms_);
        return spoil_ ? spoil_(std::move(list)) : list;
      };
      nodes_.push_back(std::make_unique<Place>(pfs_, options_));
      nodes_.back()->clock.end_sleeps();
    }
  }
  void start(NodeIndex node) { nodes_[node]->share.start(nodes_[node]->walker.get(), 2); }
  void start_all() {
    for (uint32_t i = 0; i < nodes_.size(); ++i) start(i);
  }
  void end_all() {
    TearDown();
    nodes_.clear();
  }
  uint64_t asked(NodeIndex who, NodeIndex whom) const { return asked_[who * nodes_.size() + whom]; }
  // Until each of these has heard an answer that was given since.
  void await_answers(NodeIndex first, NodeIndex last) {
    for (NodeIndex who = first; who <= last; ++who) {
      const auto asks = [&] {
        uint64_t sum = 0;
        for (NodeIndex whom = 0; whom < nodes_.size(); ++whom) sum += asked(who, whom);
        return sum;
      };
      const uint64_t before = asks();
      EXPECT_TRUE(eventually([&] { return asks() >= before + 2 || nodes_[who]->walked(); })) << who;
    }
  }
  uint64_t read() {
    uint64_t sum = 0;
    for (const auto& node : nodes_) sum += node->counter(AgentCounter::walk_dirs);
    return sum;
  }
  void expect_all(NodeIndex node) {
    SCOPED_TRACE(node);
    ASSERT_TRUE(eventually([&] { return nodes_[node]->walked(); }));
    const CatalogReader& reader = nodes_[node]->reader();
    for (const std::string& path : paths_) {
      struct stat st;
      ASSERT_EQ(::stat((pfs_ + "/" + path).c_str(), &st), 0);
      ASSERT_NE(reader.listing(rel(path)), nullptr) << path;
      EXPECT_EQ(listed(reader, rel(path)), read_directory(pfs_ + "/" + path));
      EXPECT_EQ(reader.listing(rel(path))->ino, st.st_ino);
      EXPECT_EQ(reader.listing(rel(path))->dev, st.st_dev);
    }
  }
  void expect_all() {
    for (uint32_t i = 0; i < nodes_.size(); ++i) expect_all(i);
  }

  void walk_all(uint32_t count) {
    make(count);
    start_all();
    expect_all();
  }

  const Scratch scratch_;
  const std::string pfs_ = scratch_.dir("pfs");
  const LaterBy quiet_{kDays};
  std::vector<std::string> paths_;
  std::atomic<int> away_ms_{50}, none_ms_{0};  // what a question takes to one that is away, or has no walk
  ShareWalkOptions options_;
  std::vector<std::atomic<Is>> is_;
  std::vector<std::atomic<uint64_t>> asked_;
  std::atomic<int> wrong_{0};
  std::function<List(List)> spoil_;
  std::vector<std::unique_ptr<Place>> nodes_;
};

TEST_F(ShareWalkTest, EachDirectoryIsReadOnceForAllNodes) {
  tree(60, 5);
  walk_all(12);
  EXPECT_EQ(read(), paths_.size());
  EXPECT_EQ(nodes_[0]->counter(AgentCounter::walk_dirs), paths_.size());
  for (uint32_t i = 1; i < 12; ++i) EXPECT_EQ(nodes_[i]->counter(AgentCounter::walk_files), 300u);
  // A tree: nobody is asked by more than eight, and not by himself.
  EXPECT_GT(asked(8, 0), 0u);
  EXPECT_EQ(asked(9, 0), 0u);
  EXPECT_GT(asked(9, 1), 0u);
  EXPECT_GT(asked(11, 1), 0u);
  EXPECT_EQ(asked(11, 2), 0u);
  EXPECT_EQ(asked(0, 3), 0u) << "two are asked whether they walk already";
}

// NTFS and FUSE have names of more than 255 bytes, and FUSE any type.
TEST_F(ShareWalkTest, WhatNoListCanSayIsNotTold) {
  tree(1, 0);
  make(1);
  ShareWalk& share = nodes_[0]->share;
  WalkedDirectory directory;
  for (const WalkedName& name : {WalkedName{std::string(255, 'n'), DT_REG, 1},
                                 {std::string(256, 'n'), DT_REG, 2},
                                 {"type", 14, 3},
                                 {"other type", 15, 4}}) {
    directory.names = {name};
    share.read(directory);
  }
  const List list = share.answer({});
  EXPECT_EQ(list.progress, 4u) << "it walks nevertheless";
  const std::optional<ListParts> parts = decode<ListParts>(list.parts);
  ASSERT_TRUE(parts);
  ASSERT_EQ(parts->parts.size(), 2u);
  EXPECT_EQ(parts->parts[0].names[0].inode, 1u);
  EXPECT_EQ(parts->parts[1].names[0].inode, 3u);
}

TEST_F(ShareWalkTest, TheFirstNodeMayBeLate) {
  tree(60, 5);
  long_directory(600);
  make(3);
  is_[0] = Is::kAway;
  start(1);
  start(2);
  expect_all(1);
  expect_all(2);
  EXPECT_LT(nodes_[1]->passed_ms(), options_.silence_ms)
      << "one that is not there is waited for less long than one that is silent";
  is_[0] = Is::kThere;
  start(0);
  expect_all();
  EXPECT_EQ(read(), paths_.size());
  EXPECT_EQ(nodes_[1]->counter(AgentCounter::walk_dirs), paths_.size());
}

TEST_F(ShareWalkTest, AnotherGoesOnWhereOneEndsInTheMiddle) {
  constexpr int kRead = 30;
  tree(60, 5);
  options_.silence_ms = 400;
  for (const Is is : {Is::kAway, Is::kHangs}) {
    SCOPED_TRACE(static_cast<int>(is));
    std::atomic<bool> holds{true};
    std::atomic<int> opened{0};
    Gate gate;
    gate.shut();
    const Intercept middle(Call::kFdopendir, [&](Arguments&) {
      if (holds && ++opened > kRead) gate.pass();
    });
    make(3);
    start_all();
    for (const NodeIndex node : {1u, 2u})
      ASSERT_TRUE(eventually([&] { return nodes_[node]->counter(AgentCounter::walk_files) > 2 * kRead; }));
    EXPECT_TRUE(gate.await_waiting(1));
    holds = false;
    is_[0] = is;
    expect_all(1);
    expect_all(2);
    EXPECT_GT(nodes_[1]->counter(AgentCounter::walk_dirs), 0u);
    EXPECT_LT(nodes_[1]->counter(AgentCounter::walk_dirs), paths_.size());
    EXPECT_EQ(nodes_[2]->counter(AgentCounter::walk_dirs), 0u);
    gate.open();
    end_all();
  }
}

TEST_F(ShareWalkTest, AParentThatHearsNothingOrHasNoWalkIsPassedOver) {
  tree(60, 5);
  options_.silence_ms = 1500;
  none_ms_ = 50;
  for (const Is is : {Is::kHangs, Is::kDeaf, Is::kThere}) {
    SCOPED_TRACE(static_cast<int>(is));
    make(12);
    is_[1] = is;
    for (uint32_t i = 0; i < 12; ++i)
      if (i != 1 || is != Is::kThere) start(i);  // where it is there, it does not walk
    for (const NodeIndex node : {0u, 2u, 9u, 10u, 11u}) {
      expect_all(node);
      EXPECT_EQ(nodes_[node]->counter(AgentCounter::walk_dirs), node == 0 ? paths_.size() : 0u);
    }
    EXPECT_GT(asked(9, 1), 0u);
    EXPECT_GT(asked(9, 0), 0u);
    end_all();
  }
}

// However deep in the tree a node is.
TEST_F(ShareWalkTest, AWalkThatGoesOnIsWaitedFor) {
  tree(20, 3);
  options_.silence_ms = 500;
  std::atomic<uint64_t> read{1};  // as while a long directory is being read; 0: it has been
  spoil_ = [&](List list) {
    if (list.log == 1000 && read != 0) {
      list.parts.clear();
      list.next = 0;
      list.state = WalkState::kWalks;
      list.progress = read;
    }
    return list;
  };
  make(12);
  start_all();
  for (int i = 0; i < 15; ++i) {
    ++read;
    await_answers(1, 8);
    await_answers(9, 11);
    for (const auto& node : nodes_) node->clock.advance_ms(100);
  }
  read = 0;
  expect_all();
  EXPECT_EQ(this->read(), paths_.size());
}

// As in mid-partition: none hears of another. Or no other has a walk, as where prefetch is off.
TEST_F(ShareWalkTest, WhereNobodyTellsEachReadsAll) {
  tree(20, 3);
  options_.silence_ms = 400;
  none_ms_ = 50;
  make(3);
  for (auto& is : is_) is = Is::kAway;
  start_all();
  expect_all();
  EXPECT_EQ(read(), 3 * paths_.size());
  end_all();
  make(2);
  start(1);
  expect_all(1);
}

TEST_F(ShareWalkTest, WhatALogHasNoRoomForIsReadByEach) {
  tree(20, 3);
  options_.most_log = 500;
  walk_all(2);
  EXPECT_LT(nodes_[1]->counter(AgentCounter::walk_dirs), paths_.size()) << "some were told";
  EXPECT_GT(nodes_[1]->counter(AgentCounter::walk_dirs), 0u);
  end_all();
  long_directory(300);
  options_.most_log = 30000;
  walk_all(2);
  EXPECT_EQ(nodes_[1]->counter(AgentCounter::walk_dirs), 1u) << "that one alone";
}

// A node that has the key may send what it likes; memory does not grow with it without bound.
TEST_F(ShareWalkTest, ADirectoryWithoutEndIsNotTaken) {
  tree(20, 3);
  uint64_t names = 0;
  spoil_ = [&](List list) {
    ListPart part;
    part.path = "d1";
    part.before = names;
    for (int i = 0; i < 1000; ++i) part.names.push_back({"n" + std::to_string(names++), DT_REG, 1});
    list.parts = encode_body(ListParts{{part}});
    list.state = wrong_ == 0 ? WalkState::kWalks : WalkState::kEnded;
    return list;
  };
  options_.most_log = 1 << 20;
  make(2);
  start(1);
  expect_all(1);
  EXPECT_GT(wrong_, 0);
  EXPECT_LT(names, 200000u);
}

TEST_F(ShareWalkTest, WhatIsNoListIsNotTaken) {
  tree(20, 3);
  const auto with = [](const std::function<void(ListPart*)>& change) {
    return [change](List list) {
      std::optional<ListParts> parts = decode<ListParts>(list.parts);
      if (!parts || list.parts.empty()) return list;
      for (ListPart& part : parts->parts) change(&part);
      list.parts = encode_body(*parts);
      return list;
    };
  };
  const auto with_name = [&](const std::string& name) {
    return with([name](ListPart* part) { part->names.push_back({name, DT_REG, 1}); });
  };
  const std::vector<std::function<List(List)>> spoils = {
      [](List list) {
        if (!list.parts.empty()) list.parts.pop_back();
        return list;
      },
      with([](ListPart* part) { part->path = "../" + part->path; }),
      with([](ListPart* part) { part->path = "/" + part->path; }),
      with([](ListPart* part) { part->path += std::string("\0", 1); }),
      with([](ListPart* part) { part->path.assign(kPathBytes, 'p'); }),
      with_name("a/b"),
      with_name(""),
      with_name(std::string("a\0b", 3)),
      with([](ListPart* part) { part->before = 7; }),
      with([](ListPart* part) { part->last = 0; }),  // half a directory, of which the end is lost
  };
  for (const auto& spoil : spoils) {
    SCOPED_TRACE(&spoil - spoils.data());
    wrong_ = 0;
    spoil_ = spoil;
    walk_all(2);
    EXPECT_EQ(wrong_ > 0, &spoil != &spoils.back()) << "the end may still come";
    EXPECT_EQ(nodes_[1]->counter(AgentCounter::walk_dirs), paths_.size()) << "it reads all itself";
    EXPECT_EQ(nodes_[1]->parts.catalog->header().entry_count, nodes_[0]->parts.catalog->header().entry_count);
    end_all();
  }
}

// Or two nodes that follow each other for a moment would never come to an end.
TEST_F(ShareWalkTest, WhatIsKnownIsNotToldOn) {
  tree(20, 3);
  std::atomic<int> answers{0};
  spoil_ = [&](List list) {  // as another agent at the same place would
    if (!list.parts.empty() && answers++ < 6) {
      list.log = static_cast<uint64_t>(answers.load());
      list.state = WalkState::kWalks;
    }
    return list;
  };
  make(2);
  start(0);
  expect_all(0);
  start(1);
  expect_all(1);
  EXPECT_GE(answers, 6);
  size_t told = 0;
  Walk place;
  for (List list = nodes_[1]->share.answer(place); !list.parts.empty();
       list = nodes_[1]->share.answer(place)) {
    told += decode<ListParts>(list.parts)->parts.size();
    place = {list.log, list.next};
  }
  EXPECT_EQ(told, paths_.size());
}

TEST_F(ShareWalkTest, WhatIsStoppedEnds) {
  tree(20, 3);
  options_.silence_ms = 1'000'000'000;
  options_.nap_ms = 1000;
  make(2);
  is_[0] = Is::kHangs;
  start(1);
  EXPECT_TRUE(eventually([&] { return asked(1, 0) > 0; }));
  nodes_[1]->share.stop();
  EXPECT_EQ(nodes_[1]->share.answer({}).state, WalkState::kFollows) << "it does not begin a walk";
  EXPECT_FALSE(nodes_[1]->walked());
}

}  // namespace
}  // namespace monarch
