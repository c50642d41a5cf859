// SPDX-License-Identifier: Apache-2.0
// What one node tells another of files, and of their changes, and what that one makes of it.
#include "runtime/peer/told_values.h"

#include <optional>
#include <tuple>
#include <utility>

#include "runtime/metadata/board.h"
#include "runtime/peer/changes.h"
#include "tests/catalog_fixture.h"
#include "tests/faulty_os.h"
#include "tests/manual_clock.h"

namespace monarch {
namespace {

constexpr uint64_t kDevice = 77;  // of the root, as node 1 has it

class ToldValuesTest : public ::testing::Test {
 protected:
  // Of the PFS, whose only root is there.
  struct Side {
    Side(const std::string& pfs, const std::string& dir, NodeIndex own, uint32_t nodes, uint64_t device,
         std::string mounts, ReadPolicy policy)
        : board(std::move(BoardFile::create(dir)).take()) {
      dataset.roots.emplace_back();
      dataset.roots[0].path = pfs;
      dataset.roots[0].dev = device;
      catalog =
          std::move(Catalog::create(dir, {{device}}, {{0, pfs, "", device, 2}}, {{"ssd", "/ssd", 8}}, policy))
              .take();
      ToldValuesOptions options;
      options.catalog = catalog.get();
      options.dataset = &dataset;
      options.board = board.get();
      options.own = own;
      options.nodes = nodes;
      options.tell = [this](NodeIndex node, const std::string& message) {
        const std::optional<Told> sent =
            decode<Told>(std::string_view(message).substr(MessageHeader::kBytes));
        ASSERT_TRUE(sent);
        told.emplace_back(node, *sent);
      };
      options.ring_after = [this](int) { ++rings; };
      options.mounts = std::move(mounts);
      values.emplace(std::move(options), clock);
    }
    // A task has asked the PFS.
    Ref saw(const std::string& path, const struct stat& st) {
      const Ref ref = catalog->add(rel(path), static_cast<uint8_t>(IFTODT(st.st_mode)));
      const Seen seen = {ref,
                         rel(path).hash,
                         {dataset.roots[0].dev, st.st_ino, static_cast<uint64_t>(st.st_size),
                          static_cast<uint64_t>(st.st_blocks), ns_of(st.st_atim), ns_of(st.st_mtim),
                          ns_of(st.st_ctim), st.st_mode, st.st_uid, st.st_gid,
                          static_cast<uint32_t>(st.st_nlink), static_cast<uint32_t>(st.st_blksize), 0}};
      EXPECT_TRUE(catalog->add_seen(seen));
      values->learned(ref);
      return ref;
    }
    // The agent has read the file.
    Ref placed(const std::string& path, struct stat st) {
      const Ref ref = catalog->add(rel(path), DT_REG);
      st.st_dev = dataset.roots[0].dev;
      catalog->entry(ref).size = static_cast<uint64_t>(st.st_size);
      catalog->entry(ref).mtime = ns_of(st.st_mtim);
      EXPECT_TRUE(catalog->place(ref, 0, st.st_ino + 1000, st));
      values->learned(ref);
      return ref;
    }
    const SeenFile* seen(const std::string& path) const {
      const Found found = catalog->reader().find(rel(path));
      return found ? catalog->reader().seen_file(*found.entry) : nullptr;
    }
    Ref ref(const std::string& path) const { return catalog->reader().find(rel(path)).ref; }

    ManualClock clock;
    BoardFile board;
    Dataset dataset;
    std::unique_ptr<Catalog> catalog;
    std::vector<std::pair<NodeIndex, Told>> told;
    int rings = 0;
    std::optional<ToldValues> values;
  };

  std::unique_ptr<Side> side(NodeIndex own, uint32_t nodes, const std::string& mounts = "",
                             bool serves = true) {
    const std::string number = std::to_string(++sides_);
    return std::make_unique<Side>("/pfs", scratch_.dir("run" + number), own, nodes, kDevice + own,
                                  scratch_.file("mounts" + number, mounts),
                                  ReadPolicy{64 << 20, 0, false, serves});
  }
  static struct stat file(uint64_t inode, off_t bytes = 123) {
    struct stat st = source_stat(inode);
    st.st_size = bytes;
    st.st_mtim = {300, 3};
    return st;
  }
  // All that `from` has for node 1, heard by `to`.
  static void tell(Side* from, Side* to) {
    from->values->rings();
    while (!from->told.empty()) {
      const auto [node, told] = from->told.front();
      from->told.erase(from->told.begin());
      if (node != 1) continue;
      EXPECT_TRUE(to->values->take(told));
      from->values->heard(1, {told.turn});
    }
  }

