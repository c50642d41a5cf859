// SPDX-License-Identifier: Apache-2.0
// A node's source of files, between two nodes that say what a test wants, and when.
#include "runtime/peer/peer_source.h"

#include <map>

#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/manual_clock.h"
#include "tests/peer_fixture.h"

namespace monarch {
namespace {

constexpr NodeIndex kOwn = 1, kOthers[] = {0, 2};

// A copy of which the first pieces are there.
std::unique_ptr<ServedFile> pieces_of(const std::string& path, const FileIdentity& identity,
                                      const std::vector<uint64_t>& checks, uint64_t there) {
  return std::make_unique<SentFile>(path, identity, [checks, there](uint64_t piece) {
    return piece < there ? std::optional(checks.at(piece)) : std::nullopt;
  });
}

// Each read of a whole piece on the PFS waits until so many may.
class HeldReads {
 public:
  bool await(int count) {
    return eventually([&] { return reads_ == count; });
  }
  void let(int count) { may_ = count; }

 private:
  std::atomic<int> reads_{0}, may_{0};
  const Intercept slow_{Call::kPread, [this](Arguments& call) {
                          if (call.bytes < kMiB) return 0;
                          const int own = ++reads_;
                          (void)eventually([&] { return may_ >= own; });
                          return 0;
                        }};
};

// Another node: what it was told it keeps, and what it is asked it answers once it is to.
class Other : public ControlHandler {
 public:
  Other(NodeIndex own, ControlOptions options) {
    options.hello.node = own;
    options.hello.incarnation = own + 1;
    control = std::make_unique<Control>(std::move(options), this, clock_);
    EXPECT_TRUE(control->start().ok());
  }
  ~Other() override {
    control->stop();
    if (serve_) serve_->stop();
  }

  // From now on it does not hang up on who asks it for a file.
  using Opens = std::function<std::unique_ptr<ServedFile>(GetResult* why)>;
  void sends(Opens how) {
    ServeOptions options;
    options.open = [this](const Get& get, GetResult* why) {
      Opens opens;
      {
        const std::lock_guard hold(lock_);
        gets_.push_back(get);
        opens = opens_;
      }
      return opens(why);
    };
    const std::lock_guard hold(lock_);
    opens_ = std::move(how);
    if (serve_) return;
    serve_ = std::make_unique<Serve>(std::move(options), clock_);
    EXPECT_TRUE(serve_->start().ok());
  }
  // What it was asked to send.
  std::vector<Get> gets() {
    const std::lock_guard hold(lock_);
    return gets_;
  }

  // From now on; empty: it does not answer.
  void answers(const FileKey& key, const std::string& answer) {
    const std::lock_guard hold(lock_);
    answers_[key] = answer;
  }
  int wants(const FileKey& key) {
    const auto all = said.all<Want>();
    return static_cast<int>(
        std::count_if(all.begin(), all.end(), [&](const Want& one) { return one.key == key; }));
  }
  // Answers the last question about the file.
  template <typename M>
  void answer_at_last(const FileKey& key, const M& message) {
    MessageHeader header;
    for (const auto& [number, want] : said.numbered<Want>())
      if (want.key == key) header.number = number;
    control->tell(kOwn, encode(message, header));
  }

  ManualClock clock_;  // which nobody moves: it waits for as long as it takes
  Sayings said;
  std::unique_ptr<Control> control;

 private:
  std::string message(NodeIndex, const MessageHeader& header, std::string_view body) override {
    said.add(header, body);
    const std::lock_guard hold(lock_);
    const std::optional<Want> want = header.type == Want::kType ? decode<Want>(body) : std::nullopt;
    const auto at = want ? answers_.find(want->key) : answers_.end();
    return at == answers_.end() ? "" : at->second;
  }
  void data(NodeIndex, Fd socket, Tls tls) override {
    const std::lock_guard hold(lock_);
    if (serve_) serve_->add(std::move(socket), std::move(tls));  // else it is hung up on
  }

