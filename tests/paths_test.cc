// SPDX-License-Identifier: Apache-2.0
// runtime/base: paths, sizes, open_beneath, remove_tree.
#include "runtime/base/paths.h"

#include <fcntl.h>

#include <mutex>
#include <set>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "runtime/base/size.h"
#include "tests/faulty_os.h"
#include "tests/private_mounts.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

TEST(Paths, AbsolutePathStartsAtTheWorkingDirectoryAndCleansWhatIsText) {
  const std::string cwd = fs::current_path(), here = cwd == "/" ? "" : cwd;
  for (const auto& [path, absolute] : std::vector<std::pair<std::string, std::string>>{
           {"/a//b/./c/", "/a/b/c"},
           {"/", "/"},
           {"//.", "/"},
           {"/a/.hidden/...", "/a/.hidden/..."},
           {"/a/../b", "/a/../b"},  // '..' may lead through a symbolic link
           {"x/./y", here + "/x/y"},
           {".", cwd}})
    EXPECT_EQ(*absolute_path(path), absolute);
  EXPECT_FALSE(absolute_path("").ok());
}

TEST(Paths, IsBelowComparesWholeComponents) {
  for (const auto& [path, above] : {std::pair("/a/b", "/a"), {"/a", "/a"}, {"/a", "/"}})
    EXPECT_TRUE(is_below(path, above)) << path;
  for (const auto& [path, above] : {std::pair("/ab", "/a"), {"/a", "/a/b"}, {"/b/a", "/a"}})
    EXPECT_FALSE(is_below(path, above)) << path;
}

TEST(Size, ParsesUnitsAndFractions) {
  for (const auto& [text, bytes] :
       std::vector<std::pair<std::string, uint64_t>>{{"0", 0},
                                                     {"4096", 4096},
                                                     {"512K", 512 << 10},
                                                     {"500m", 500 << 20},
                                                     {"1.5T", uint64_t{3} << 39},
                                                     {"10GB", uint64_t{10} << 30},
                                                     {"10GiB", uint64_t{10} << 30},
                                                     {"8P", uint64_t{8} << 50}})
    EXPECT_EQ(*parse_size(text), bytes) << text;
  for (const char* bad : {"", "-1", "G", "ten", "10X", "10 G", "10Gb", "10GBs", "1e3", "0x10", "nan", "inf",
                          "9999999P", "1,5G"})
    EXPECT_FALSE(parse_size(bad).ok()) << bad;
}

TEST(Size, FormatsThreeDigits) {
  for (const auto& [bytes, text] :
       std::vector<std::pair<uint64_t, std::string>>{{0, "0"},
                                                     {1023, "1023"},
                                                     {1024, "1.00K"},
                                                     {12700000000, "11.8G"},
                                                     {uint64_t{500} << 20, "500M"},
                                                     {(uint64_t{1} << 30) - 1, "1.00G"},
                                                     {UINT64_MAX, "16.0E"}})
    EXPECT_EQ(format_size(bytes), text);
}

class OpenBeneath : public ::testing::Test {
 protected:
  // What open_beneath says of `path` below `root`: the errno, or 0.
  int open_errno(const std::string& path, int flags = O_RDONLY | O_CLOEXEC) {
    return in_child([&]() -> int {
      ::alarm(600);  // of what hangs
      const Fd root(::open(scratch_.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      const Fd fd(real_os::open_beneath(root.get(), path.c_str(), flags, 0600));
      return fd ? 0 : errno;
    });
  }
  Scratch scratch_;
};

TEST_F(OpenBeneath, OpensWhatIsThereAndFollowsNoLink) {
  scratch_.file("d/e/f", "x");
  fs::create_symlink("d/e/f", scratch_ / "link");
  fs::create_directory_symlink("d", scratch_ / "dir");
  fs::create_symlink("nowhere", scratch_ / "dangling");
  constexpr int kRead = O_RDONLY | O_CLOEXEC, kPath = O_PATH | O_CLOEXEC, kDir = kRead | O_DIRECTORY;
  struct Case {
    std::string path;
    std::vector<int> flags;
    int error;
  };
  for (const Case& c : {Case{"d/e/f", {kRead, kPath}, 0},
                        {"d/e", {kRead, kDir}, 0},
                        {".", {kDir}, 0},
                        {"d/new", {O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC}, 0},
                        {"missing", {kRead}, ENOENT},
                        {"missing/f", {kRead}, ENOENT},
                        {"d/e/f/below", {kRead}, ENOTDIR},
                        {std::string(256, 'n'), {kRead}, ENAMETOOLONG},
                        {std::string(256, 'n') + "/f", {kRead}, ENAMETOOLONG},
                        {"link", {kRead, kPath}, ELOOP},
                        {"dir/e", {kRead, kPath}, ELOOP},
                        {"dangling", {kRead, kPath}, ELOOP},
                        {"dir", {kDir}, ELOOP}})
    for (const int flags : c.flags) EXPECT_EQ(open_errno(c.path, flags), c.error) << c.path << " " << flags;
  EXPECT_TRUE(fs::exists(scratch_ / "d/new"));
}

TEST_F(OpenBeneath, StaysOnTheFileSystem) {
  scratch_.dir("mounted");
  const auto open = [&] {
    scratch_.file("mounted/f", "x");
    for (const char* path : {"mounted", "mounted/f"}) EXPECT_EQ(open_errno(path), EXDEV) << path;
  };
  if (!with_tmpfs(scratch_ / "mounted", 1 << 20, open)) GTEST_SKIP() << "mounting needs root";
}

TEST_F(OpenBeneath, AsksNobodyWhatIsMounted) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  scratch_.dir("d/mounted");
  scratch_.file("e/f", "x");
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->fuse("d/mounted", 65533, ",allow_other");
    for (const int flags : {O_RDONLY | O_CLOEXEC, O_RDONLY | O_DIRECTORY | O_CLOEXEC, O_PATH | O_CLOEXEC})
      m->check(open_errno("d/mounted", flags) == EXDEV, "itself");
    m->check(open_errno("d/mounted/f") == EXDEV, "below it");
    m->check(open_errno("d/mounted", O_RDWR | O_CREAT | O_CLOEXEC) == EXDEV, "to make it");
    const std::string there = scratch_ / "d";
    m->check(::mount((scratch_ / "e").c_str(), there.c_str(), nullptr, MS_BIND, nullptr) == 0, "bind");
    m->check(open_errno("d/f") == EXDEV, "the same file system, mounted once more");
  });
}

