// SPDX-License-Identifier: Apache-2.0
#include "runtime/metadata/change_watch.h"

#include <fcntl.h>

#include <optional>

#include "runtime/metadata/board.h"
#include "tests/faulty_os.h"
#include "tests/logged.h"
#include "tests/quiet.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

class ChangeWatchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    fs::create_directories(root() / "sub/deep");
    for (const char* name : {"a", "b", "c", "sub/a", "sub/b", "sub/deep/a"}) write(name, "old");
    Result<Dataset> dataset = Dataset::open({root().string()});
    ASSERT_TRUE(dataset.ok());
    dataset_.emplace(dataset.take());
    Result<BoardFile> board = BoardFile::create(scratch_.dir("run"));
    ASSERT_TRUE(board.ok()) << board.error().text;
    board_.emplace(board.take());
    begin(8);
    for (const char* name : {"", "sub", "sub/deep"}) add(name);
  }

  void begin(uint64_t most) {
    watch_ = std::make_unique<ChangeWatch>(&*dataset_, board_->get(), most);
    watch_->start();
  }
  void add(const std::string& name) {
    struct stat st;
    ASSERT_EQ(::stat((root() / name).c_str(), &st), 0);
    if (name != "sub") return watch_->add(0, name);  // both ways
    const Fd dir(::open((root() / name).c_str(), O_RDONLY | O_DIRECTORY));
    watch_->add(0, name, dir.get(), &st);
  }
  fs::path root() const { return fs::path(scratch_ / "data"); }
  void write(const std::string& name, const std::string& text) const { std::ofstream(root() / name) << text; }
  static uint32_t hash(std::string_view name) { return path_hash(0, name.data(), name.size()); }
  bool marked(const std::string& name, Changed kind = kChangedFiles) const {
    const Board& board = *board_->get();
    return (board.header.changed & kind) != 0 && is_invalid(board, hash(name));
  }
  static int times(const std::string& text, const std::string& part) {
    int found = 0;
    for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
    return found;
  }
  bool closed() const { return board_->get()->header.closed != 0; }
  // Whether what was done before has been told: a change made now is told after it.
  bool settled() {
    const std::string name = "sub/deep/probe" + std::to_string(probes_++);
    write(name, "x");
    return eventually([&] { return marked(name); });
  }

  Scratch scratch_;
  std::optional<Dataset> dataset_;
  std::optional<BoardFile> board_;
  std::unique_ptr<ChangeWatch> watch_;
  int probes_ = 0;
};

TEST_F(ChangeWatchTest, MarksWhatIsWritten) {
  write("a", "new");
  EXPECT_TRUE(eventually([&] { return marked("a"); }));
  std::ofstream(root() / "sub/a", std::ios::app) << "more";
  EXPECT_TRUE(eventually([&] { return marked("sub/a"); }));
  EXPECT_EQ(::truncate((root() / "sub/deep/a").c_str(), 1), 0);
  EXPECT_TRUE(eventually([&] { return marked("sub/deep/a"); }));
  ASSERT_TRUE(settled());
  EXPECT_FALSE(marked("b") || marked("sub/b") || marked("sub", kChangedDirectories) || closed());
  EXPECT_TRUE(eventually([&] { return total(*board_->get(), TaskCounter::invalidations) == 4; }))
      << "and counts it";
}

TEST_F(ChangeWatchTest, MarksAgainWhatMayHaveBeenCopiedSince) {
  write("a", "new");
  EXPECT_TRUE(eventually([&] { return marked("a"); }));
  ASSERT_TRUE(settled());
  const uint32_t before = changed_at(*board_->get(), hash("a"));
  board_->get()->header.copied_at = before + 10;
  write("a", "newer");
  EXPECT_TRUE(eventually([&] { return changed_at(*board_->get(), hash("a")) > before; }));
}

TEST_F(ChangeWatchTest, ReadingMarksNothing) {
  for (const char* name : {"a", "sub/a", "sub/deep/a"}) {
    std::string text;
    std::ifstream(root() / name) >> text;
    EXPECT_EQ(text, "old");
  }
  EXPECT_EQ(std::distance(fs::recursive_directory_iterator(root()), {}), 8);
  ASSERT_TRUE(settled());
  EXPECT_TRUE(eventually([&] { return total(*board_->get(), TaskCounter::invalidations) == 1; }))
      << "of what settled() has made, which is counted behind its mark";
}

