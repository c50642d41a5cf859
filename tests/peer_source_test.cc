// SPDX-License-Identifier: Apache-2.0
// A node's source of files, between two nodes that say what a test wants, and when.
#include "runtime/peer/peer_source.h"

#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/metadata/board.h"
#include "runtime/peer/control.h"
#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/lack_of_memory.h"
#include "tests/loopback.h"
#include "tests/scratch.h"
#include "tests/tiers.h"

namespace monarch {
namespace {

constexpr int kPatienceMs = 60000;
constexpr NodeIndex kOwn = 1, kOthers[] = {0, 2};
constexpr uint64_t kMiB = kPieceBytes;

// Another node: what it was told it keeps, and what it is asked it answers once it is to.
class Other {
 public:
  Other(NodeIndex own, ControlOptions options) {
    options.hello.node = own;
    options.hello.incarnation = own + 1;
    ControlHandlers handlers;
    handlers.message = [this](NodeIndex, const MessageHeader& header, std::string_view body) -> std::string {
      const std::lock_guard hold(lock_);
      said_.push_back({header, std::string(body)});
      const std::optional<Want> want = header.type == Want::kType ? decode<Want>(body) : std::nullopt;
      const auto at = want ? answers_.find(want->key) : answers_.end();
      return at == answers_.end() ? "" : at->second;
    };
    handlers.met = [](const Hello&) {};
    handlers.gone = [](NodeIndex) {};
    handlers.unreachable = [](NodeIndex, bool) {};
    handlers.wrong = [](NodeIndex) {};
    handlers.data = [](NodeIndex, Fd, Tls) {};  // hung up on
    control = std::make_unique<Control>(std::move(options), std::move(handlers));
    EXPECT_TRUE(control->start().ok());
  }
  ~Other() { control->stop(); }

  // From now on; empty: it does not answer.
  void answers(const FileKey& key, const std::string& answer) {
    const std::lock_guard hold(lock_);
    answers_[key] = answer;
  }
  // What it was told of a kind, in its order, each with its number.
  template <typename M>
  std::vector<std::pair<uint64_t, M>> said() {
    const std::lock_guard hold(lock_);
    std::vector<std::pair<uint64_t, M>> all;
    for (const Reply& one : said_)
      if (one.header.type == M::kType) all.emplace_back(one.header.number, *decode<M>(one.body));
    return all;
  }
  int wants(const FileKey& key) {
    const auto all = said<Want>();
    return static_cast<int>(
        std::count_if(all.begin(), all.end(), [&](const auto& one) { return one.second.key == key; }));
  }
  // Answers the last question about the file.
  template <typename M>
  void answer_at_last(const FileKey& key, const M& message) {
    MessageHeader header;
    for (const auto& [number, want] : said<Want>())
      if (want.key == key) header.number = number;
    control->tell(kOwn, encode(message, header));
  }

  std::unique_ptr<Control> control;