// Whether it is, and without an error.
bool is_removed(const Scratch& scratch, const std::string& name = "tree") {
  return remove_tree(AT_FDCWD, scratch / name).ok() && !fs::exists(fs::symlink_status(scratch / name));
}

TEST(RemoveTree, RemovesAllKindsOfFilesAndFollowsNoLink) {
  Scratch scratch;
  scratch.file("outside/kept", "x");
  scratch.file("file", "x");
  scratch.file("tree/a/b/c", "x");
  scratch.file("tree/.hidden/.file", "x");
  scratch.dir("tree/empty");
  scratch.file("tree/name\nwith\xff", "x");
  ASSERT_EQ(::mkfifo((scratch / "tree/fifo").c_str(), 0600), 0);
  fs::create_symlink("nowhere", scratch / "tree/dangling");
  for (const char* link : {"tree/link", "link"})
    fs::create_directory_symlink(scratch / "outside", scratch / link);
  const int before = open_descriptors();
  for (const char* name : {"missing", "file", "link", "tree"}) EXPECT_TRUE(is_removed(scratch, name)) << name;
  EXPECT_TRUE(fs::exists(scratch / "outside/kept"));
  EXPECT_EQ(open_descriptors(), before);
}

TEST(RemoveTree, GoesOnAfterAnErrorAndReportsTheFirst) {
  Scratch scratch;
  for (int i = 0; i < 20; ++i) scratch.file("tree/" + std::to_string(i), "x");
  Intercept unlinks(Call::kUnlinkat, [](Arguments& a) { return std::string(a.path) == "7" ? EIO : 0; });
  EXPECT_EQ(remove_tree(AT_FDCWD, scratch / "tree").error().code, EIO);
  EXPECT_EQ(names_in(scratch / "tree"), std::vector<std::string>{"7"});
}

// A tree for several threads: directories in directories, and a large one.
uint64_t make_wide_tree(const Scratch& scratch) {
  constexpr int kDirectories = 40, kSubdirectories = 5, kFiles = 10, kFlat = 3000;
  for (int i = 0; i < kDirectories; ++i)
    for (int j = 0; j < kSubdirectories; ++j) {
      const std::string dir = "tree/" + std::to_string(i) + "/" + std::to_string(j) + "/";
      for (int k = 0; k < kFiles; ++k) scratch.file(dir + std::to_string(k), "x");
    }
  for (int k = 0; k < kFlat; ++k) scratch.file("tree/flat/" + std::to_string(k), "");
  return kDirectories * (1 + kSubdirectories * (1 + kFiles)) + kFlat + 2;
}

TEST(RemoveTree, ThreadsShareALargeTree) {
  Scratch scratch;
  const uint64_t entries = make_wide_tree(scratch);
  std::atomic<uint64_t> removed{0};
  std::mutex lock;
  std::set<pid_t> threads;
  // The first ones wait for others, so that several have their turn.
  Intercept unlinks(Call::kUnlinkat, [&](Arguments& a) {
    const auto count = [&] {
      const std::lock_guard<std::mutex> hold(lock);
      threads.insert(::gettid());
      return threads.size();
    };
    EXPECT_TRUE(eventually([&] { return count() > 2; }));
    removed += fs::path(a.path).filename() != "";
    return 0;
  });
  const int before = open_descriptors();
  EXPECT_TRUE(is_removed(scratch));
  EXPECT_GE(removed, entries);
  EXPECT_GT(threads.size(), 2u);
  EXPECT_LE(threads.size(), 8u);
  EXPECT_EQ(open_descriptors(), before);
}

TEST(RemoveTree, TwoAtATimeDoNotDisturbEachOther) {
  Scratch scratch;
  make_wide_tree(scratch);
  Threads(2, [&](uint32_t) { (void)is_removed(scratch); }).join();
  EXPECT_TRUE(is_removed(scratch));
}

TEST(RemoveTree, LeavesOtherFileSystemsAlone) {
  Scratch scratch;
  scratch.file("tree/f", "x");
  scratch.dir("tree/mounted");
  const auto remove = [&] {
    scratch.file("tree/mounted/kept", "x");
    EXPECT_FALSE(remove_tree(AT_FDCWD, scratch / "tree").ok()) << "a mount point cannot be removed";
    EXPECT_TRUE(fs::exists(scratch / "tree/mounted/kept") && !fs::exists(scratch / "tree/f"));
  };
  if (!with_tmpfs(scratch / "tree/mounted", 1 << 20, remove)) GTEST_SKIP() << "mounting needs root";
}

// ---- removal

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
      EXPECT_TRUE(is_removed(scratch));
    }
  }
}

TEST(RemoveTree, WhatNobodyMakesSoDeepStays) {
  const Scratch scratch;
  std::string path = "tree";
  for (int level = 0; level < 20; ++level) path += "/d";
  scratch.file(path + "/file", "x");
  EXPECT_FALSE(remove_tree(AT_FDCWD, scratch / "tree").ok());
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
  EXPECT_TRUE(is_removed(scratch));
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
