// SPDX-License-Identifier: Apache-2.0
// Parts of an agent: what it tells of staging, whether anybody uses the dataset, and the library for peers.

#include <fcntl.h>

#include <set>
#include <sstream>
#include <tuple>

#include "runtime/agent/membership.h"
#include "runtime/agent/progress.h"
#include "runtime/agent/take_over.h"
#include "runtime/agent/use_watch.h"
#include "runtime/layout/board_client.h"
#include "tests/placement_fixture.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

// ---- what it tells of staging, from a catalog that a test fills

class ProgressTest : public PlacementTest {
 protected:
  // A source of which one file is another node's to stage.
  class Shared : public PfsSource {
   public:
    using PfsSource::PfsSource;
    bool is_ours(Ref ref) override {
      ++asked;
      if (stops && stopped == 0) {
        clock->advance_ms(600 * 1000);
        stopped = clock->now_ns();
      }
      return ref != other;
    }
    std::atomic<Ref> other{0};
    std::atomic<int> asked{0};
    bool stops = false;  // the agent, once, while it looks
    std::atomic<int64_t> stopped{0};
    ManualClock* clock = nullptr;
  };
  ProgressTest() { start(); }
  ~ProgressTest() override {
    progress_.reset();
    end();
  }

  Ref file(const std::string& name, uint64_t state, uint64_t bytes) {
    const Ref ref = catalog_->add(rel(name), DT_REG);
    catalog_->entry(ref).size = bytes;
    catalog_->entry(ref).state = state;
    return ref;
  }
  Ref file(const std::string& name, State state, Reason reason, uint64_t bytes) {
    return file(name, state_word(state, reason), bytes);
  }
  ProgressFile& progress() {
    if (!progress_)
      progress_.emplace(ProgressFile::Parts{directory_.get(), 0, board_->get(), catalog_.get(), &shared_,
                                            walker_.get(), placement_.get(), AgentConfig::Prefetch::kOn, 1},
                        clock_);
    return *progress_;
  }
  std::string told(const std::string& key) const {
    std::ifstream in(run_dir_ + "/" + kStateFile);
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(key + "=")) return line.substr(key.size() + 1);
    return "";
  }
  bool tells(const std::string& key, const std::string& value) {
    return eventually([&] { return told(key) == value; });
  }
  void moved() { add(board_->get(), AgentCounter::staged_files); }

  const Fd directory_{::open(run_dir_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
  Shared shared_{nullptr, nullptr, nullptr, nullptr};
  std::optional<ProgressFile> progress_;
};

TEST_F(ProgressTest, EachFileCountsByWhatBecameOfIt) {
  walk();
  file("placed", State::kPlaced, Reason::kNone, 100);
  file("empty", State::kPlaced, Reason::kNone, 0);
  file("no-room", State::kNoFit, Reason::kNone, 10);
  file("tier-failed", State::kNoFit, Reason::kTierError, 20);
  file("unreadable", State::kPass, Reason::kUnreadable, 30);
  file("changed", State::kDropped, Reason::kChanged, 40);
  const Ref large = file("large", State::kLarge, Reason::kNone, 50);
  struct stat st = monarch::source_stat(7);
  st.st_size = 50;
  const Ref chunks = catalog_->start_chunks(large, 0, st);
  catalog_->entry(large).state = large_word(chunks);
  file("excluded", State::kPass, Reason::kExcluded, 1000);
  file("again", again_word(large), 1000);
  file("anew", anew_word(large), 1000);
  file("other-node's", State::kKnown, Reason::kNone, 1000);
  shared_.other = catalog_->reader().find(rel("other-node's")).ref;
  (void)catalog_->add(rel("directory"), DT_DIR);
  progress().start();
  EXPECT_TRUE(tells("state", "staging-in")) << "the large file goes on";
  catalog_->close_chunks(chunks);
  EXPECT_TRUE(tells("state", "staged-in"));
  const std::string text = contents(run_dir_ + "/state");
  EXPECT_EQ(text.substr(0, text.find("pad=")),
            "state=staged-in\npercent=40\nfiles=7\nstaged_files=2\nbytes=250\nstaged_bytes=100\n"
            "all_bytes=250\nrate=0\nno_room=2\nfailed=3\n");
  file("seen", State::kKnown, Reason::kNone, 150);
  moved();
  EXPECT_TRUE(tells("state", "staging-in")) << "it waits, and its size is known";
  EXPECT_EQ(told("percent"), "40") << "it never falls";
  EXPECT_EQ(told("all_bytes"), "400");
  (*board_)->header.full = 1;
  EXPECT_TRUE(tells("state", "staged-in"));
  EXPECT_EQ(told("no_room"), "3");
  EXPECT_EQ(contents(run_dir_ + "/state").size(), text.size());
  catalog_->entry(file("only-opened", State::kKnown, Reason::kNone, 70)).state = large_word(0);
  moved();
  EXPECT_TRUE(tells("no_room", "4"));
  EXPECT_EQ(told("state"), "staged-in");
  const auto& counted = (*board_)->agent[static_cast<uint32_t>(AgentCounter::no_fit_files)];
  EXPECT_EQ(counted, 4u) << "however often a tier was asked";
  catalog_->entry(shared_.other).state = state_word(State::kNoFit);
  add(board_->get(), AgentCounter::no_fit_files, 10);
  progress().stop();
  EXPECT_EQ(counted, 5u) << "another node's, which a program wanted here";
  EXPECT_EQ(told("no_room"), "4");
}

TEST_F(ProgressTest, HowMuchThereIsIsToldOnceAllIsListed) {
  walker_ = std::make_unique<Walker>(
      catalog_.get(), &*dataset_, board_->get(), &rates_->pfs_stats, [] {}, nullptr, clock_);
  file("placed", State::kPlaced, Reason::kNone, 100);
  progress().start();
  EXPECT_TRUE(tells("state", "staging-in")) << "more may be found";
  EXPECT_EQ(told("percent") + "," + told("staged_files") + "," + told("all_bytes"), "0,1,0");
}

TEST(StagingRate, IsThatOfTheLastSeconds) {
  constexpr int64_t kSecond = 1'000'000'000;
  StagingRate rate(5 * kSecond);
  EXPECT_EQ(rate.look(5 * kSecond, 100), 0u);
  EXPECT_EQ(rate.look(7 * kSecond, 400), 200u);
  EXPECT_EQ(rate.look(15 * kSecond, 1000), 100u) << "since the beginning";
  EXPECT_EQ(rate.look(25 * kSecond, 2000), 100u) << "since the beginning, and then since 1000";
  EXPECT_EQ(rate.look(27 * kSecond, 3200), 183u);
  EXPECT_EQ(rate.look(35 * kSecond, 3200), 120u);
  EXPECT_EQ(rate.look(60 * kSecond, 3200), 0u) << "it rests";
  EXPECT_EQ(rate.look(61 * kSecond, 0), 0u) << "copies were removed";
}

TEST_F(ProgressTest, PartsOfAFileAreToldAsTheyCome) {
  walk();
  file("large", large_word(0), 100);
  progress().start();
  EXPECT_TRUE(tells("state", "staging-in"));
  EXPECT_EQ(told("percent"), "0");
  (*board_)->placed_bytes[0] = 50;  // no file more
  EXPECT_TRUE(tells("percent", "50"));
  EXPECT_TRUE(eventually([&] { return std::stoull(told("rate")) > 0; }));
  progress().stop();
  EXPECT_EQ(told("state") + told("percent") + told("rate"), "teardown500");
}

TEST_F(ProgressTest, AnAgentThatWasStoppedWhileItLookedTellsSoon) {
  walk();
  const Ref waits = file("waits", State::kQueued, Reason::kNone, 100);
  shared_.clock = &clock_;
  shared_.stops = true;
  progress().start();
  EXPECT_TRUE(tells("state", "staging-in"));
  catalog_->entry(waits).state = state_word(State::kPlaced);
  moved();
  EXPECT_TRUE(tells("state", "staged-in"));
  EXPECT_LE(clock_.now_ns() - shared_.stopped, 2'000'000'000);
}

TEST_F(ProgressTest, WhatDoesNotMoveIsNotLookedAt) {
  walk();
  file("placed", State::kPlaced, Reason::kNone, 100);
  progress().start();
  EXPECT_TRUE(tells("state", "staged-in"));
  const int asked = shared_.asked;
  pass(1500);
  EXPECT_EQ(shared_.asked, asked);
  moved();
  EXPECT_TRUE(eventually([&] { return shared_.asked > asked; }));
}

TEST_F(ProgressTest, WithoutAThreadWhoWaitsGoesOn) {
  {
    const Intercept none(Call::kStartThread, EAGAIN);
    progress().start();
  }
  EXPECT_EQ(told("state"), "allocated");
  progress().stop();
  EXPECT_EQ(told("state"), "teardown");
}

// ---- whether anybody uses the dataset

class UseWatchTest : public ::testing::Test {
 protected:
  UseWatchTest() {
    Result<BoardFile> board = BoardFile::create(scratch_.dir("run"));
    EXPECT_TRUE(board.ok());
    board_.emplace(board.take());
    directory_ = Fd(::open((scratch_ / "run").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  }
  void began(int64_t ms) const { scratch_.file("run/began", std::to_string(ms)); }
  UseWatch watch(int patience_s) { return {(*board_).get(), directory_.get(), patience_s, clock_}; }

  ManualClock clock_;
  const Scratch scratch_;
  std::optional<BoardFile> board_;
  Fd directory_;
};

TEST_F(UseWatchTest, WithoutATaskNothingIsUnused) {
  UseWatch one = watch(1);
  EXPECT_FALSE(one.is_unused()) << "there is no file";
  EXPECT_EQ(one.wait_ms(), 1000);
  for (const char* text : {"", "soon", "-5"}) {
    scratch_.file("run/began", text);
    EXPECT_FALSE(one.is_unused()) << text;
  }
  for (const int64_t far : {clock_.now_ms() + 3600000, INT64_MAX}) {
    began(far);
    EXPECT_FALSE(one.is_unused()) << far;
    EXPECT_EQ(one.wait_ms(), 1000) << far;
  }
  fs::remove(scratch_ / "run/began");
  ASSERT_EQ(::symlink(scratch_.file("elsewhere", "1").c_str(), (scratch_ / "run/began").c_str()), 0);
  EXPECT_FALSE(one.is_unused()) << "a link is not followed";
  fs::remove(scratch_ / "run/began");
  ASSERT_EQ(::mkfifo((scratch_ / "run/began").c_str(), 0600), 0);
  EXPECT_FALSE(one.is_unused()) << "and nobody waits for a writer";
  fs::remove(scratch_ / "run/began");
}

TEST_F(UseWatchTest, AUseEndsTheWatch) {
  began(0);
  UseWatch one = watch(1);
  EXPECT_TRUE(one.is_unused());
  EXPECT_EQ(one.wait_ms(), 200) << "a use is found soon";
  count(board_->get(), TaskCounter::opens_pfs);
  EXPECT_FALSE(one.is_unused());
  EXPECT_EQ(one.wait_ms(), -1);
}

// ---- membership

using Ports = std::vector<uint16_t>;
const Ports kPorts = {64003, 64004};

std::string error_of(const std::string& text) {
  const Result<std::vector<NodeAddress>> nodes = parse_nodes(text, kPorts);
  return nodes.ok() ? "" : nodes.error().text;
}

// A descriptor from which that can be read.
int pipe_with(const std::string& text) {
  int ends[2];
  EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  EXPECT_EQ(::write(ends[1], text.data(), text.size()), static_cast<ssize_t>(text.size()));
  ::close(ends[1]);
  return ends[0];
}

JobKey key_of(char c) {
  JobKey key;
  key.fill(static_cast<unsigned char>(c));
  return key;
}

TEST(PeerPorts, BeginWhereTheJobSaysAndAreOfTheRange) {
  constexpr uint16_t kFirst = 64000;
  for (const auto& [last, count] : {std::pair(64999, 16u), {64002, 3u}, {64000, 1u}}) {
    std::set<uint16_t> begins;
    for (int i = 0; i < 100; ++i) {
      const std::string identity = "c." + std::to_string(i) + ".0";
      const Ports ports = ports_of(identity, kFirst, static_cast<uint16_t>(last));
      EXPECT_EQ(ports, ports_of(identity, kFirst, static_cast<uint16_t>(last)));
      ASSERT_EQ(ports.size(), count);
      for (uint32_t at = 0; at + 1 < count; ++at)
        EXPECT_EQ(ports[at + 1], ports[at] == last ? kFirst : ports[at] + 1) << identity;
      begins.insert(ports[0]);
    }
    EXPECT_GE(begins.size(), std::min(count, 3u) * (count == 16 ? 20 : 1)) << "each elsewhere";
  }
}

TEST(PeerNodes, AreOnePerLine) {
  const auto nodes = parse_nodes("n1 10.0.0.1\nn2 fd00::2\nn3 -\n10.0.0.4:7000\n[fd00::5]:7001", kPorts);
  ASSERT_TRUE(nodes.ok()) << nodes.error().text;
  ASSERT_EQ(nodes->size(), 5u);
  const std::tuple<const char*, const char*, Ports> want[] = {{"n1", "10.0.0.1", kPorts},
                                                              {"n2", "fd00::2", kPorts},
                                                              {"n3", "-", kPorts},
                                                              {"10.0.0.4:7000", "10.0.0.4", {7000}},
                                                              {"[fd00::5]:7001", "fd00::5", {7001}}};
  for (size_t i = 0; i < 5; ++i)
    EXPECT_EQ(std::tuple((*nodes)[i].name, (*nodes)[i].host, (*nodes)[i].ports), want[i]) << i;
}

TEST(PeerNodes, WhatIsNoneIsToldWithItsLine) {
  std::istringstream lines(
      "| |n2|n2 | 10.0.0.2|n2 n2|n2  10.0.0.2|n2 10.0.0.2 "
      "7000|10.0.0.2|10.0.0.2:|10.0.0.2:0|10.0.0.2:65536|10.0.0.2:x|"
      "10.0.0.2:7000x|10.0.0.2:7000\r|:7000|host:7000|[]:7000|-:7000|fd00::2:7000|[10.0.0.2]:7000|[fd00::2:"
      "7000|"
      "fd00::2]:7000");
  for (std::string line; std::getline(lines, line, '|');) {
    const std::string error = error_of(std::string("n1 10.0.0.1\n") + line + "\nn3 10.0.0.3\n");
    EXPECT_TRUE(error.starts_with("2: '")) << "'" << line << "': " << error;
    EXPECT_TRUE(has(error, "is not ADDRESS:PORT; write for example")) << error;
  }
  for (const char* few : {"", "n1 10.0.0.1\n"})
    EXPECT_EQ(error_of(few), " it takes a line for each of at least two nodes");
  std::string many;
  for (int i = 0; i < 65536; ++i) many += "n ::1\n";
  EXPECT_EQ(error_of(many), "");
  EXPECT_EQ(error_of(many + "n ::1\n"), " more than 65536 nodes");
}

TEST(PeerKey, IsAllThatComes) {
  const int fd = pipe_with(std::string(32, 'k'));
  const Result<JobKey> key = take_key(fd);
  ASSERT_TRUE(key.ok()) << key.error().text;
  EXPECT_EQ(*key, key_of('k'));
  EXPECT_LT(::fcntl(fd, F_GETFD), 0) << "it is closed";
  for (const size_t bytes : {0, 31, 33, 64})
    EXPECT_TRUE(
        take_key(pipe_with(std::string(bytes, 'k'))).error().text.starts_with("the job's key: not 32 bytes"))
        << bytes;
  EXPECT_EQ(take_key(-1).error().code, EBADF);
}

TEST(PeerKey, InAFileIsItsOwnersAlone) {
  const Scratch scratch;
  const std::string file = scratch.file("key", std::string(32, '\n'));
  for (const mode_t mode : {0600, 0400, 0640, 0604, 0620, 0602, 0601, 0610}) {
    ::chmod(file.c_str(), mode);
    const Result<JobKey> key = read_key_file(file);
    EXPECT_EQ(key.ok(), (mode & 077) == 0) << mode;
    EXPECT_TRUE(key.ok() ? *key == key_of('\n') : key.error().text.ends_with("run chmod 600 " + file));
  }
  const std::string shorter = scratch.file("short", "abc");
  ::chmod(shorter.c_str(), 0600);
  EXPECT_EQ(read_key_file(shorter).error().text,
            shorter + ": not 32 bytes; make it by head -c32 /dev/urandom");
  EXPECT_EQ(read_key_file(scratch / "none").error().code, ENOENT);
  EXPECT_EQ(read_key_file(scratch.dir("d")).error().text, (scratch / "d") + ": not a plain file");
}

TEST(PeerMembership, IsReadAsTheCommandLineHasIt) {
  const Scratch scratch;
  PeerConfig config;
  config.ports = {7000, 7001};
  PeerArguments arguments;
  arguments.file = scratch.file("peers", "n1 10.0.0.1\nn2 10.0.0.2\n");
  arguments.identity = "c.1.0";
  const auto read = [&](uint32_t index) {
    arguments.index = index;
    arguments.key_fd = pipe_with(std::string(32, 'k'));
    return read_membership(arguments, config);
  };
  const Result<PeerMembership> second = read(1);
  ASSERT_TRUE(second.ok()) << second.error().text;
  EXPECT_EQ(std::tuple(second->own, second->identity, second->key), std::tuple(1u, "c.1.0", key_of('k')));
  ASSERT_EQ(second->nodes.size(), 2u);
  EXPECT_EQ(second->nodes[0].host, "10.0.0.1");
  for (const NodeAddress& node : second->nodes) EXPECT_EQ(node.ports, ports_of("c.1.0", 7000, 7001));
  EXPECT_EQ(read(2).error().text, "--peer-index 2: " + arguments.file + " has 2 nodes, from 0 on");
  scratch.file("peers", "");
  EXPECT_TRUE(read(0).error().text.starts_with(arguments.file + ": it takes")) << read(0).error().text;
  arguments.key_fd = pipe_with("");
  EXPECT_TRUE(read_membership(arguments, config).error().text.starts_with("the job's key"));
}

// ---- another agent goes on

class TakeOverTest : public PlacementTest {
 protected:
  // An entry whose copy has its name on the tier.
  Ref copied(const std::string& name, uint64_t word, struct stat* made) {
    scratch_.file("pfs/" + name, noise(kBytes, 1));
    const Ref ref = catalog_->add(rel(name), DT_REG);
    const struct stat source = source_stat(name);
    const Result<Fd> file = tier().create(ref, kBytes);
    EXPECT_TRUE(file.ok() && ::ftruncate(file->get(), kBytes) == 0 &&
                tier().publish(*file, ref, source, made).ok());
    Entry& e = catalog_->entry(ref);
    e.size = kBytes, e.mtime = nanoseconds(source.st_mtim);
    e.state = word;
    return ref;
  }
  Ref placed(const std::string& name) {
    struct stat made;
    const Ref ref = copied(name, state_word(State::kStaging), &made);
    EXPECT_TRUE(catalog_->place(ref, 0, made.st_ino, source_stat(name)));
    return ref;
  }
  bool marked(const std::string& name) { return is_invalid(*board_->get(), rel(name).hash); }
  static constexpr uint64_t kBytes = 8192;
};

TEST_F(TakeOverTest, CopiesThatStayCountAndOthersAreRemoved) {
  prepare();
  struct stat made;
  const Ref kept = placed("kept"), replaced = placed("replaced"),
            linked = catalog_->add(rel("linked"), DT_REG);
  copied("staging", state_word(State::kStaging), &made);
  copied("leaving", state_word(State::kNoFit, Reason::kEvicted), &made);
  catalog_->entry(replaced).state = again_word(kept);
  ASSERT_TRUE(tier().link(kept, linked));
  ASSERT_EQ(::stat(copy_of("kept").c_str(), &made), 0);
  ASSERT_TRUE(catalog_->place_link(linked, 0, made.st_ino, source_stat("kept")));
  const uint64_t used = tier().used();
  take_over(&*catalog_, &*hierarchy_, board_->get());
  EXPECT_EQ(tier().used() - used, 2 * tier().space_of(kBytes)) << "the one that was replaced may be open";
  EXPECT_EQ((*board_)->placed_bytes[0], 2 * kBytes);
  EXPECT_EQ(files_on(), 2);
  EXPECT_EQ(state("kept"), State::kPlaced);
  for (const char* name : {"staging", "linked"}) EXPECT_EQ(word(name), state_word(State::kKnown)) << name;
}

TEST_F(TakeOverTest, WhatTasksAreToldIsComparedAndWatched) {
  prepare();
  std::filesystem::create_directories(pfs_ + "/a");
  std::filesystem::create_directories(pfs_ + "/b");
  const Ref large = placed("large"), seen = catalog_->add(rel("a/seen"), DT_REG);
  scratch_.file("pfs/a/seen", "content");
  scratch_.file("pfs/b/new", "content");
  catalog_->add(rel("b/new"), DT_REG);
  ASSERT_NE(catalog_->start_chunks(large, 0, source_stat("large")), 0u);
  const struct stat st = source_stat("a/seen");
  ASSERT_TRUE(
      catalog_->add_seen({seen,
                          rel("a/seen").hash,
                          {st.st_dev, st.st_ino, 7, 8, nanoseconds(st.st_atim), nanoseconds(st.st_mtim),
                           nanoseconds(st.st_ctim), st.st_mode, st.st_uid, st.st_gid, 1, 4096, 0}}));
  take_over(&*catalog_, &*hierarchy_, board_->get());
  for (const char* name : {"large", "a/seen"}) scratch_.file(std::string("pfs/") + name, "another content");
  watch_ = std::make_unique<ChangeWatch>(&*dataset_, board_->get(), 1000);
  watch_->start();
  rates_.emplace(config_, clock_);
  compare_placed(catalog_.get(), *dataset_, watch_.get(), board_->get(), &rates_->pfs_stats,
                 [] { return false; });
  for (const char* name : {"large", "a/seen"}) EXPECT_TRUE(marked(name)) << name;
  EXPECT_FALSE(marked("b/new"));
  scratch_.file("pfs/b/new", "another content");
  EXPECT_TRUE(eventually([&] { return marked("b/new"); })) << "tasks may tell of it from now on";
  watch_->stop();
  watch_.reset();
}

}  // namespace
}  // namespace monarch