 private:
  std::mutex lock_;
  std::vector<Reply> said_;
  std::map<FileKey, std::string> answers_;
};

class PeerSourceTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { ::signal(SIGPIPE, SIG_IGN); }
  void SetUp() override {
    const std::string pfs = scratch_.dir("pfs"), run_dir = scratch_.dir("run");
    Result<Dataset> dataset = Dataset::open({pfs});
    Result<Hierarchy> hierarchy =
        Hierarchy::open({tier_config(scratch_, "ssd", 1 << 30)}, "monarch-run.test");
    Result<BoardFile> board = BoardFile::create(run_dir);
    Result<PeerTls> tls = PeerTls::create("c.1.0", JobKey());
    ASSERT_TRUE(dataset.ok() && hierarchy.ok() && board.ok() && tls.ok());
    dataset_.emplace(dataset.take());
    hierarchy_.emplace(hierarchy.take());
    board_.emplace(board.take());
    tls_ = tls.take();
    std::vector<TierView> views;
    for (const Tier& t : hierarchy_->tiers()) views.push_back({t.name(), t.copies_path(), t.device()});
    Result<std::unique_ptr<Catalog>> catalog =
        Catalog::create(run_dir, dataset_->root_views(), dataset_->prefixes, views, {4 * kMiB});
    ASSERT_TRUE(catalog.ok());
    catalog_ = catalog.take();
    pfs_.emplace(catalog_.get(), &*dataset_, board_->get(), &rates_);
    holdings_.emplace(
        HoldingsOptions{catalog_.get(), &*hierarchy_, board_->get(), 1, 3, [](const RelPath&, uint32_t) {}});
    ToldValuesOptions told;
    told.catalog = catalog_.get();
    told.dataset = &*dataset_;
    told.board = board_->get();
    told.own = kOwn;
    told.nodes = 3;
    told.tell = [](NodeIndex, const std::string&) {};
    told.ring_after = [](int) {};
    told_.emplace(std::move(told));
    start_peers();
    source_.emplace(catalog_.get(), &*dataset_, board_->get(), &*pfs_, &*peers_, &*holdings_, &*told_, 0, 4);
  }
  void start_peers() {
    PeersOptions options;
    for (int i = 0; i < 3; ++i) options.peers.nodes.push_back({kLoopback, {free_port()}});
    options.peers.hello.node = kOwn;
    options.peers.hello.incarnation = 99;
    options.peers.tls = &tls_;
    options.peers.connect_ms = options.peers.handshake_ms = kPatienceMs;
    options.answer_ms = answer_ms;
    options.piece_ms = kPatienceMs;
    options.later_ms = later_ms;
    for (const NodeIndex node : kOthers) others_[node] = std::make_unique<Other>(node, options.peers);
    PeersHandlers handlers;
    handlers.held = [this](const Gather& gather, const auto& takes) {
      return holdings_->page(gather, takes);
    };
    handlers.changed = [](const Mark&) {};
    handlers.changes = [] { return std::vector<Mark>(); };
    handlers.doubted = [](const FileKey&) {};
    handlers.data = [](Fd, Tls) {};
    handlers.met = [](NodeIndex, uint64_t) {};
    handlers.gone = [](NodeIndex) {};
    handlers.counted = [](NodeIndex, const Count&) {};
    peers_.emplace(std::move(options), std::move(handlers));
    ASSERT_TRUE(peers_->start().ok());
  }
  void TearDown() override {
    for (auto& other : others_) other.reset();  // who waits for them need not
    peers_->stop();
    for (std::thread& thread : threads_) thread.join();
  }

  struct File {
    std::string name;
    Ref ref = 0;
    FileKey key;
    FileIdentity identity;
  };
  // A file whose home is that node.
  File file_at(NodeIndex home, uint64_t bytes) {
    File file;
    for (;; ++names_) {
      file.name = "f" + std::to_string(names_);
      file.key = file_key(0, file.name);
      if (home_of(file.key, 3) == home) break;
    }
    ++names_;
    scratch_.file("pfs/" + file.name, noise(bytes, names_));
    file.ref = catalog_->add(rel(file.name), DT_REG);
    struct stat st {};
    EXPECT_EQ(::stat((scratch_ / ("pfs/" + file.name)).c_str(), &st), 0);
    file.identity = identity_of(st);
    return file;
  }
  // It is being copied, as a whole, by a thread of its own.
  struct Copying {
    std::atomic<bool> ended{false};
    Status status;
    Fd to;
  };
  std::shared_ptr<SourceFile> open(const File& file) {
    Copier copier(board_->get(), &rates_, &stopping_);
    return source_->open(file.ref, file.name, Need::kNow, copier);
  }
  // `paced`: nobody waits for it; `hurry`: until then.
  std::shared_ptr<Copying> copy(const File& file, const std::shared_ptr<SourceFile>& from, bool paced = false,
                                const std::atomic<bool>* hurry = nullptr) {
    auto copying = std::make_shared<Copying>();
    const std::string path = scratch_.file("copy" + std::to_string(++copies_), "");
    copying->to = Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    threads_.emplace_back([this, file, from, copying, paced, hurry] {
      Copier copier(board_->get(), &rates_, &stopping_);
      std::thread hurries([&] {
        while (hurry && !copying->ended && !*hurry) ::usleep(1000);
        if (hurry && *hurry) copier.hurry();
      });
      CopyRange range;
      range.paced = paced;
      range.copy = copying->to.get();
      range.file_bytes = range.bytes = file.identity.bytes;
      copying->status = from->copy(range, &copier);
      copying->ended = true;
      hurries.join();
    });
    return copying;
  }
  uint64_t read_on_pfs() { return total(*board_->get(), AgentCounter::agent_bytes_pfs); }
  // What this node says that it is reading of the share of that home.
  std::vector<FileInReading> reading_of(NodeIndex home) {
    Other* const other = others_[home].get();
    const size_t before = other->said<Gathered>().size();
    other->control->tell(kOwn, encode(Gather{home, 0, 0, 0}));
    EXPECT_TRUE(eventually([&] { return other->said<Gathered>().size() > before; }));
    return other->said<Gathered>().back().second.reading;
  }