  std::mutex lock_;
  std::map<FileKey, std::string> answers_;
  std::vector<Get> gets_;
  Opens opens_;
  std::unique_ptr<Serve> serve_;
};

class PeerSourceTest : public PeerTest, public PeersHandler {
 protected:
  void SetUp() override {
    clock_.end_sleeps();
    holdings_.emplace(HoldingsOptions{parts_.catalog.get(), &*parts_.hierarchy, parts_.board(), 1, 3,
                                      [](const RelPath&, uint32_t) {}, nullptr},
                      clock_);
    ToldValuesOptions told;
    told.catalog = parts_.catalog.get();
    told.dataset = &*parts_.dataset;
    told.board = parts_.board();
    told.own = kOwn;
    told.nodes = 3;
    told.tell = [](NodeIndex, const std::string&) {};
    told.ring_after = [this](int) { ++learned_; };
    told_.emplace(std::move(told), clock_);
    start_peers();
    make_source();
  }
  void make_source() {
    source_.emplace(parts_.catalog.get(), &*parts_.dataset, parts_.board(), &pfs_, &*peers_, &*holdings_,
                    &*told_, bandwidth, readers, clock_);
  }
  void start_peers() {
    ControlOptions options;
    options.nodes = nodes_here(3);
    options.hello.node = kOwn;
    options.hello.incarnation = 99;
    options.tls = &tls_;
    for (const NodeIndex node : kOthers) others_[node] = std::make_unique<Other>(node, options);
    peers_.emplace(std::move(options), this, clock_);
    ASSERT_TRUE(peers_->start().ok());
  }
  HeldPage held(const Gather& gather, const std::function<bool(const FileKey&)>& takes) override {
    return holdings_->page(gather, takes);
  }
  void TearDown() override {
    stopping_ = true;
    for (auto& other : others_) other.reset();  // who waits for them need not
    peers_->stop();
    std::atomic<bool> ended{false};
    std::thread passes([&] {
      EXPECT_TRUE(eventually([&] {
        clock_.advance_ms(patience::kPeerLongestNapMs);
        return ended.load();
      }));
    });
    for (std::thread& thread : threads_) thread.join();
    ended = true;
    passes.join();
  }

