// SPDX-License-Identifier: Apache-2.0
// runtime/base/remove_tree, runtime/node/owner: what is emptied, measured, and with whose rights.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <fstream>
#include <map>

#include "runtime/base/fd.h"
#include "runtime/base/os.h"
#include "runtime/base/remove_tree.h"
#include "runtime/node/owner.h"
#include "tests/faulty_os.h"
#include "tests/hanging_fs.h"
#include "tests/manual_clock.h"
#include "tests/private_mounts.h"
#include "tests/scratch.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

constexpr User kOwner = {65534, 65534, {}};

Fd open_path(const std::string& path) {
  return Fd(::open(path.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

void make_deep_tree(const Scratch& scratch, int levels) {
  Fd at = open_path(scratch.path());
  const char* name = "tree";
  for (int i = 0; i < levels; ++i, name = "d") {
    ASSERT_EQ(::mkdirat(at.get(), name, 0700), 0);
    at = Fd(::openat(at.get(), name, O_PATH | O_DIRECTORY));
  }
}

TEST(EmptyDirectory, ChangesNothingOfADirectoryThatStays) {
  const Scratch scratch;
  scratch.file("tree/a/b", "x");
  fs::permissions(scratch / "tree/a", fs::perms(0755));
  std::atomic<int> ioctls{0}, modes{0};
  const Intercept stays(Call::kUnlinkat, [](Arguments& a) { return *a.path == 'b' ? EACCES : 0; });
  const Intercept subvolume(Call::kIoctl, [&](Arguments&) { return ++ioctls, 0; });
  const Intercept mode(Call::kChmod, [&](Arguments&) { return ++modes, 0; });
  const Fd dir = open_path(scratch / "tree");
  EXPECT_FALSE(empty_directory(dir.get()).ok());
  EXPECT_EQ(fs::status(scratch / "tree/a").permissions(), fs::perms(0755));
  EXPECT_EQ(modes, 0) << "its owner may empty it as it is";
  EXPECT_EQ(ioctls, 0) << "it is no subvolume";
}

TEST(EmptyDirectory, ItsOwnerMayHaveClosedIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const Scratch scratch;
  scratch.file("tree/a/b", "x");
  fs::permissions(scratch.path(), fs::perms(0755));
  for (const char* name : {"tree", "tree/a", "tree/a/b"})
    ASSERT_EQ(::chown((scratch / name).c_str(), kOwner.uid, kOwner.gid), 0);
  fs::permissions(scratch / "tree/a", fs::perms(0));
  const Fd dir = open_path(scratch / "tree");
  EXPECT_EQ(in_child([&] {
              if (::setresuid(kOwner.uid, kOwner.uid, kOwner.uid) != 0) return 2;
              const Intercept mode(Call::kChmod, EROFS);
              const Status emptied = empty_directory(dir.get());
              return emptied.ok() ? 0 : emptied.error().code;
            }),
            EROFS)
      << "why it stays closed";
  EXPECT_EQ(in_child([&] {
              if (::setresuid(kOwner.uid, kOwner.uid, kOwner.uid) != 0) return 2;
              return empty_directory(dir.get()).ok() ? 0 : 1;
            }),
            0);
  EXPECT_TRUE(fs::is_empty(scratch / "tree"));
}

TEST(EmptyDirectory, CutsFilesAloneAndOpensThemAsTheyAre) {
  const Scratch scratch;
  scratch.file("tree/empty", "");
  ASSERT_EQ(::mkfifo((scratch / "tree/fifo").c_str(), 0600), 0);
  const Fd reader(::open((scratch / "tree/fifo").c_str(), O_RDONLY | O_NONBLOCK));
  std::atomic<int> cuts{0}, modes{0};
  const Intercept cut(Call::kFtruncate, [&](Arguments&) { return ++cuts, 0; });
  const Intercept mode(Call::kChmod, [&](Arguments&) { return ++modes, 0; });
  const Fd dir = open_path(scratch / "tree");
  EXPECT_TRUE(empty_directory(dir.get(), Pages::kCut).ok());
  EXPECT_EQ(cuts, 0);
  scratch.file("tree/spoilt", noise(8192, 1));
  const Intercept spoilt(Call::kOpenat, [](Arguments& a) { return (a.flags & O_WRONLY) != 0 ? EIO : 0; });
  EXPECT_TRUE(empty_directory(dir.get(), Pages::kCut).ok());
  EXPECT_TRUE(fs::is_empty(scratch / "tree")) << "it cannot be cut later either";
  EXPECT_EQ(modes, 0) << "its mode is not why";
}

// As while somebody has a lease on it, or it runs: without a name nobody could cut it later.
TEST(EmptyDirectory, WhatCannotBeCutForNowKeepsItsName) {
  const Scratch scratch;
  for (const Pages pages : {Pages::kCut, Pages::kZero}) {
    for (const int error : {EWOULDBLOCK, ETXTBSY, EMFILE}) {
      scratch.file("tree/busy", noise(8192, 1));
      scratch.file("tree/other", noise(8192, 1));
      const Fd dir = open_path(scratch / "tree");
      {
        struct stat st;
        ASSERT_EQ(::stat((scratch / "tree/busy").c_str(), &st), 0);
        const Intercept keeps(Call::kOpenat, [&](Arguments& a) {
          struct stat its;
          if (error == EMFILE) return std::string(a.path) == "busy" ? error : 0;
          return (a.flags & O_WRONLY) != 0 && ::stat(a.path, &its) == 0 && its.st_ino == st.st_ino ? error
                                                                                                   : 0;
        });
        const Status emptied = empty_directory(dir.get(), pages);
        ASSERT_FALSE(emptied.ok());
        EXPECT_EQ(emptied.error().code, error);
        EXPECT_EQ(emptied.error().text.rfind("remove busy: ", 0), 0u) << emptied.error().text;
      }
      EXPECT_TRUE(fs::exists(scratch / "tree/busy"));
      EXPECT_FALSE(fs::exists(scratch / "tree/other"));
      EXPECT_TRUE(empty_directory(dir.get(), pages).ok());
      EXPECT_TRUE(fs::is_empty(scratch / "tree"));
    }
  }
}

TEST(MeasureTree, WhatCannotBeLookedAtIsNotCounted) {
  const Scratch scratch;
  scratch.file("tree/gone", noise(8192, 1));
  scratch.file("tree/there", noise(8192, 1));
  const Intercept gone(Call::kOpenat, [](Arguments& a) { return *a.path == 'g' ? ENOENT : 0; });
  const Usage usage = measure_tree(open_path(scratch / "tree").get(), 60000);
  EXPECT_EQ(usage.files, 1u);
  EXPECT_EQ(usage.bytes, 8192u);
}

TEST(EmptyDirectory, TakesThePagesOfWhatIsOpen) {
  for (const Pages pages : {Pages::kKeep, Pages::kCut, Pages::kZero}) {
    const Scratch scratch("/dev/shm");
    const std::string path = scratch.file("tree/a/b", noise(65536, 1)),
                      locked = scratch.file("tree/c", noise(65536, 2));
    const std::string other = scratch.file("other", noise(65536, 3));
    fs::create_symlink(other, scratch / "tree/link");
    ASSERT_EQ(::mkfifo((scratch / "tree/fifo").c_str(), 0600), 0);
    const Fd held(::open(path.c_str(), O_RDONLY)), second(::open(locked.c_str(), O_RDONLY));
    const auto empty = [=](int fd) -> std::string {
      const Status s = empty_directory(fd, pages);
      return s.ok() ? "" : s.error().text;
    };
    const Fd dir = open_path(scratch / "tree");
    if (::geteuid() == 0) {  // with its owner's rights, to whom its mode does not let it
      for (const char* name : {"tree", "tree/a", "tree/a/b", "tree/c"})
        ASSERT_EQ(::chown((scratch / name).c_str(), kOwner.uid, kOwner.gid), 0);
      fs::permissions(locked, fs::perms(0));
      const Result<std::string> left = run_for_owner(kOwner, FileRights::kLook, dir.get(), 30000, empty);
      EXPECT_TRUE(left.ok() && left->empty()) << *left;
    } else {
      EXPECT_EQ(empty(dir.get()), "");
    }
    EXPECT_TRUE(fs::is_empty(scratch / "tree"));
    EXPECT_EQ(contents(other).size(), 65536u) << "a link is not followed";
    for (const int fd : {held.get(), second.get()}) {
      struct stat st;
      ASSERT_EQ(::fstat(fd, &st), 0);
      EXPECT_EQ(st.st_size, pages == Pages::kCut ? 0 : 65536);
      EXPECT_EQ(st.st_blocks == 0, pages != Pages::kKeep) << static_cast<int>(pages);
    }
  }
}

// Whoever owns the tree may put a link in the place of a directory at any moment.
TEST(EmptyDirectory, ADirectoryThatBecomesALinkIsNotFollowed) {
  const Scratch scratch;
  scratch.file("victim/kept", "x");
  scratch.file("tree/dir/f", "x");
  fs::permissions(scratch / "victim", fs::perms(0555));
  const Fd top = open_path(scratch / "tree");
  bool swapped = false;
  {
    Intercept opens(Call::kOpenat, [&](Arguments& a) {
      struct stat st, dir;
      if (swapped || std::string(a.path) != "." || ::fstat(a.fd, &st) != 0 ||
          ::lstat((scratch / "tree/dir").c_str(), &dir) != 0 || st.st_ino != dir.st_ino)
        return 0;
      swapped = true;
      fs::rename(scratch / "tree/dir", scratch / "away");
      fs::create_directory_symlink(scratch / "victim", scratch / "tree/dir");
      return EACCES;
    });
    (void)empty_directory(top.get()).ok();
  }
  EXPECT_TRUE(swapped);
  EXPECT_EQ(fs::status(scratch / "victim").permissions(), fs::perms(0555));
  EXPECT_TRUE(fs::exists(scratch / "victim/kept"));
  fs::permissions(scratch / "victim", fs::perms(0755));
}

// A tree of files and directories, some of which their owner may not enter.
void make_locked_tree(const Scratch& scratch) {
  for (int i = 0; i < 100; ++i)
    scratch.file("tree/" + std::to_string(i % 10) + "/f" + std::to_string(i), "x");
  fs::permissions(scratch / "tree/3", fs::perms(0));
}

// The same with a file and an empty directory in each.
void make_chain(const Scratch& scratch, int levels) {
  make_deep_tree(scratch, levels);
  Fd at = open_path(scratch / "tree");
  for (; at; at = Fd(::openat(at.get(), "d", O_PATH | O_DIRECTORY))) {
    const Fd file(::openat(at.get(), "file", O_CREAT | O_WRONLY, 0600));
    ASSERT_EQ(::mkdirat(at.get(), "empty", 0700), 0);
  }
}

// Each kind of call fails once, at any of its turns: the tree is then gone, or the error says what stays, and
// the next time it is gone.
TEST(RemoveTree, SaysWhatFailedAndGoesOnTheNextTime) {
  const Scratch scratch("/dev/shm");
  for (const bool deep : {false, true}) {
    for (const Call call :
         {Call::kOpenat, Call::kFstat, Call::kFdopendir, Call::kReaddir, Call::kUnlinkat, Call::kChmod}) {
      for (int turn = 0; turn < 60; turn += 3) {
        SCOPED_TRACE(std::to_string(static_cast<int>(call)) + (deep ? " in the depth at " : " at ") +
                     std::to_string(turn));
        deep ? make_chain(scratch, 20) : make_locked_tree(scratch);
        std::atomic<int> left{turn}, failed{0};
        Status removed;
        {
          Intercept fail(call, [&](Arguments&) { return left.fetch_sub(1) == 0 ? (++failed, EIO) : 0; });
          removed = remove_tree(AT_FDCWD, scratch / "tree");
        }
        if (!removed.ok()) {
          EXPECT_EQ(removed.error().code, EIO) << removed.error().text;
        }
        EXPECT_TRUE(!removed.ok() || !fs::exists(scratch / "tree"));
        if (call == Call::kReaddir || call == Call::kUnlinkat || call == Call::kFdopendir) {
          EXPECT_EQ(removed.ok(), failed == 0);
        }
        EXPECT_TRUE(remove_tree(AT_FDCWD, scratch / "tree").ok());
        EXPECT_FALSE(fs::exists(scratch / "tree"));
      }
    }
  }
}

TEST(RemoveTree, WhatCannotBeLookedAtStays) {
  const Scratch scratch;
  scratch.file("tree/dir/file", "x");
  {
    const Intercept blind(Call::kFstat, EIO);
    const Status removed = remove_tree(AT_FDCWD, scratch / "tree");
    ASSERT_FALSE(removed.ok());
    EXPECT_EQ(removed.error().code, EIO);
  }
  EXPECT_TRUE(fs::exists(scratch / "tree/dir/file"));
}

TEST(RemoveTree, WhatCannotBeOpenedGoesIfItIsEmpty) {
  const Scratch scratch;
  scratch.dir("tree/shut");
  const Intercept shut(Call::kOpenat, [](Arguments& a) { return std::string(a.path) == "shut" ? EIO : 0; });
  EXPECT_TRUE(remove_tree(AT_FDCWD, scratch / "tree").ok());
  EXPECT_FALSE(fs::exists(scratch / "tree"));
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
  for (const Call call : {Call::kOpenat, Call::kFstat, Call::kFdopendir, Call::kReaddir}) {
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
  make_locked_tree(scratch);
  const Intercept none(Call::kStartThread, EAGAIN);
  EXPECT_TRUE(remove_tree(AT_FDCWD, scratch / "tree").ok());
  EXPECT_FALSE(fs::exists(scratch / "tree"));
}

// From one directory to another that waits for all such of the file system, and directories of different XFS
// projects refuse it.
TEST(RemoveTree, RenamesNothing) {
  const Scratch scratch;
  make_deep_tree(scratch, 100);
  std::atomic<int> renames{0};
  const Intercept refuse(Call::kRenameat, [&](Arguments&) { return ++renames, EXDEV; });
  const Status removed = remove_tree(AT_FDCWD, scratch / "tree");
  EXPECT_TRUE(removed.ok()) << removed.error().text;
  EXPECT_FALSE(fs::exists(scratch / "tree"));
  EXPECT_EQ(renames, 0);
}

// Trees of a file system's own in a tree, as btrfs has subvolumes: each has a device of its own.
class Subvolumes : public ::testing::Test {
 protected:
  enum class Is { kDirectory, kSubvolume };
  void make(const std::string& path, Is what) {
    ASSERT_TRUE(fs::create_directory(top_ + "/" + path));
    struct stat st {
    }, above{};
    ASSERT_EQ(::stat((top_ + "/" + path).c_str(), &st), 0);
    ASSERT_EQ(::stat((top_ + "/" + path + "/..").c_str(), &above), 0);
    const auto known = devices_.find(above.st_ino);
    devices_[st.st_ino] = what == Is::kSubvolume    ? ++last_
                          : known == devices_.end() ? st.st_dev
                                                    : known->second;
  }
  Status empty() const { return empty_directory(open_path(top_).get()); }
  bool is_empty() const { return fs::is_empty(top_); }

  const Scratch scratch_;
  const std::string top_ = scratch_.dir("tree");
  std::map<ino_t, dev_t> devices_;
  dev_t last_ = 1000000;
  const Intercept differs_{Call::kFstatResult, [this](Arguments& a) {
                             const auto known = devices_.find(a.st->st_ino);
                             if (known != devices_.end()) a.st->st_dev = known->second;
                             return 0;
                           }};
};

TEST_F(Subvolumes, GoWithAllThatIsInThemHoweverDeepTheyAre) {
  std::string path = "d";
  make(path, Is::kDirectory);
  for (int level = 0; level < 40; ++level) {
    make(path + "/v", Is::kSubvolume);
    make(path += "/d", level % 3 == 0 ? Is::kSubvolume : Is::kDirectory);
    scratch_.file("tree/" + path + "/f", "x");
  }
  const Status emptied = empty();
  EXPECT_TRUE(emptied.ok()) << emptied.error().text;
  EXPECT_TRUE(is_empty());
}

TEST_F(Subvolumes, WhatStaysInOneIsToldWithItsPath) {
  make("v", Is::kSubvolume);
  make("v/d", Is::kDirectory);
  scratch_.file("tree/v/d/kept", "x");
  const Intercept stays(Call::kUnlinkat, [](Arguments& a) { return *a.path == 'k' ? EACCES : 0; });
  const Status emptied = empty();
  ASSERT_FALSE(emptied.ok());
  EXPECT_EQ(emptied.error().text, "remove v/d/kept: Permission denied");
}

TEST(RemoveTree, AnyDepthGoes) {
  const Scratch scratch("/dev/shm");
  make_chain(scratch, 3000);
  EXPECT_EQ(in_child([&] {
              const rlimit few{100, 100}, stack{256 << 10, 256 << 10};
              ::setrlimit(RLIMIT_NOFILE, &few);
              ::setrlimit(RLIMIT_STACK, &stack);
              return remove_tree(AT_FDCWD, scratch / "tree").ok() ? 0 : 1;
            }),
            0);
  EXPECT_FALSE(fs::exists(scratch / "tree"));
}

// More levels than a pass keeps in mind, which are 2^18.
TEST(RemoveTree, WhatIsTooDeepForOnePassTakesSeveral) {
  const Scratch scratch("/dev/shm");
  make_deep_tree(scratch, (1 << 18) + 100);
  const Status removed = remove_tree(AT_FDCWD, scratch / "tree");
  EXPECT_TRUE(removed.ok()) << removed.error().text;
  EXPECT_FALSE(fs::exists(scratch / "tree"));
}

// Each directory is looked at once, what cannot be removed is passed over, on the way back up as well.
TEST(RemoveTree, WhatStaysInTheDepthIsPassedOver) {
  const Scratch scratch;
  std::string path = "tree";
  for (int level = 0; level < 60; ++level) {
    path += "/d";
    for (const char* name : {"/a", "/kept", "/x/f", "/y/f", "/z/f"}) scratch.file(path + name, "");
  }
  std::atomic<int> kept{0};
  Status removed;
  {
    const Intercept stays(Call::kUnlinkat,
                          [&](Arguments& a) { return std::string(a.path) == "kept" ? (++kept, EACCES) : 0; });
    removed = remove_tree(AT_FDCWD, scratch / "tree");
  }
  ASSERT_FALSE(removed.ok());
  EXPECT_EQ(removed.error().code, EACCES);
  EXPECT_EQ(kept, 60);
  int files = 0, directories = 0;
  for (const auto& entry : fs::recursive_directory_iterator(scratch / "tree"))
    ++(entry.is_directory() ? directories : files);
  EXPECT_EQ(files, 60);
  EXPECT_EQ(directories, 60);
  EXPECT_TRUE(remove_tree(AT_FDCWD, scratch / "tree").ok());
  EXPECT_FALSE(fs::exists(scratch / "tree"));
}

TEST(MeasureTree, WhoseWayBackIsLostIsNotWhole) {
  const Scratch scratch;
  make_deep_tree(scratch, 40);
  const Intercept lost(Call::kOpenat, [](Arguments& a) { return std::string(a.path) == ".." ? EIO : 0; });
  EXPECT_FALSE(measure_tree(open_path(scratch / "tree").get(), 60000).complete);
}

// Its owner may move a directory while the way back up leads through it.
TEST(RemoveTree, ADirectoryThatWasMovedDoesNotLeadElsewhere) {
  const Scratch scratch;
  make_deep_tree(scratch, 100);
  scratch.file("victim/kept", "x");
  const std::string way = scratch / "tree";
  std::string deep = way;
  for (int level = 0; level < 50; ++level) deep += "/d";
  bool moved = false;
  Status removed;
  {
    const Intercept moves(Call::kUnlinkat, [&](Arguments& a) {
      if (!moved && (a.flags & AT_REMOVEDIR) != 0) {
        moved = true;
        fs::rename(deep, scratch / "victim/d");
      }
      return 0;
    });
    removed = remove_tree(AT_FDCWD, scratch / "tree");
  }
  EXPECT_TRUE(moved);
  ASSERT_FALSE(removed.ok());
  EXPECT_EQ(removed.error().code, ESTALE) << removed.error().text;
  EXPECT_TRUE(fs::exists(scratch / "victim/kept"));
  EXPECT_TRUE(fs::is_empty(scratch / "victim/d"));
}

TEST(MeasureTree, LooksAtAnyDepth) {
  const Scratch scratch("/dev/shm");
  make_chain(scratch, 1000);
  EXPECT_EQ(in_child([&] {
              const rlimit few{40, 40};
              ::setrlimit(RLIMIT_NOFILE, &few);
              const Usage usage = measure_tree(open_path(scratch / "tree").get(), 60000);
              return !usage.complete ? 1 : usage.files != 3u * 1000 - 1 ? 2 : 0;
            }),
            0);
  EXPECT_TRUE(remove_tree(AT_FDCWD, scratch / "tree").ok());
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

TEST(IdMap, HasTheOwnersRangesAndNeverRoot) {
  const Scratch scratch;
  const std::string file = scratch.file(
      "subuid",
      "# a "
      "comment\nalice:100000:65536\nbob:200000:65536\n2101:300000:10\nalice:165536:10\nalice:x:5\nalice:7\n"
      "alice:2095:20\n\n");
  EXPECT_EQ(id_map(2101, file, "alice", 2101), "2095 2095 20\n100000 100000 65546\n300000 300000 10\n");
  EXPECT_EQ(id_map(2102, file, "bob", 2102), "2102 2102 1\n200000 200000 65536\n");
  EXPECT_EQ(id_map(2103, file, "", 2103), "2103 2103 1\n");
  EXPECT_EQ(id_map(2103, scratch / "missing", "carol", 2103), "2103 2103 1\n");
  EXPECT_EQ(id_map(2103, scratch.file("halves", "2103\n2103:5000\n:\n"), "carol", 2103), "2103 2103 1\n");
  scratch.file("subuid", "alice:0:99999999999\n");
  EXPECT_EQ(id_map(2101, file, "alice", 2101), "1 1 4294967294\n");
  scratch.file("subuid", "alice:18446744073709551615:18446744073709551615\n");
  EXPECT_EQ(id_map(2101, file, "alice", 2101), "2101 2101 1\n");
}

TEST(IdMap, OfTooManyRangesKeepsTheOwnersId) {
  const Scratch scratch;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += "alice:" + std::to_string(10 + 2 * i) + ":1\n";
  const std::string map = id_map(2101, scratch.file("subuid", text), "alice", 2101);
  EXPECT_NE(map.find("2101 2101 1\n"), std::string::npos);
  EXPECT_LT(map.size(), 4096u);
}

TEST(RunForOwner, HasTheOwnersRightsOnFilesAlone) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const Scratch scratch;
  scratch.file("root/secret", "x");
  fs::permissions(scratch / "root", fs::perms::owner_all);
  fs::create_directory(scratch / "own");
  ASSERT_EQ(::chown((scratch / "own").c_str(), kOwner.uid, kOwner.gid), 0);
  fs::permissions(scratch.path(), fs::perms(0755));
  const Fd dir = open_path(scratch.path());
  const auto attempt = [](int fd) -> std::string {
    std::string could;
    if (::unlinkat(fd, "root/secret", 0) == 0) could += "remove ";
    if (::fchmodat(fd, "root", 0777, 0) == 0) could += "chmod ";
    if (::fchownat(fd, "own", 0, 0, 0) == 0) could += "chown ";
    if (::openat(fd, "root/secret", O_RDONLY) >= 0) could += "read ";
    if (::openat(fd, "own/mine", O_CREAT | O_WRONLY, 0600) >= 0) could += "make ";
    if (::openat(fd, "root", O_RDONLY | O_DIRECTORY) >= 0) could += "look ";
    return could;
  };
  const Result<std::string> owner = run_for_owner(kOwner, FileRights::kOwner, dir.get(), 30000, attempt);
  ASSERT_TRUE(owner.ok()) << owner.error().text;
  EXPECT_EQ(*owner, "make ");
  struct stat st;
  ASSERT_EQ(::stat((scratch / "own/mine").c_str(), &st), 0);
  EXPECT_EQ(st.st_uid, kOwner.uid);
  fs::remove(scratch / "own/mine");
  const Result<std::string> look = run_for_owner(kOwner, FileRights::kLook, dir.get(), 30000, attempt);
  ASSERT_TRUE(look.ok()) << look.error().text;
  EXPECT_EQ(*look, "read make look ");
}

TEST(RunForOwner, RunsOnceAlsoForAUserWithoutAName) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const User nameless = {64321, 64321, {}};
  const Scratch scratch;
  fs::permissions(scratch.path(), fs::perms::all);
  const Fd dir = open_path(scratch.path());
  const auto work = [](int fd) {
    const Fd mark(::openat(fd, "mark", O_CREAT | O_EXCL | O_WRONLY, 0600));
    std::ifstream map("/proc/self/uid_map");
    uint64_t first = 0;
    map >> first;
    return (mark ? "once " : "again ") + std::to_string(first);
  };
  const bool namespaces = in_child([] { return ::unshare(CLONE_NEWUSER) == 0 ? 0 : 1; }) == 0;
  const Result<std::string> said = run_for_owner(nameless, FileRights::kOwner, dir.get(), 30000, work);
  ASSERT_TRUE(said.ok()) << said.error().text;
  EXPECT_EQ(*said, namespaces ? "once 64321" : "once 0");
}

TEST(RunForOwner, IsBoundedAndToldOfDeath) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const Scratch scratch;
  const Fd dir = open_path(scratch.path());
  const auto run = [&](int patience_ms, const std::function<std::string(int)>& work) {
    return run_for_owner(kOwner, FileRights::kOwner, dir.get(), patience_ms, work);
  };
  const Hung here;
  PatientClock clock([&] { return here.now(); });
  const Result<std::string> hung = run_for_owner(
      kOwner, FileRights::kOwner, dir.get(), 30000, [&](int) -> std::string { here.here(); }, nullptr, clock);
  ASSERT_FALSE(hung.ok());
  EXPECT_EQ(hung.error().code, ETIMEDOUT);
  const Result<std::string> dead = run(30000, [](int) -> std::string { ::_exit(0); });
  ASSERT_FALSE(dead.ok());
  EXPECT_EQ(dead.error().code, ECHILD);
  pid_t left_behind = -1;
  const Result<std::string> empty = run_for_owner(
      kOwner, FileRights::kOwner, dir.get(), 30000, [](int) { return std::string(); }, &left_behind);
  EXPECT_TRUE(empty.ok() && empty->empty());
  EXPECT_EQ(left_behind, -1) << "it has ended";
  const Result<std::string> full = run(30000, [](int) { return std::string(1 << 20, 'x'); });
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->size(), kMostReport - 1);
  EXPECT_FALSE(
      run_for_owner({0, 0, {}}, FileRights::kOwner, dir.get(), 30000, [](int) { return std::string(); }).ok())
      << "never with root's";
}

TEST(RunForOwner, WhoHangsInTheKernelIsNamed) {
  if (::geteuid() != 0 || ::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "needs root and /dev/fuse";
  const Scratch scratch;
  fs::permissions(scratch.path(), fs::perms(0755));
  scratch.dir("hung");
  in_private_mounts(scratch, [&](PrivateMounts* m) {
    const Fd dir = open_path(scratch.path());
    const HangingFs hanging(scratch / "hung", ",allow_other");
    m->check(hanging.is_mounted(), "mount");
    const auto work = [](int fd) -> std::string {
      (void)!::openat(fd, "hung/file", O_RDONLY);
      return "";
    };
    pid_t left_behind = -1;
    PatientClock clock([&] { return hanging.is_asked(); });
    const Result<std::string> hung =
        run_for_owner(kOwner, FileRights::kOwner, dir.get(), 30000, work, &left_behind, clock);
    m->check(!hung.ok() && hung.error().code == ETIMEDOUT, "it is not waited for");
    m->check(left_behind > 0 && ::kill(left_behind, 0) == 0, "it is there still");
  });
}

TEST(IdMap, OfWhatIsNoRangeIsTheOwnersIdAlone) {
  const Scratch scratch;
  for (const char* line : {"", "user", "user:", "user:5", "user:5:", "user::5", "user:5x:10", "user:5:10x",
                           "user:-5:10", "other:5:10", ":5:10", "user:5:0"}) {
    scratch.file("subuid", std::string(line) + "\n");
    EXPECT_EQ(id_map(1000, scratch / "subuid", "user", 1000), "1000 1000 1\n") << line;
    EXPECT_EQ(id_map(1000, scratch / "subuid", "", 1000), "1000 1000 1\n") << line;
  }
  scratch.file("subuid", "user:5:10\n1000:20:5\n");
  EXPECT_EQ(id_map(1000, scratch / "subuid", "user", 1000), "5 5 10\n20 20 5\n1000 1000 1\n");
}

// Whether the work was begun in a child where that call fails.
int begun_without(long call, const CallHandler& handler, FileRights rights) {
  const Scratch scratch;
  const Fd dir = open_path(scratch.path());
  void* const begun = ::mmap(nullptr, 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(begun, MAP_FAILED);
  const int status = in_child([&] {
    if (!before_call(call, handler)) return 99;
    const Result<std::string> said = run_for_owner(kOwner, rights, dir.get(), 30000, [=](int) {
      *static_cast<volatile char*>(begun) = 1;
      return std::string("done");
    });
    return said.ok() ? 2 : *static_cast<volatile char*>(begun);
  });
  ::munmap(begun, 1);
  return status;
}

TEST(RunForOwner, NothingIsDoneWithRightsOrDescriptorsThatWereNotTaken) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const auto refuse = [](CallArguments) { return EPERM; };
  const auto refuse_copies = [](CallArguments a) { return a[1] == F_DUPFD ? EMFILE : 0; };
  for (const FileRights rights : {FileRights::kOwner, FileRights::kLook}) {
    for (const long call : {SYS_setfsuid, SYS_setfsgid, SYS_setgroups, SYS_capset}) {
      const int status = begun_without(call, refuse, rights);
      if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
      EXPECT_EQ(status, 0) << call;
    }
  }
  // More than once: it would be killed sooner or later than it begins.
  for (int i = 0; i < 30; ++i)
    EXPECT_EQ(begun_without(SYS_fcntl, refuse_copies, FileRights::kLook), 0) << "with another's descriptors";
}

TEST(RunForOwner, WhoseParentIsGoneDoesNothing) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const int status = in_child([&] {
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    const Scratch scratch;
    const Fd dir = open_path(scratch.path());
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC | O_NONBLOCK) != 0) return 97;
    const int parent = in_child([&] {
      if (!before_call(SYS_prctl, &kill_parent)) return 99;
      // Only the work's own descriptor is left in it.
      (void)run_for_owner(kOwner, FileRights::kLook, ends[1], 30000, [&](int fd) {
        (void)!::write(fd, "x", 1);
        return std::string();
      }).ok();
      return 98;
    });
    while (::waitpid(-1, nullptr, 0) > 0) continue;
    char byte;
    return parent != 128 + SIGKILL ? parent : ::read(ends[0], &byte, 1) < 0 ? 0 : 1;
  });
  if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(status, 0);
}