  int answer_ms = kPatienceMs, later_ms = kPatienceMs;
  const Scratch scratch_;
  AgentConfig config_;
  Rates rates_{config_};
  std::atomic<bool> stopping_{false};
  PeerTls tls_;
  std::optional<Dataset> dataset_;
  std::optional<Hierarchy> hierarchy_;
  std::optional<BoardFile> board_;
  std::unique_ptr<Catalog> catalog_;
  std::optional<PfsSource> pfs_;
  std::optional<Holdings> holdings_;
  std::optional<ToldValues> told_;
  std::unique_ptr<Other> others_[3];
  std::optional<Peers> peers_;
  std::optional<PeerSource> source_;
  std::vector<std::thread> threads_;
  uint64_t names_ = 0, copies_ = 0;
};

// Others would wait for this node until its lease has ended, and one of them would read the file again.
TEST_F(PeerSourceTest, WhereMemoryLacksTheHomeIsToldAllTheSame) {
  Other* const home = others_[0].get();
  int before = -1, n = 0;
  while (before != times_memory_lacked() && !HasFailure()) {
    before = times_memory_lacked();
    SCOPED_TRACE("allocation " + std::to_string(++n));
    const File file = file_at(0, 2 * kMiB + 1);
    home->answers(file.key, encode(Read{7}));
    const auto copying = copy(file, open(file));
    ASSERT_TRUE(eventually([&] { return copying->ended.load(); }));
    ASSERT_TRUE(copying->status.ok());
    lack_memory_at(n);
    source_->copied(file.ref, 0);
    lack_memory_at(0);
    source_->tell_untold();
    EXPECT_TRUE(eventually([&] {
      const auto all = home->said<Done>();
      return std::any_of(all.begin(), all.end(), [&](const auto& one) {
        return one.second.key == file.key && one.second.lease == 7;
      });
    }));
  }
  EXPECT_GT(n, 5);
}

// A large file is given up by one thread, or evicted, while another one still copies a part of it.
TEST_F(PeerSourceTest, WhatWasGivenUpIsNotSaidToBeRead) {
  const File file = file_at(0, 3 * kMiB);
  Other* const home = others_[0].get();
  const auto copying = copy(file, open(file));
  ASSERT_TRUE(eventually([&] { return home->wants(file.key) == 1; }));
  source_->given_up(file.ref);
  home->answer_at_last(file.key, Read{7});
  ASSERT_TRUE(eventually([&] { return copying->ended.load(); }));
  EXPECT_FALSE(copying->status.ok());
  EXPECT_EQ(read_on_pfs(), 0u);
  EXPECT_TRUE(reading_of(0).empty());
  EXPECT_TRUE(eventually([&] {
    const auto all = home->said<Done>();
    return std::any_of(all.begin(), all.end(), [&](const auto& one) {
      return one.second.key == file.key && one.second.lease == 7 && one.second.result == ReadResult::kNotHeld;
    });
  })) << "nobody else waits for its lease to end";
}

TEST_F(PeerSourceTest, WhatWasGivenUpBeforeItBeganDoesNotBegin) {
  const File file = file_at(0, 3 * kMiB);
  const auto opened = open(file);
  source_->given_up(file.ref);
  others_[0]->answers(file.key, encode(Read{7}));
  const auto copying = copy(file, opened);
  ASSERT_TRUE(eventually([&] { return copying->ended.load(); }));
  EXPECT_FALSE(copying->status.ok());
  EXPECT_EQ(others_[0]->wants(file.key), 0);
  EXPECT_TRUE(reading_of(0).empty());
}

// Else who follows gets a hole for a piece, and does not believe this node any more.
TEST_F(PeerSourceTest, WhatAnAttemptThatWasGivenUpHasReadIsNotInTheNextOne) {
  const File file = file_at(0, kMiB);
  others_[0]->answers(file.key, encode(Read{7}));
  std::atomic<int> reads{0};
  std::atomic<int> goes_on{0};
  const Intercept slow(Call::kPread, [&](Arguments& call) {
    if (call.bytes < kMiB) return 0;
    for (const int own = ++reads; goes_on < own;) ::usleep(1000);
    return 0;
  });
  const auto first = copy(file, open(file));
  ASSERT_TRUE(eventually([&] { return reads == 1; }));
  source_->given_up(file.ref);
  const auto second = copy(file, open(file));
  ASSERT_TRUE(eventually([&] { return reads == 2; }));
  goes_on = 1;
  ASSERT_TRUE(eventually([&] { return first->ended.load(); }));
  Get get;
  get.path = file.name;
  GetResult why = GetResult::kOk;
  const std::unique_ptr<ServedFile> served = holdings_->open(get, &why);
  ASSERT_NE(served, nullptr);
  EXPECT_EQ(served->check(0, 0), std::nullopt);
  goes_on = 2;
  ASSERT_TRUE(eventually([&] { return second->ended.load(); }));
  EXPECT_TRUE(second->status.ok()) << second->status.error().text;
  EXPECT_NE(served->check(0, 0), std::nullopt);
}

TEST_F(PeerSourceTest, AHomeThatDoesNotAnswerHoldsUpNoOtherFile) {
  const File slow = file_at(0, kMiB), beside = file_at(0, kMiB), elsewhere = file_at(2, kMiB);
  const auto waits = copy(slow, open(slow));
  ASSERT_TRUE(eventually([&] { return others_[0]->wants(slow.key) == 1; }));
  for (const File& file : {beside, elsewhere}) {
    others_[home_of(file.key, 3)]->answers(file.key, encode(Read{7}));
    const auto copying = copy(file, open(file));
    EXPECT_TRUE(eventually([&] { return copying->ended.load(); }));
    EXPECT_TRUE(copying->status.ok());
  }
  EXPECT_FALSE(waits->ended);
  EXPECT_EQ(read_on_pfs(), 2 * kMiB);
  others_[0]->answer_at_last(slow.key, Read{8});
  EXPECT_TRUE(eventually([&] { return waits->ended.load(); }));
}

// One thread reads a part on the PFS, another one asks for another part: the first one goes on, and who gives
// the file up does.
TEST_F(PeerSourceTest, AHomeThatDoesNotAnswerHoldsUpNoReader) {
  constexpr int kFailures = 3;
  const File file = file_at(0, kMiB);
  Other* const home = others_[0].get();
  home->answers(file.key, encode(Have{{2}, file.identity}));  // which hangs up on who asks it
  std::atomic<bool> reads{false}, goes_on{false};
  const Intercept slow(Call::kPread, [&](Arguments& call) {
    if (call.bytes < kMiB) return 0;
    reads = true;
    while (!goes_on) ::usleep(1000);
    return 0;
  });
  const auto opened = open(file);
  const auto reader = copy(file, opened);
  ASSERT_TRUE(eventually([&] { return reads.load(); }));
  ASSERT_EQ(home->wants(file.key), kFailures);
  home->answers(file.key, "");
  const auto asks = copy(file, opened);
  ASSERT_TRUE(eventually([&] { return home->wants(file.key) == kFailures + 1; }));
  goes_on = true;
  EXPECT_TRUE(eventually([&] { return reader->ended.load(); }));
  EXPECT_TRUE(reader->status.ok());
  std::atomic<bool> given_up{false};
  threads_.emplace_back([&] {
    source_->given_up(file.ref);
    given_up = true;
  });
  EXPECT_TRUE(eventually([&] { return given_up.load(); }));
  EXPECT_FALSE(asks->ended);
  home->answer_at_last(file.key, Read{9});
  EXPECT_TRUE(eventually([&] { return asks->ended.load(); }));
  EXPECT_TRUE(reading_of(0).empty());
}

// Nobody waits for the file as its home is asked: there is time until that one has heard the others. Then a
// task does.
class HurryTest : public PeerSourceTest {
 protected:
  // The last question about the file, as it stands.
  std::optional<Want> last_want(NodeIndex node, const FileKey& key) {
    std::optional<Want> last;
    for (const auto& [number, want] : others_[node]->said<Want>())
      if (want.key == key) last = want;
    return last;
  }
  std::atomic<bool> hurry_{false};
};

class LaterTest : public HurryTest {
 protected:
  LaterTest() { later_ms = 3000; }  // five times as long, if nobody waits
};

TEST_F(LaterTest, ATaskDoesNotWaitBehindAQuestionOfPrefetch) {
  const File file = file_at(0, kMiB);
  others_[0]->answers(file.key, encode(Later()));
  const auto copying = copy(file, open(file), true, &hurry_);
  ASSERT_TRUE(eventually([&] { return others_[0]->wants(file.key) > 2; }));
  EXPECT_EQ(last_want(0, file.key)->purpose, Purpose::kPrefetch);
  hurry_ = true;
  ASSERT_TRUE(eventually([&] { return last_want(0, file.key)->waits == Waits::kNo; }));
  EXPECT_EQ(last_want(0, file.key)->purpose, Purpose::kDemand);
  EXPECT_TRUE(eventually([&] { return copying->ended.load(); }));
  EXPECT_TRUE(copying->status.ok());
}

// Another thread has asked, for another part of a large file.
TEST_F(LaterTest, ATaskDoesNotWaitBehindTheQuestionOfAnotherThread) {
  const File file = file_at(0, kMiB);
  others_[0]->answers(file.key, encode(Later()));
  const auto opened = open(file);
  const auto prefetch = copy(file, opened, true);
  ASSERT_TRUE(eventually([&] { return others_[0]->wants(file.key) > 2; }));
  const auto demand = copy(file, opened);
  ASSERT_TRUE(eventually([&] { return last_want(0, file.key)->waits == Waits::kNo; }));
  EXPECT_EQ(last_want(0, file.key)->purpose, Purpose::kDemand);
  EXPECT_TRUE(eventually([&] { return prefetch->ended && demand->ended; }));
  EXPECT_TRUE(demand->status.ok());
}

class SilentTest : public HurryTest {
 protected:
  SilentTest() { answer_ms = 3000; }
};

// The deputy is asked once the home has had the time that it has where a task waits.
TEST_F(SilentTest, ATaskDoesNotWaitForAsLongAsPrefetchDoes) {
  File file = file_at(0, kMiB);
  while (deputy_of(file.key, 3) != 2) file = file_at(0, kMiB);
  others_[2]->answers(file.key, encode(Read{9}));
  const auto copying = copy(file, open(file), true, &hurry_);
  ASSERT_TRUE(eventually([&] { return others_[0]->wants(file.key) == 1; }));
  hurry_ = true;
  ASSERT_TRUE(eventually([&] { return others_[2]->wants(file.key) == 1; }));
  EXPECT_EQ(last_want(2, file.key)->purpose, Purpose::kDemand);
  EXPECT_TRUE(eventually([&] { return copying->ended.load(); }));
  EXPECT_TRUE(copying->status.ok());
}

}  // namespace
}  // namespace monarch