  struct File {
    std::string name;
    Ref ref = 0;
    FileKey key;
    FileIdentity identity;
  };
  std::string on_pfs(const File& file) const { return scratch_ / ("pfs/" + file.name); }
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
    file.ref = parts_.catalog->add(rel(file.name), DT_REG);
    file.identity = identity_of(stat_of(on_pfs(file)));
    return file;
  }
  // It is being copied, as a whole, by a thread of its own.
  struct Copying {
    std::atomic<bool> ended{false};
    Status status;
    Fd to;
  };
  std::shared_ptr<SourceFile> open(const File& file) {
    Copier copier(parts_.board(), &rates_, &stopping_);
    return source_->open(file.ref, file.name, Need::kNow, copier);
  }
  // `paced`: nobody waits for it.
  std::shared_ptr<Copying> copy(const File& file, const std::shared_ptr<SourceFile>& from, bool paced = false,
                                bool sparse = false) {
    auto copying = std::make_shared<Copying>();
    const std::string path = scratch_.file("copy" + std::to_string(++copies_), "");
    copying->to = Fd(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    threads_.emplace_back([this, file, from, copying, paced, sparse] {
      Copier copier(parts_.board(), &rates_, &stopping_);
      CopyRange range = whole(file, copying->to, paced);
      range.sparse = sparse;
      if (sparse && ::ftruncate(range.copy, static_cast<off_t>(range.bytes)) != 0) range.sparse = false;
      copying->status = from->copy(range, &copier);
      copying->ended = true;
    });
    return copying;
  }
  static CopyRange whole(const File& file, const Fd& to, bool paced) {
    CopyRange range;
    range.paced = paced;
    range.copy = to.get();
    range.file_bytes = range.bytes = file.identity.bytes;
    return range;
  }
  // The same, by this thread.
  Status copy_here(const File& file, SourceFile* from, bool paced = false, Copier* copier = nullptr) {
    const Fd to(::open(scratch_.file("here", "").c_str(), O_RDWR | O_CLOEXEC));
    Copier own(parts_.board(), &rates_, &stopping_);
    return from->copy(whole(file, to, paced), copier ? copier : &own);
  }
  static bool ends(const std::shared_ptr<Copying>& copying) {
    return eventually([&] { return copying->ended.load(); });
  }
  // Until it has ended well.
  static void expect_copied(const std::shared_ptr<Copying>& copying) {
    ASSERT_TRUE(ends(copying));
    EXPECT_TRUE(copying->status.ok()) << copying->status.error().text;
  }
  // A file that its home, node 0, tells this one to read.
  File file_to_read(uint64_t bytes = kMiB) {
    File file = file_at(0, bytes);
    others_[0]->answers(file.key, encode(Read{7}));
    return file;
  }
  bool is_asked(NodeIndex node, const File& file, int times = 1) {
    return eventually([&] { return others_[node]->wants(file.key) == times; });
  }
  uint64_t read_again() { return parts_.counter(AgentCounter::dup_files); }
  uint64_t read_on_pfs() { return parts_.counter(AgentCounter::agent_bytes_pfs); }
  // What this node says that it is reading of the share of that home.
  std::vector<FileInReading> reading_of(NodeIndex home) {
    Other* const other = others_[home].get();
    const size_t before = other->said.count<Gathered>();
    other->control->tell(kOwn, encode(Gather{home, 0, 0, 0}));
    EXPECT_TRUE(eventually([&] { return other->said.count<Gathered>() > before; }));
    return other->said.all<Gathered>().back().reading;
  }

  uint64_t bandwidth = 0;
  int readers = 4;
  std::atomic<int> learned_{0};  // how often there was something to tell of what the PFS says
  ManualClock clock_;            // in which sleeps end, and no time passes unless a test moves it
  const Scratch scratch_{};
  const AgentConfig config_{};
  Rates rates_{config_};
  std::atomic<bool> stopping_{false};
  const PeerTls tls_ = make_tls();
  AgentParts parts_{scratch_, scratch_.dir("pfs"), 1 << 30, {4 * kMiB, 0, false, true}};
  PfsSource pfs_{parts_.catalog.get(), &*parts_.dataset, parts_.board(), &rates_};
  std::optional<Holdings> holdings_;
  std::optional<ToldValues> told_;
  std::unique_ptr<Other> others_[3];
  std::optional<Peers> peers_;
  std::optional<PeerSource> source_;
  std::vector<std::thread> threads_;
  uint64_t names_ = 0, copies_ = 0;
};

// A large file is given up by one thread, or evicted, while others still copy parts of it: one of them asks
// for all, and the others wait.
TEST_F(PeerSourceTest, WhatWasGivenUpIsNotSaidToBeRead) {
  const File file = file_at(0, 3 * kMiB);
  Other* const home = others_[0].get();
  const auto opened = open(file);
  const auto asks = copy(file, opened);
  ASSERT_TRUE(is_asked(0, file));
  const auto waits = copy(file, opened);
  source_->given_up(file.ref);
  home->answer_at_last(file.key, Read{7});
  for (const auto& each : {asks, waits}) {
    ASSERT_TRUE(ends(each));
    EXPECT_EQ(each->status.error().code, ECANCELED);
  }
  EXPECT_EQ(home->wants(file.key), 1);
  EXPECT_EQ(read_on_pfs(), 0u);
  EXPECT_TRUE(reading_of(0).empty());
  EXPECT_TRUE(eventually([&] {
    const auto all = home->said.all<Done>();
    return std::any_of(all.begin(), all.end(), [&](const auto& one) {
      return one.key == file.key && one.lease == 7 && one.result == ReadResult::kNotHeld;
    });
  })) << "nobody else waits for its lease to end";
}

// Else who follows gets a hole for a piece, and does not believe this node any more.
TEST_F(PeerSourceTest, WhatAnAttemptThatWasGivenUpHasReadIsNotInTheNextOne) {
  const File file = file_to_read();
  HeldReads held;
  const auto first = copy(file, open(file));
  ASSERT_TRUE(held.await(1));
  source_->given_up(file.ref);
  const auto second = copy(file, open(file));
  ASSERT_TRUE(held.await(2));
  held.let(1);
  ASSERT_TRUE(ends(first));
  Get get;
  get.path = file.name;
  GetResult why = GetResult::kOk;
  const std::unique_ptr<ServedFile> served = holdings_->open(get, &why);
  ASSERT_NE(served, nullptr);
  EXPECT_EQ(served->check(0, 0), std::nullopt);
  held.let(2);
  ASSERT_TRUE(ends(second));
  EXPECT_TRUE(second->status.ok()) << second->status.error().text;
  EXPECT_NE(served->check(0, 0), std::nullopt);
}

TEST_F(PeerSourceTest, AHomeThatDoesNotAnswerHoldsUpNoOtherFile) {
  const File slow = file_at(0, kMiB), beside = file_at(0, kMiB), elsewhere = file_at(2, kMiB);
  const auto waits = copy(slow, open(slow));
  ASSERT_TRUE(is_asked(0, slow));
  for (const File& file : {beside, elsewhere}) {
    others_[home_of(file.key, 3)]->answers(file.key, encode(Read{7}));
    expect_copied(copy(file, open(file)));
  }
  EXPECT_FALSE(waits->ended);
  EXPECT_EQ(read_on_pfs(), 2 * kMiB);
  others_[0]->answer_at_last(slow.key, Read{8});
  EXPECT_TRUE(ends(waits));
}

// One thread reads a part on the PFS, another one asks for another part: the first one goes on, and who gives
// the file up does.
TEST_F(PeerSourceTest, AHomeThatDoesNotAnswerHoldsUpNoReader) {
  constexpr int kFailures = 3;
  const File file = file_at(0, kMiB);
  Other* const home = others_[0].get();
  home->answers(file.key, encode(Have{{2}, file.identity}));  // which hangs up on who asks it
  HeldReads held;
  const auto opened = open(file);
  const auto reader = copy(file, opened);
  ASSERT_TRUE(held.await(1));
  ASSERT_EQ(home->wants(file.key), kFailures);
  home->answers(file.key, "");
  const auto asks = copy(file, opened);
  ASSERT_TRUE(eventually([&] { return home->wants(file.key) == kFailures + 1; }));
  held.let(100);
  EXPECT_TRUE(ends(reader));
  EXPECT_TRUE(reader->status.ok());
  source_->given_up(file.ref);
  EXPECT_FALSE(asks->ended);
  home->answer_at_last(file.key, Read{9});
  EXPECT_TRUE(ends(asks));
  EXPECT_TRUE(reading_of(0).empty());
}

TEST_F(PeerSourceTest, OfItsPartsTheHomeIsAskedOnce) {
  const File file = file_to_read();
  const auto opened = open(file), by_another = open(file);
  for (SourceFile* part : {opened.get(), opened.get(), by_another.get()})
    EXPECT_TRUE(copy_here(file, part).ok());
  EXPECT_EQ(others_[0]->wants(file.key), 1);
}

TEST_F(PeerSourceTest, WhatWasReplacedOrRemovedOrHasAnotherSizeIsNotRead) {
  for (const int code : {ESTALE, ENOENT, 0}) {
    File file = file_to_read();
    const auto opened = open(file);
    if (code == ESTALE) std::filesystem::rename(scratch_.file("pfs/other", noise(kMiB, 1)), on_pfs(file));
    if (code == ENOENT) std::filesystem::remove(on_pfs(file));
    if (code == 0) --file.identity.bytes;
    const Status status = copy_here(file, opened.get());
    EXPECT_TRUE(!status.ok() && (code == 0 || status.error().code == code)) << status.error().text;
    EXPECT_EQ(open(file) != nullptr, code != ENOENT);
  }
  EXPECT_EQ(read_on_pfs(), 0u);
}

// Another node has told what the PFS says of the file, which nobody looks at here.
TEST_F(PeerSourceTest, WhatWasToldIsReadAsItWasTold) {
  for (const int64_t later_ns : {0, 1}) {
    const File file = file_to_read();
    const struct stat st = stat_of(on_pfs(file));
    ToldFile told;
    told.path = file.name;
    told.read = 1;
    told.mode = st.st_mode;
    told.links = 1;
    told.inode = st.st_ino;
    told.bytes = file.identity.bytes;
    told.mtime_ns = file.identity.mtime_ns + later_ns;
    told.ctime_ns = identity_of(st).ctime_ns;
    ASSERT_TRUE(told_->take(Told{1, {told}}));
    ASSERT_TRUE(told_->are_told(file.ref));
    const auto opened = open(file);
    ASSERT_NE(opened, nullptr);
    EXPECT_EQ(opened->fd(), -1);
    const Status status = copy_here(file, opened.get());
    if (later_ns == 0) {
      EXPECT_TRUE(status.ok()) << status.error().text;
      source_->copied(file.ref, 0);
      EXPECT_EQ(learned_, 0) << "all nodes were told";
    } else {
      EXPECT_EQ(status.error().text, "source: it has changed");
    }
  }
  EXPECT_EQ(read_on_pfs(), kMiB);
  const File file = file_to_read();
  EXPECT_TRUE(copy_here(file, open(file).get()).ok());
  source_->copied(file.ref, 0);
  EXPECT_EQ(learned_, 1);
}

TEST_F(PeerSourceTest, WhatTheJobHasChangedComesFromThePfsAlone) {
  const File file = file_at(0, kMiB);
  Copier copier(parts_.board(), &rates_, &stopping_);
  const auto anew = source_->open(file.ref, file.name, Need::kAnew, copier);
  ASSERT_NE(anew, nullptr);
  EXPECT_TRUE(copy_here(file, anew.get()).ok());
  EXPECT_EQ(others_[0]->wants(file.key), 0);
  EXPECT_EQ(read_on_pfs(), kMiB);
}

TEST_F(PeerSourceTest, AHomeHearsOfACopyThatIsNoneAnyMore) {
  const File file = file_to_read();
  EXPECT_TRUE(copy_here(file, open(file).get()).ok());
  source_->copied(file.ref, 0);
  source_->given_up(file.ref);
  EXPECT_TRUE(eventually([&] {
    const auto all = others_[0]->said.all<Lost>();
    return all.size() == 1 && all[0].key == file.key && all[0].holder == kOwn;
  }));
}

TEST_F(PeerSourceTest, AHomeHearsOfAReaderNowAndThen) {
  constexpr int64_t kOften = Directory::kLeaseNs / 4;
  size_t told = 0;
  for (const auto& [piece_ns, times] : {std::pair(int64_t{0}, 0), {kOften / 2, 1}, {kOften, 3}}) {
    const File file = file_to_read(3 * kMiB);
    const Intercept slow(Call::kPread, [&, ns = piece_ns](Arguments& call) {
      if (call.bytes >= kMiB) clock_.advance(ns);
    });
    EXPECT_TRUE(copy_here(file, open(file).get()).ok());
    (void)reading_of(0);  // all that it was told before is there
    told += static_cast<size_t>(times);
    EXPECT_TRUE(eventually([&] { return others_[0]->said.count<ReadProgress>() == told; })) << piece_ns;
  }
}

// The PFS hangs for one file: who waits for its turn behind that is no reader to be waited for.
TEST_F(PeerSourceTest, WhoWaitsKeepsItsLeaseAsLongAsOthersMove) {
  readers = 1;
  make_source();
  const auto told_of = [&](const File& file) {
    const auto all = others_[0]->said.all<ReadProgress>();
    return std::count_if(all.begin(), all.end(), [&](const auto& one) { return one.key == file.key; });
  };
  const File first = file_at(0, 3 * kMiB), second = file_at(0, kMiB), empty = file_at(0, 0);
  for (const File& file : {first, second}) others_[0]->answers(file.key, encode(Read{7}));
  HeldReads held;
  const auto reader = copy(first, open(first));
  ASSERT_TRUE(held.await(1));
  const auto waits = copy(second, open(second)), without = copy(empty, open(empty));
  ASSERT_TRUE(is_asked(0, second));
  for (int64_t waited = 0; waited < Directory::kLeaseNs; waited += patience::kPeerLongestNapMs * 1'000'000) {
    ASSERT_TRUE(clock_.await_waiting(2));
    clock_.advance_ms(patience::kPeerLongestNapMs);
  }
  EXPECT_TRUE(reading_of(0).size() == 2) << "all that it was told before is there";
  EXPECT_EQ(told_of(second), 0);
  held.let(1);
  EXPECT_TRUE(eventually([&] {
    clock_.advance_ms(patience::kPeerLongestNapMs);
    return told_of(second) == 1;
  }));
  held.let(100);
  for (const auto& each : {reader, waits, without}) expect_copied(each);
}

// Node 2 has what this one needs, or is reading it.
class SentTest : public PeerSourceTest {
 protected:
  File file_of_other(uint64_t bytes, bool is_read) {
    File file = file_at(0, bytes);
    const std::string path = on_pfs(file);
    const std::vector<uint64_t> checks = checks_of(contents(path));
    FileIdentity identity = file.identity;
    identity.check = check_of(checks);
    others_[0]->answers(file.key, is_read ? encode(Busy{2}) : encode(Have{{2}, identity}));
    others_[2]->sends([=, this](GetResult* why) -> std::unique_ptr<ServedFile> {
      *why = says_;
      if (says_ != GetResult::kOk) return nullptr;
      return pieces_of(path, identity, checks, there_);
    });
    return file;
  }
  size_t gets() { return others_[2]->gets().size(); }
  uint64_t from_peers() { return parts_.counter(AgentCounter::peer_bytes); }