TEST(RunForOwner, AShortageIsToldAndWithoutNamespacesItGoes) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const Scratch scratch;
  const Fd dir = open_path(scratch.path());
  const auto said_without = [&](long call) {
    const int status = in_child([&] {
      if (!before_call(call, [](CallArguments) { return ENOSPC; })) return 99;
      const Result<std::string> said = run_for_owner(kOwner, FileRights::kOwner, dir.get(), 30000,
                                                     [](int) { return std::string("done"); });
      scratch.file("said", said.ok() ? *said : said.error().text);
      return 0;
    });
    return status == 0 ? contents(scratch / "said") : "status " + std::to_string(status);
  };
  const std::string without_pair = said_without(SYS_socketpair);
  if (without_pair == "status 99") GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(without_pair, "socketpair: No space left on device");
  EXPECT_EQ(said_without(SYS_clone), "fork: No space left on device");
  EXPECT_EQ(said_without(SYS_unshare), "done");
}

TEST(RunForOwner, LeavesNoProcessBehindAndNobodyTakesHoldOfIt) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root";
  const Scratch scratch;
  const Fd dir = open_path(scratch.path());
  for (const FileRights rights : {FileRights::kOwner, FileRights::kLook}) {
    const Result<std::string> said = run_for_owner(kOwner, rights, dir.get(), 30000, [](int) {
      return std::to_string(::prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0)) +
             std::to_string(::prctl(PR_GET_DUMPABLE, 0, 0, 0, 0)) + std::to_string(::getgroups(0, nullptr));
    });
    ASSERT_TRUE(said.ok()) << said.error().text;
    EXPECT_EQ(*said, "100");
    const Hung here;
    PatientClock clock([&] { return here.now(); });
    const Result<std::string> late = run_for_owner(
        kOwner, rights, dir.get(), 30000, [&](int) -> std::string { here.here(); }, nullptr, clock);
    EXPECT_EQ(late.error().code, ETIMEDOUT);
    EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a process of it lives";
  }
}

}  // namespace
}  // namespace monarch