  const Scratch scratch_;
  int sides_ = 0;
};

TEST_F(ToldValuesTest, WhatOneNodeHasLearnedTheOthersKnow) {
  const auto one = side(0, 2), two = side(1, 2);
  one->saw("d/f", file(5));
  struct stat link = file(6);
  link.st_mode = S_IFLNK | 0777;
  one->saw("link", link);
  one->placed("placed", file(7, 1 << 20));
  EXPECT_EQ(one->rings, 1) << "once for all of them";
  tell(one.get(), two.get());
  const SeenFile* f = two->seen("d/f");
  ASSERT_NE(f, nullptr);
  EXPECT_EQ(f->size, 123u);
  EXPECT_EQ(f->mtime, 300'000'000'003);
  EXPECT_EQ(f->identity.pfs_ino, 5u);
  ASSERT_NE(two->seen("link"), nullptr);
  for (const char* path : {"d/f", "link"})
    EXPECT_FALSE(two->values->values(two->ref(path))) << "no agent has read it";
  const std::optional<struct stat> st = two->values->values(two->ref("placed"));
  ASSERT_TRUE(st);
  const auto all_of = [](const struct stat& s) {
    return std::tuple(s.st_dev, s.st_ino, s.st_size, s.st_mode, s.st_nlink, s.st_uid, s.st_gid, s.st_blksize,
                      s.st_blocks, ns_of(s.st_mtim), ns_of(s.st_ctim), ns_of(s.st_atim));
  };
  struct stat want = file(7, 1 << 20);
  want.st_dev = kDevice + 1;  // as this node has the root
  EXPECT_EQ(all_of(*st), all_of(want));
  EXPECT_EQ(two->rings, 0) << "what one was told is not told on";
}

TEST_F(ToldValuesTest, EachNodeIsToldOncePartByPart) {
  for (const std::string& dir :
       {std::string("f"), std::string(200, 'a') + "/" + std::string(200, 'b') + "/"}) {
    SCOPED_TRACE(dir);
    const auto one = side(0, 3), two = side(1, 3);
    for (uint64_t i = 0; i < 1200; ++i) one->saw(dir + std::to_string(i), file(i + 1));
    one->values->rings();
    ASSERT_EQ(one->told.size(), 2u) << "a part for each, until it is heard";
    EXPECT_NE(one->told[0].first, one->told[1].first);
    EXPECT_LE(one->told[0].second.files.size(), Told::kMost);
    EXPECT_LE(encode(one->told[0].second).size(), MessageHeader::kBytes + kMostBody);
    one->values->rings();
    one->values->heard(1, {Told::kMost + 1});
    EXPECT_EQ(one->told.size(), 2u) << "nothing of that was heard";
    tell(one.get(), two.get());
    for (uint64_t i = 0; i < 1200; ++i) ASSERT_NE(two->seen(dir + std::to_string(i)), nullptr) << i;
    one->values->met(1, 0);
    EXPECT_TRUE(one->told.empty()) << "it has all";
    one->values->met(1, 42);
    ASSERT_EQ(one->told.size(), 1u) << "another agent has nothing";
    EXPECT_EQ(one->told[0].second.files[0].path, dir + "0");
    one->values->gone(1);
    one->values->rings();
    EXPECT_EQ(one->told.size(), 1u) << "it is away";
  }
}

// Whoever hears of a value after the mark, or before it, serves it no longer than its own.
TEST_F(ToldValuesTest, WhatTheJobHasChangedIsNeitherToldNorTaken) {
  const auto one = side(0, 2), two = side(1, 2);
  const char* const paths[] = {"by_path", "by_inode", "dir/below", "kept"};
  for (uint64_t i = 0; i < 4; ++i) one->placed(paths[i], file(100 + i));
  one->values->rings();
  ASSERT_EQ(one->told.size(), 1u);
  const Told early = one->told[0].second;
  const auto mark = [](Board* board) {
    set_invalid(board, rel("by_path").hash);
    set_invalid(board, mark_of_inode(101), kChangedInodes);
    set_invalid(board, rel("dir").hash, kChangedDirectories);
  };
  // The mark is there first.
  mark(two->board.get());
  EXPECT_TRUE(two->values->take(early));
  for (const char* path : {"by_path", "by_inode", "dir/below"}) {
    EXPECT_EQ(two->seen(path), nullptr) << path;
    EXPECT_FALSE(two->values->values(two->ref(path))) << path;
  }
  EXPECT_NE(two->seen("kept"), nullptr);
  // It comes later: tasks look at it, and so does who stages.
  const auto three = side(1, 2);
  EXPECT_TRUE(three->values->take(early));
  for (const char* path : paths) EXPECT_TRUE(three->values->values(three->ref(path))) << path;
  mark(three->board.get());
  for (const char* path : {"by_path", "by_inode", "dir/below"})
    EXPECT_FALSE(three->values->values(three->ref(path)));
  EXPECT_TRUE(three->values->values(three->ref("kept")));
  // What it is told of late it does not tell itself.
  mark(one->board.get());
  one->told.clear();
  one->values->met(1, 7);
  ASSERT_EQ(one->told.size(), 1u);
  ASSERT_EQ(one->told[0].second.files.size(), 1u);
  EXPECT_EQ(one->told[0].second.files[0].path, "kept");
}

TEST_F(ToldValuesTest, WhatANodeCouldNotHaveLearnedItDoesNotTake) {
  const auto one = side(0, 2);
  one->saw("f", file(5));
  struct stat now = file(6);
  now.st_ctim = {::time(nullptr), 0};
  one->saw("just_now", now);
  one->values->rings();
  const Told told = one->told.at(0).second;
  const std::string other = "30 1 0:9 / /pfsx rw - tmpfs none rw\n";
  struct Case {
    const char* what;
    std::string mounts;
    bool serves, takes;
  };
  for (const Case& c :
       {Case{"it serves", "", true, true},
        {"it asks the PFS each time", "", false, false},
        {"something is mounted beside", other, true, true},
        {"something is mounted there", other + "31 1 0:9 / /pfs/d rw - tmpfs none rw\n", true, false}}) {
    const auto two = side(1, 2, c.mounts, c.serves);
    EXPECT_TRUE(two->values->take(told)) << c.what;
    EXPECT_EQ(two->seen("f") != nullptr, c.takes) << c.what;
    EXPECT_EQ(two->seen("just_now"), nullptr) << "another change would not show";
  }
  const auto known = side(1, 2);
  known->saw("f", file(9, 5));
  EXPECT_TRUE(known->values->take(told));
  EXPECT_EQ(known->seen("f")->size, 5u) << "what it knows stays";
}

TEST_F(ToldValuesTest, WhatNoNodeSaysIsRefused) {
  const auto one = side(0, 2), two = side(1, 2);
  one->saw("f", file(5));
  one->values->rings();
  const Told good = one->told.at(0).second;
  const std::pair<const char*, void (*)(ToldFile*)> cases[] = {
      {"another root", [](ToldFile* f) { f->root = 1; }},
      {"no path", [](ToldFile* f) { f->path = ""; }},
      {"one that leads out", [](ToldFile* f) { f->path = "../f"; }},
      {"an absolute one", [](ToldFile* f) { f->path = "/f"; }},
      {"a long one", [](ToldFile* f) { f->path.assign(kPathBytes, 'f'); }},
      {"a directory", [](ToldFile* f) { f->mode = S_IFDIR | 0755; }},
      {"no name", [](ToldFile* f) { f->links = 0; }}};
  for (const auto& [what, spoil] : cases) {
    Told told = good;
    spoil(&told.files[0]);
    EXPECT_FALSE(two->values->take(told)) << what;
    EXPECT_EQ(two->catalog->header().entry_count, 0u) << what;
  }
  EXPECT_TRUE(two->values->take(good));
}

TEST_F(ToldValuesTest, WhatIsNotPublishedYetIsToldLater) {
  const auto one = side(0, 2);
  const Ref ref = one->catalog->add(rel("f"), DT_REG);
  ASSERT_TRUE(one->catalog->move(ref, state_word(State::kKnown), state_word(State::kStaging)));
  one->values->learned(ref);
  one->values->rings();
  EXPECT_TRUE(one->told.empty());
  EXPECT_EQ(one->rings, 2);
  one->catalog->entry(ref).size = 123;
  ASSERT_TRUE(one->catalog->place(ref, 0, 55, [&] {
    struct stat st = file(5);
    st.st_dev = kDevice;
    return st;
  }()));
  one->values->rings();
  ASSERT_EQ(one->told.size(), 1u);
  EXPECT_EQ(one->rings, 2) << "an idle node is not woken";
  const Ref lost = one->catalog->add(rel("g"), DT_REG);
  one->values->learned(lost);
  one->catalog->drop(lost, State::kDropped, Reason::kChanged);
  one->values->heard(1, {one->told[0].second.turn});
  one->values->rings();
  EXPECT_EQ(one->told.size(), 1u) << "of what was given up there is nothing to tell";
}

TEST_F(ToldValuesTest, WhatIsNotOfThisRootOrNotKnownIsNotToldAndOnlyWhatIsWholeWasRead) {
  const auto one = side(0, 2);
  one->values->learned(one->catalog->add(rel("known"), DT_REG));
  one->values->rings();
  EXPECT_EQ(one->rings, 1) << "nothing more will come of it";
  const Ref other = one->catalog->add(rel("other"), DT_REG), large = one->catalog->add(rel("large"), DT_REG);
  struct stat st = file(5, 100 << 20);
  st.st_dev = kDevice + 7;
  EXPECT_TRUE(one->catalog->place(other, 0, 55, st));
  one->values->learned(other);
  one->values->rings();
  EXPECT_TRUE(one->told.empty());
  st.st_dev = kDevice;
  one->catalog->entry(large).state = large_word(one->catalog->start_chunks(large, 0, st));
  one->placed("placed", file(6));
  one->values->learned(large);
  one->values->rings();
  ASSERT_EQ(one->told.size(), 1u);
  ASSERT_EQ(one->told[0].second.files.size(), 2u);
  for (const ToldFile& told : one->told[0].second.files)
    EXPECT_EQ(told.read, told.path == "placed" ? 1 : 0) << told.path;
}

TEST_F(ToldValuesTest, WhoWasAwayIsToldLater) {
  const auto one = side(0, 2), alone = side(0, 1), passes = side(0, 2, "", false);
  one->values->gone(1);
  one->saw("f", file(5));
  one->values->rings();
  EXPECT_TRUE(one->told.empty());
  one->clock.advance_ms(patience::kPeerSlowMs + 1);
  one->values->rings();
  EXPECT_EQ(one->told.size(), 1u);
  alone->saw("f", file(5));
  EXPECT_EQ(alone->rings, 0) << "a job of one node tells nobody";
  passes->values->learned(passes->catalog->add(rel("f"), DT_REG));
  EXPECT_EQ(passes->rings, 0) << "nor one whose tasks all ask the PFS";
}

// ---- what the job has changed

class ChangesTest : public ::testing::Test {
 protected:
  using Marks = std::vector<uint32_t>;
  static constexpr uint32_t kLast = kInvalidBits - 1;
  BoardFile make_board(const std::string& name) const {
    Result<BoardFile> board = BoardFile::create(scratch_.dir(name));
    EXPECT_TRUE(board.ok());
    return board.take();
  }
  void expect_told(const Marks& marks, int closed = 0) {
    const std::optional<Mark> mark = changes_.next();
    ASSERT_TRUE(mark);
    EXPECT_EQ(mark->marks, marks);
    EXPECT_EQ(mark->closed, closed);
  }
  const Scratch scratch_;
  const BoardFile board_ = make_board("own");
  Changes changes_{board_.get()};
};

TEST_F(ChangesTest, EachMarkIsToldOnce) {
  EXPECT_FALSE(changes_.next());
  for (const uint32_t mark : {5u, 70u, 6u, kLast}) set_invalid(board_.get(), mark, kChangedInodes);
  const std::optional<Mark> mark = changes_.next();
  ASSERT_TRUE(mark);
  EXPECT_EQ(mark->marks, (Marks{5, 6, 70, kLast}));
  EXPECT_EQ(mark->kinds, kChangedInodes);
  EXPECT_EQ(mark->closed, 0);
  EXPECT_FALSE(changes_.next());
  set_invalid(board_.get(), 5, kChangedInodes);
  EXPECT_FALSE(changes_.next()) << "the others know it";
  set_invalid(board_.get(), 7, kChangedInodes);
  expect_told({7});
  board_->header.closed = 1;
  expect_told({}, 1);
  EXPECT_FALSE(changes_.next());
}

// A path is marked before it is known that a directory is there.
TEST_F(ChangesTest, AMarkOfAnotherKindIsToldAgain) {
  set_invalid(board_.get(), 5, kChangedFiles);
  expect_told({5});
  set_invalid(board_.get(), 5, kChangedDirectories);
  const std::optional<Mark> mark = changes_.next();
  ASSERT_TRUE(mark);
  EXPECT_TRUE(mark->marks.empty());
  EXPECT_EQ(mark->kinds, kChangedFiles | kChangedDirectories);
  EXPECT_FALSE(changes_.next());
}

TEST_F(ChangesTest, WhatOthersHaveMarkedIsMarkedOnceAndNotToldOn) {
  changes_.take({kChangedFiles, 0, {5, 70, static_cast<uint32_t>(kInvalidBits), 0xffffffff}});
  for (const uint32_t mark : {5u, 70u}) EXPECT_TRUE(is_invalid(*board_.get(), mark));
  for (const uint32_t none : {0u, kLast}) EXPECT_FALSE(is_invalid(*board_.get(), none)) << "no mark's number";
  const uint32_t before = board_->header.marks;
  for (const int turn : {0, 1}) {
    changes_.take({kChangedFiles | kChangedDirectories, 0, {}});
    EXPECT_EQ(board_->header.changed, kChangedFiles | kChangedDirectories);
    EXPECT_EQ(board_->header.marks, before + 1) << "what is open is looked at, once: " << turn;
    EXPECT_EQ(board_->header.closed, 0u);
    EXPECT_FALSE(changes_.next());
  }
  const uint64_t changes = board_->header.changes;
  changes_.take({kChangedFiles | kChangedDirectories, 1, {5}});
  EXPECT_EQ(board_->header.changes, changes) << "it is known";
  EXPECT_EQ(board_->header.closed, 1u);
  EXPECT_FALSE(changes_.next());
}

// The task is between the steps of set_invalid() while the agent looks.
TEST_F(ChangesTest, AMarkThatIsBeingSetIsToldOnceItCanBeSeen) {
  ++board_->header.changes;
  EXPECT_FALSE(changes_.next());
  board_->invalid[0] = 1 << 5;
  ++board_->header.marks;
  expect_told({5});
}

TEST_F(ChangesTest, ManyMarksComeInParts) {
  Marks all;
  for (uint32_t mark = 3; mark < Mark::kMost + 103; ++mark) {
    set_invalid(board_.get(), mark);
    all.push_back(mark);
  }
  expect_told({all.begin(), all.begin() + Mark::kMost});
  expect_told({all.begin() + Mark::kMost, all.end()});
  EXPECT_FALSE(changes_.next());
  Marks known;
  for (const Mark& mark : changes_.all()) {
    EXPECT_LE(mark.marks.size(), Mark::kMost);
    known.insert(known.end(), mark.marks.begin(), mark.marks.end());
  }
  EXPECT_EQ(known, all);
}

TEST_F(ChangesTest, WhoIsMetHearsOfAll) {
  EXPECT_TRUE(changes_.all().empty());
  set_invalid(board_.get(), 5, kChangedDirectories);
  EXPECT_TRUE(changes_.next());
  changes_.take({kChangedFiles, 0, {70}});
  const std::vector<Mark> all = changes_.all();
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].marks, (Marks{5, 70}));
  EXPECT_EQ(all[0].kinds, kChangedDirectories | kChangedFiles);
  EXPECT_EQ(all[0].closed, 0);
  const BoardFile closed = make_board("closed");
  Changes alone(closed.get());
  alone.take({0, 1, {}});
  ASSERT_EQ(alone.all().size(), 1u);
  EXPECT_TRUE(alone.all()[0].marks.empty());
  EXPECT_EQ(alone.all()[0].closed, 1);
}

TEST_F(ChangesTest, AMarkConcernsWhatItIsOf) {
  const Board& board = *board_.get();
  const std::string text = "a/b/f";
  const RelPath path = rel(text);
  const auto sets = [&](const RelPath& marked, Changed kind) {
    set_invalid(board_.get(), marked.hash, kind);
    return is_marked(board, path, 7);
  };
  EXPECT_FALSE(is_marked(board, path, 7));
  EXPECT_FALSE(sets(rel("a/b/g"), kChangedFiles));
  EXPECT_FALSE(sets(rel("a"), kChangedFiles)) << "no directory is marked yet";
  set_invalid(board_.get(), mark_of_inode(8), kChangedInodes);
  EXPECT_FALSE(is_marked(board, path, 7));
  EXPECT_TRUE(is_marked(board, path, 8));
  EXPECT_TRUE(is_marked(board, rel("a/b/g"), 7));
  EXPECT_TRUE(sets(rel("c"), kChangedDirectories)) << "a is marked, whatever it is";
  EXPECT_FALSE(is_marked(board, rel("aa/b/f"), 7));
  EXPECT_FALSE(is_marked(board, rel("f"), 7)) << "below the root";
  EXPECT_TRUE(is_marked(board, rel("c/f"), 7));
}

}  // namespace
}  // namespace monarch