  std::atomic<GetResult> says_{GetResult::kOk};
  std::atomic<uint64_t> there_{100};
};

TEST_F(SentTest, WhatCameOfAFileThatIsBeingReadDoesNotComeAgain) {
  there_ = 1;
  const File file = file_of_other(3 * kMiB, true);
  const auto copying = copy(file, open(file), true);
  ASSERT_TRUE(eventually([&] { return gets() > 2; }));
  there_ = 3;
  expect_copied(copying);
  const std::vector<Get> all = others_[2]->gets();
  EXPECT_EQ(all[0].offset, 0u);
  EXPECT_EQ(all[0].inode, 0u) << "it has one name";
  for (size_t i = 1; i < all.size(); ++i) EXPECT_EQ(all[i].offset, kMiB);
  EXPECT_EQ(from_peers(), 3 * kMiB);
  EXPECT_EQ(read_on_pfs(), 0u);
}

// Where it has zeros a sparse copy is not written: what was wrong would stay.
TEST_F(SentTest, OfWrongBytesNothingStaysWhereThereAreZeros) {
  File file = file_at(0, 3 * kMiB);
  const std::string path = on_pfs(file), wrong = scratch_.file("wrong", contents(path)),
                    zeros(3 * kMiB, '\0');
  const std::vector<uint64_t> checks = checks_of(contents(wrong));
  overwrite(path, zeros, 0);
  file.identity = identity_of(stat_of(path));
  FileIdentity identity = file.identity;
  identity.check = check_of(checks_of(zeros));
  others_[0]->answers(file.key, encode(Have{{2}, identity}));
  others_[2]->sends([=](GetResult* why) -> std::unique_ptr<ServedFile> {
    *why = GetResult::kOk;
    return pieces_of(wrong, identity, checks, 100);
  });
  const auto copying = copy(file, open(file), false, true);
  expect_copied(copying);
  EXPECT_GT(gets(), 0u);
  std::string got(zeros.size(), 'x');
  EXPECT_EQ(::pread(copying->to.get(), got.data(), got.size(), 0), static_cast<ssize_t>(got.size()));
  EXPECT_TRUE(got == zeros);
}

// Who has nothing yet is asked often, and who is busy ever less often; the home only now and then.
TEST_F(SentTest, WhoHasNothingYetIsAskedAgain) {
  constexpr int64_t kNap = patience::kPeerNapMs, kLongest = patience::kPeerLongestNapMs;
  for (const bool is_busy : {false, true}) {
    SCOPED_TRACE(is_busy);
    clock_.hold_sleeps();
    says_ = is_busy ? GetResult::kBusy : GetResult::kOk;
    there_ = 0;
    const File file = file_of_other(kMiB, true);
    const size_t before = gets();
    const auto copying = copy(file, open(file));
    int64_t slept = 0;
    for (size_t n = 1; n <= 50; ++n) {
      EXPECT_TRUE(eventually([&] { return gets() - before == n; }));
      ASSERT_TRUE(clock_.await_sleeping(1));
      const int64_t nap = (clock_.next_ns() - clock_.now_ns()) / 1'000'000;
      EXPECT_EQ(nap, is_busy ? std::min(kNap << std::min<size_t>(n - 1, 20), kLongest) : kNap);
      clock_.advance_ms(nap);
      slept += nap;
    }
    EXPECT_LE(others_[0]->wants(file.key), 1 + slept / patience::kPeerConnectMs);
    EXPECT_GT(others_[0]->wants(file.key), 1);
    says_ = GetResult::kOk;
    there_ = 1;
    clock_.end_sleeps();
    expect_copied(copying);
  }
  EXPECT_EQ(read_on_pfs(), 0u);
}

TEST_F(SentTest, WhoHasNothingForLongIsNotWaitedFor) {
  there_ = 0;
  const File file = file_of_other(kMiB, true);
  const auto copying = copy(file, open(file));
  ASSERT_TRUE(eventually([&] { return gets() > 3; }));
  EXPECT_FALSE(copying->ended);
  clock_.advance_ms(patience::kPeerRetryMs + 1);
  expect_copied(copying);
  EXPECT_EQ(read_on_pfs(), kMiB);
  EXPECT_EQ(read_again(), 1u);
}

TEST_F(SentTest, WhatAnotherNodeKnowsToHaveChangedIsReadHereAtOnce) {
  says_ = GetResult::kChanged;
  const File file = file_of_other(kMiB, false);
  expect_copied(copy(file, open(file)));
  EXPECT_EQ(gets(), 1u);
  EXPECT_EQ(others_[0]->wants(file.key), 1);
  EXPECT_EQ(read_on_pfs(), kMiB);
  EXPECT_EQ(read_again(), 0u);
}

TEST_F(SentTest, APieceThatTheTierDoesNotTakeEndsTheCopy) {
  const File file = file_of_other(3 * kMiB, false);
  std::atomic<int> writes{0};
  const Intercept full(Call::kPwrite, [&](Arguments&) { return writes++ == 0 ? ENOSPC : 0; });
  const auto copying = copy(file, open(file));
  ASSERT_TRUE(ends(copying));
  EXPECT_EQ(copying->status.error().code, ENOSPC);
  EXPECT_EQ(writes, 1);
  EXPECT_EQ(read_on_pfs(), 0u);
}

// Of what nobody waits for.
TEST_F(SentTest, WhatHasARateIsAskedForInPieces) {
  bandwidth = 1 << 30;
  make_source();
  const File file = file_of_other(3 * kMiB, false);
  EXPECT_TRUE(copy_here(file, open(file).get(), true).ok());
  const std::vector<Get> all = others_[2]->gets();
  ASSERT_EQ(all.size(), 3u);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].offset, i * kMiB);
    EXPECT_EQ(all[i].bytes, i < 2 ? kMiB : 0) << "to the end";
  }
  EXPECT_EQ(from_peers(), 3 * kMiB);
  EXPECT_TRUE(copy_here(file, open(file).get()).ok());
  EXPECT_EQ(gets(), 4u) << "what a task waits for comes as a whole";
}

}  // namespace
}  // namespace monarch
