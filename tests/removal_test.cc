// SPDX-License-Identifier: Apache-2.0
// runtime/base/remove_tree: what is emptied, and measured.
#include <fcntl.h>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "tests/faulty_os.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

Fd open_path(const std::string& path) {
  return Fd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

TEST(EmptyDirectory, TakesTheContentsOfWhatIsOpen) {
  for (const Contents how : {Contents::kKeep, Contents::kCut}) {
    const Scratch scratch("/dev/shm");
    const std::string path = scratch.file("tree/a/b", noise(65536, 1)),
                      other = scratch.file("other", noise(65536, 3));
    fs::create_symlink(other, scratch / "tree/link");
    ASSERT_EQ(::mkfifo((scratch / "tree/fifo").c_str(), 0600), 0);
    const Fd held(::open(path.c_str(), O_RDONLY));
    EXPECT_TRUE(empty_directory(open_path(scratch / "tree").get(), how).ok());
    EXPECT_TRUE(fs::is_empty(scratch / "tree"));
    EXPECT_EQ(contents(other).size(), 65536u) << "a link is not followed";
    struct stat st;
    ASSERT_EQ(::fstat(held.get(), &st), 0);
    EXPECT_EQ(st.st_blocks == 0, how == Contents::kCut);
  }
}

void make_tree(const Scratch& scratch) {
  for (int i = 0; i < 100; ++i)
    scratch.file("tree/" + std::to_string(i % 10) + "/f" + std::to_string(i), "x");
}

// Each kind of call fails once, at any of its turns: the tree is then gone, or the error says what stays, and
// the next time it is gone.
TEST(RemoveTree, SaysWhatFailedAndGoesOnTheNextTime) {
  const Scratch scratch("/dev/shm");
  for (const Call call : {Call::kOpenat, Call::kFdopendir, Call::kReaddir, Call::kUnlinkat}) {
    for (int turn = 0; turn < 60; turn += 3) {
      SCOPED_TRACE(std::to_string(static_cast<int>(call)) + " at " + std::to_string(turn));
      make_tree(scratch);
      std::atomic<int> left{turn}, failed{0};
      Status removed;
      {
        Intercept fail(call, [&](Arguments&) { return left.fetch_sub(1) == 0 ? (++failed, EIO) : 0; });
        removed = remove_tree(AT_FDCWD, scratch / "tree");
      }
      EXPECT_EQ(removed.ok(), failed == 0);
      if (!removed.ok()) {
        EXPECT_EQ(removed.error().code, EIO) << removed.error().text;
      }
      EXPECT_TRUE(remove_tree(AT_FDCWD, scratch / "tree").ok());
      EXPECT_FALSE(fs::exists(scratch / "tree"));
    }
  }
}

TEST(RemoveTree, WhatNobodyMakesSoDeepStays) {
  const Scratch scratch;
  std::string path = "tree";
  for (int level = 0; level < 20; ++level) path += "/d";
  scratch.file(path + "/file", "x");
  const Status removed = remove_tree(AT_FDCWD, scratch / "tree");
  ASSERT_FALSE(removed.ok());
  EXPECT_TRUE(fs::exists(scratch / path + "/file"));
  EXPECT_FALSE(measure_tree(open_path(scratch / "tree").get(), 60000).complete);
}

TEST(RemoveTree, SaysThatTheDirectoryItselfStays) {
  const Scratch scratch;
  const std::string tree = scratch.dir("tree");
  const Intercept busy(Call::kUnlinkat, [&](Arguments& a) { return tree == a.path ? EBUSY : 0; });
  EXPECT_EQ(remove_tree(AT_FDCWD, tree).error().code, EBUSY);
}

// It would be charged less than it takes.
TEST(MeasureTree, WhatADiskDoesNotGiveIsNotWhole) {
  const Scratch scratch;
  scratch.file("tree/in/file", noise(8192, 1));
  const Fd top = open_path(scratch / "tree");
  for (const Call call : {Call::kOpenat, Call::kFstatat, Call::kFdopendir, Call::kReaddir}) {
    int calls = 0;
    for (bool failed = true; failed && calls < 100; ++calls) {
      int left = calls;
      const Intercept refuse(call, [&](Arguments&) { return left-- == 0 ? EIO : 0; });
      const Usage usage = measure_tree(top.get(), 60000);
      failed = left < 0;
      EXPECT_EQ(usage.complete, !failed) << static_cast<int>(call) << ", " << calls;
    }
    EXPECT_GT(calls, 2);
  }
  EXPECT_TRUE(measure_tree(top.get(), 60000).complete);
}

TEST(RemoveTree, NeedsNoThread) {
  const Scratch scratch;
  make_tree(scratch);
  const Intercept none(Call::kStartThread, EAGAIN);
  EXPECT_TRUE(remove_tree(AT_FDCWD, scratch / "tree").ok());
  EXPECT_FALSE(fs::exists(scratch / "tree"));
}

TEST(MeasureTree, CountsWhatATreeHasOfItsOwn) {
  const Scratch scratch;
  const std::string file = scratch.file("tree/a/b", noise(1 << 20, 1));
  scratch.file("outside", noise(1 << 20, 2));
  fs::create_hard_link(scratch / "outside", scratch / "tree/half");
  fs::create_directory_symlink(scratch.path(), scratch / "tree/link");
  const Usage usage = measure_tree(open_path(scratch / "tree").get(), 60000);
  EXPECT_TRUE(usage.complete);
  EXPECT_EQ(usage.files, 4u);
  EXPECT_GE(usage.bytes, (1u << 20) + (1u << 19));
  EXPECT_LE(usage.bytes, (1u << 20) + (1u << 19) + (1u << 16));
  EXPECT_FALSE(measure_tree(open_path(scratch / "tree").get(), -1).complete);
}

}  // namespace
}  // namespace monarch