TEST_F(ChangeWatchTest, MarksWhatAMapStoredWhenItsFileIsClosed) {
  const int fd = ::open((root() / "b").c_str(), O_RDWR);
  void* map = ::mmap(nullptr, 3, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ASSERT_NE(map, MAP_FAILED);
  static_cast<char*>(map)[0] = 'X';
  ::munmap(map, 3);
  ::close(fd);
  EXPECT_TRUE(eventually([&] { return marked("b"); }));
}

TEST_F(ChangeWatchTest, MarksNames) {
  fs::rename(root() / "a", root() / "sub/b");
  EXPECT_TRUE(eventually([&] { return marked("a") && marked("sub/b"); }));
  fs::remove(root() / "sub/deep/a");
  EXPECT_TRUE(eventually([&] { return marked("sub/deep/a"); }));
  EXPECT_FALSE(marked("b") || marked("sub/a"));
}

TEST_F(ChangeWatchTest, MarksAccess) {
  EXPECT_EQ(::chmod((root() / "a").c_str(), 0400), 0);
  EXPECT_TRUE(eventually([&] { return marked("a"); }));
  EXPECT_EQ(::chmod((root() / "sub").c_str(), 0700), 0);
  EXPECT_TRUE(eventually([&] { return marked("sub", kChangedDirectories); }));
  EXPECT_FALSE(closed());
  const uint32_t before = changed_at(*board_->get(), hash("sub"));
  board_->get()->header.copied_at = before + 10;  // what was copied since is served again
  EXPECT_EQ(::utimensat(AT_FDCWD, (root() / "sub").c_str(), nullptr, 0), 0);
  ASSERT_TRUE(settled());
  EXPECT_EQ(changed_at(*board_->get(), hash("sub")), before) << "the access is as it was then";
}

TEST_F(ChangeWatchTest, WhatChangesNothingAboutADirectoryIsNoChange) {
  for (int i = 0; i < 2; ++i) {
    for (const fs::path& dir : {root(), root() / "sub"}) {
      const struct stat st = stat_of(dir);
      EXPECT_EQ(::chmod(dir.c_str(), st.st_mode & 07777), 0);
      EXPECT_EQ(::chown(dir.c_str(), st.st_uid, st.st_gid), 0);
      const timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
      EXPECT_EQ(::utimensat(AT_FDCWD, dir.c_str(), times, 0), 0);
      std::ofstream(dir / ("new" + std::to_string(i))) << "x";
      EXPECT_EQ(::utimensat(AT_FDCWD, dir.c_str(), times, 0), 0);
    }
  }
  ASSERT_TRUE(settled());
  EXPECT_FALSE(marked("sub", kChangedDirectories) || closed());
}

// Where nothing is walked, names that lead through a link are asked for before it is known that they do.
TEST_F(ChangeWatchTest, ALinkTakesNoWatchAway) {
  fs::create_symlink("sub", root() / "link");
  watch_ = nullptr;
  begin(8);
  watch_->add(0, "sub/deep");
  watch_->add(0, "link/deep");
  write("sub/deep/a", "new");
  EXPECT_TRUE(eventually([&] { return marked("sub/deep/a"); }));
  EXPECT_FALSE(marked("link/deep/a"));
}

// As where a file system is mounted twice, or a directory of it elsewhere, and both are declared.
TEST_F(ChangeWatchTest, MarksAllNamesOfADirectory) {
  DatasetRoot other;
  other.path = root().string();
  other.fd = Fd(::open(other.path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  watch_.reset();
  dataset_->roots.push_back(std::move(other));
  begin(8);
  for (const char* name : {"", "sub"}) {
    watch_->add(0, name);
    watch_->add(1, name);
  }
  const auto marked_twice = [&](std::string_view name, Changed kind) {
    const Board& board = *board_->get();
    return (board.header.changed & kind) != 0 && is_invalid(board, path_hash(0, name.data(), name.size())) &&
           is_invalid(board, path_hash(1, name.data(), name.size()));
  };
  write("a", "new");
  EXPECT_TRUE(eventually([&] { return marked_twice("a", kChangedFiles); }));
  fs::remove(root() / "sub/b");
  EXPECT_TRUE(eventually([&] { return marked_twice("sub/b", kChangedFiles); }));
  EXPECT_EQ(::chmod((root() / "sub").c_str(), 0700), 0);
  EXPECT_TRUE(eventually([&] { return marked_twice("sub", kChangedDirectories); }));
}

TEST_F(ChangeWatchTest, WatchesWhatIsAbove) {
  watch_ = nullptr;
  begin(8);
  watch_->add(0, "sub/deep");
  fs::rename(root() / "sub", root() / "gone");
  EXPECT_TRUE(eventually([&] { return marked("sub", kChangedDirectories); }));
}

TEST_F(ChangeWatchTest, WatchesWhatIsMadeAnew) {
  watch_->add(0, "late");
  fs::create_directory(root() / "late");
  write("late/a", "old");
  watch_->add(0, "late");
  write("late/a", "new");
  EXPECT_TRUE(eventually([&] { return marked("late/a"); }));
  fs::remove_all(root() / "sub/deep");
  EXPECT_TRUE(eventually([&] { return marked("sub/deep", kChangedDirectories); }));
  fs::create_directory(root() / "sub/deep");
  write("sub/deep/b", "old");
  write("later", "x");
  ASSERT_TRUE(eventually([&] { return marked("later"); })) << "so the end of the first watch was told";
  watch_->add(0, "sub/deep");
  write("sub/deep/b", "new");
  EXPECT_TRUE(eventually([&] { return marked("sub/deep/b"); }));
}

TEST_F(ChangeWatchTest, ClosesWhenTheRootMovesOrIsLocked) {
  for (const bool moves : {false, true}) {
    board_->get()->header.closed = 0;
    if (moves)
      fs::rename(root(), scratch_ / "elsewhere");
    else
      fs::permissions(root(), fs::perms::owner_all);
    EXPECT_TRUE(eventually([&] { return closed(); })) << moves;
  }
}

TEST_F(ChangeWatchTest, KeepsToItsNumber) {
  watch_ = nullptr;
  begin(1);
  const std::string log = logged(scratch_, [&] {
    add("");
    EXPECT_TRUE(watch_->takes_more()) << "to say so";
    add("sub");
    EXPECT_FALSE(watch_->takes_more());
    add("sub/deep");
  });
  EXPECT_EQ(times(log, "watch_directories is reached"), 1) << log;
  write("sub/a", "new");
  write("a", "new");
  EXPECT_TRUE(eventually([&] { return marked("a"); }));
  EXPECT_FALSE(marked("sub/a"));
}

// What is asked for may have gone by then, or may not lead to the dataset: that is no news.
TEST_F(ChangeWatchTest, SaysWhatItCannotWatchUnlessThatIsGone) {
  for (const int error : {ENOENT, ENOTDIR, ELOOP, EXDEV, ENOSPC, EACCES})
    for (const Call call : {Call::kOpenBeneath, Call::kWatch}) {
      SCOPED_TRACE(std::strerror(error));
      watch_ = nullptr;
      begin(8);
      add("");
      const std::string log = logged(scratch_, [&] {
        const Intercept refuses(call, error);
        watch_->add(0, "sub");
      });
      const bool is_gone = error != ENOSPC && error != EACCES;
      EXPECT_EQ(times(log, "are noticed in 1 directories only"), is_gone ? 0 : 1) << log;
    }
}

TEST_F(ChangeWatchTest, WatchesNothingWhereItIsOffOrHasNoThread) {
  for (const bool has_thread : {true, false}) {
    watch_ = nullptr;
    {
      std::optional<Intercept> refuses;
      if (!has_thread) refuses.emplace(Call::kStartThread, EAGAIN);
      begin(has_thread ? 0 : 8);
    }
    EXPECT_FALSE(watch_->takes_more());
    add("");
    write("a", "new");
    EXPECT_TRUE(quiet());
    EXPECT_EQ(board_->get()->header.marks, 0u);
  }
}

}  // namespace
}  // namespace monarch
