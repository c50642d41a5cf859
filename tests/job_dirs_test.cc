// SPDX-License-Identifier: Apache-2.0
#include "runtime/layout/shared_map.h"
#include "runtime/metadata/board.h"
#include "runtime/metadata/run_file.h"
#include "runtime/node/job_dirs.h"

#include <fmt/format.h>
#include <stdio.h>
#include <sys/xattr.h>

#include <map>

#include "runtime/node/probe.h"
#include "tests/faulty_os.h"
#include "tests/node_fixture.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

const User kOwner = {65534, 65534, {}};

const RunFiles kRunFiles = {{kAgentConf, "conf"}, {kDatasets, "/a:/b"}, {kPeers, "n1 ::1\n"}};

class JobDirTest : public NodeTest {
 protected:
  void SetUp() override {
    NodeTest::SetUp();
    if (IsSkipped()) return;
    fs::remove(scratch_ / "tier/monarch");
    tier_.name = "nvme";
    tier_.path = scratch_ / "tier";
    fs::permissions(tier_.path, fs::perms::all | fs::perms::sticky_bit);
  }
  Status make(const std::string& name = "c.1.0.n1") const {
    const Result<Fd> made = make_job_dir(state_, tier_, name, kOwner.uid);
    return made.ok() ? Status() : Status(made.error());
  }
  std::string jobs() const { return tier_.path + "/monarch"; }
  std::vector<std::string> in_tier() const { return names_in(tier_.path); }

  TierConfig tier_;
};

// All users can list the tier's directory.
TEST_F(JobDirTest, WhoKeepsTheTiersDirectoryLockedHoldsUpNoStart) {
  ASSERT_TRUE(make().ok());
  with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
    locked->lock(::open(tier_.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    m->check(is_soon_done([&] { return make("c.2.0.n1").ok(); }), "the next job begins");
    m->check(prepare(state_, {tier_}, 10000).tiers == std::vector<bool>{true},
             "what is there is not made again");
  });
}

// Where TIER/monarch is not there yet, or is a user's, and that user has the tier's directory locked.
TEST_F(JobDirTest, WhoKeepsTheTiersDirectoryLockedCostsThatTier) {
  TierConfig other = tier_;
  other.name = "other";
  other.path = scratch_.dir("other");
  fs::permissions(other.path, fs::perms::all | fs::perms::sticky_bit);
  for (const bool is_users : {false, true}) {
    SCOPED_TRACE(is_users);
    fs::remove_all(jobs());
    fs::remove_all(other.path + "/monarch");
    if (is_users) {
      scratch_.dir("tier/monarch");
      ASSERT_EQ(::chown(jobs().c_str(), 65533, 65533), 0);
    }
    with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
      locked->lock(::open(tier_.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      clock_.pass_once([] { return has_child_in_state('D'); });  // also one that waits for a disk
      m->check(is_soon_done([&] {
                 return make("c.1.0.n1").error().code == ETIMEDOUT &&
                        !prepare(state_, {tier_}, 1000).tiers.at(0);
               }),
               "what cannot be made is not waited for");
      m->check(is_soon_done([&] { return make("c.2.0.n1").error().code == ETIMEDOUT; }),
               "nor by the next job");
      m->check(state_.lock_ledger(0).ok(), "the ledger is free");
      m->check(eventually([&] { return make_job_dir(state_, other, "c.2.0.n1", kOwner.uid).ok(); }),
               "the other tier is used");
      locked->end();
      m->check(eventually([&] { return make("c.3.0.n1").ok(); }), "and this one once it is not locked");
    });
  }
  Cgroups().remove_if_empty(state_.helpers_cgroup());
}

TEST_F(JobDirTest, IsRootsAndOnlyItsOwnerFindsWhatItKnowsThere) {
  const mode_t before = ::umask(0077);
  ASSERT_TRUE(make().ok()) << make().error().text;
  ::umask(before);
  EXPECT_EQ(mode_of(jobs()), 0711u);
  EXPECT_EQ(stat_of(jobs()).st_uid, 0u);
  EXPECT_EQ(stat_of(jobs() + "/c.1.0.n1").st_uid, 0u);
  EXPECT_TRUE(fs::is_empty(jobs() + "/c.1.0.n1"));
  fs::permissions(scratch_.path(), fs::perms(0711));
  const std::string copy = scratch_.file("tier/monarch/c.1.0.n1/copy", "x");
  fs::permissions(copy, fs::perms(0644));
  const auto as = [&](uid_t uid, const std::function<bool()>& can) {
    return in_child([&] { return ::setgid(uid) == 0 && ::setuid(uid) == 0 ? !can() : 2; }) == 0;
  };
  const auto reads = [&] { return Fd(::open(copy.c_str(), O_RDONLY | O_CLOEXEC)).get() >= 0; };
  EXPECT_TRUE(as(kOwner.uid, reads));
  EXPECT_FALSE(as(65533, reads)) << "another user";
  const std::string dir = jobs() + "/c.1.0.n1";
  EXPECT_FALSE(as(kOwner.uid, [&] { return Fd(::open(dir.c_str(), O_RDONLY | O_DIRECTORY)).get() >= 0; }));
  EXPECT_EQ(make().error().code, EEXIST) << "one that is there is never given away";
  EXPECT_TRUE(make("c.2.0.n1").ok());
  EXPECT_EQ(in_tier(), std::vector<std::string>{"monarch"});
}

TEST_F(JobDirTest, InheritsNoAccessControlList) {
  ASSERT_TRUE(make().ok());
  char list[256];
  const std::string one = jobs() + "/c.1.0.n1", two = jobs() + "/c.2.0.n1";
  const ssize_t bytes = ::getxattr(one.c_str(), "system.posix_acl_access", list, sizeof list);
  ASSERT_GT(bytes, 0);
  constexpr char kDefault[] = "system.posix_acl_default";
  ASSERT_EQ(::setxattr(jobs().c_str(), kDefault, list, static_cast<size_t>(bytes), 0), 0);
  ASSERT_TRUE(make("c.2.0.n1").ok());
  EXPECT_LT(::getxattr(two.c_str(), kDefault, nullptr, 0), 0) << "its copies would have it";
}

TEST_F(JobDirTest, ATierThatCannotKeepCopiesFromOthersIsRefusedWithTheRemedy) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->check(::mount("none", tier_.path.c_str(), "ramfs", 0, nullptr) == 0, "a file system without ACLs");
    const Status made = make();
    m->check(!made.ok() && has(made.error().text, "mount it with ACLs"), "refused");
    m->check(!fs::exists(jobs()), "nothing is made");
    TierConfig memory = tier_;
    memory.kind = TierConfig::Kind::kTmpfs;
    m->check(check_keeps_copies(memory).ok(), "a memory tier is a file system of its own");
    m->check(::umount(tier_.path.c_str()) == 0 && check_keeps_copies(tier_).ok(), "this one has them");
    const std::string zero = scratch_.file("zero", "0\n"), setting = "/proc/sys/fs/protected_hardlinks";
    m->check(::mount(zero.c_str(), setting.c_str(), nullptr, MS_BIND, nullptr) == 0, "another setting");
    const Status unsafe = make();
    m->check(!unsafe.ok() && has(unsafe.error().text, "sysctl fs.protected_hardlinks=1"), "refused");
  });
}

TEST_F(JobDirTest, ATierWhereAnyoneCanRenameItIsRefused) {
  fs::permissions(tier_.path, fs::perms::all);
  EXPECT_EQ(make().error().code, EPERM);
  EXPECT_TRUE(in_tier().empty());
  fs::permissions(tier_.path, fs::perms::owner_all);
  EXPECT_TRUE(make().ok()) << "nobody else can";
  fs::permissions(tier_.path, fs::perms::all);
  EXPECT_EQ(make("c.2.0.n1").error().code, EPERM) << "whatever is there already";
  EXPECT_EQ(prepare(state_, {tier_}, 60000).tiers, std::vector<bool>{true})
      << "that is no answer that is late";
  tier_.path = scratch_ / "missing";
  EXPECT_EQ(make().error().code, ENOENT);
  tier_.path = scratch_.file("file", "");
  EXPECT_EQ(make().error().code, ENOTDIR);
}

TEST_F(JobDirTest, WhatAUserPutThereGetsAnotherName) {
  for (const char* kind : {"directory", "file", "link"}) {
    SCOPED_TRACE(kind);
    fs::remove_all(tier_.path);
    tier_.path = scratch_.dir("tier");
    const std::string victim = scratch_.dir("victim");
    if (*kind == 'd') {
      scratch_.file("tier/monarch/theirs", "x");
    } else if (*kind == 'f') {
      scratch_.file("tier/monarch", "x");
    } else {
      ASSERT_EQ(::symlink(victim.c_str(), jobs().c_str()), 0);
    }
    ASSERT_EQ(::lchown(jobs().c_str(), 65533, 65533), 0);
    const Status s = make();
    ASSERT_TRUE(s.ok()) << s.error().text;
    EXPECT_EQ(stat_of(jobs()).st_uid, 0u);
    EXPECT_EQ(stat_of(jobs() + "/c.1.0.n1").st_uid, 0u);
    const std::vector<std::string> names = in_tier();
    ASSERT_EQ(names.size(), 2u);
    EXPECT_TRUE(names[1].starts_with("monarch.of-65533.")) << names[1];
    EXPECT_EQ(stat_of(tier_.path + "/" + names[1]).st_uid, 65533u) << "it stays theirs";
    EXPECT_TRUE(fs::is_empty(victim));
    if (*kind == 'd') {
      EXPECT_EQ(contents(tier_.path + "/" + names[1] + "/theirs"), "x");
    }
  }
}

TEST_F(JobDirTest, WhatRootPutThereStaysAndIsNotTrusted) {
  for (const char* kind : {"writable", "file", "link"}) {
    SCOPED_TRACE(kind);
    fs::remove_all(jobs());
    if (*kind == 'w') {
      scratch_.dir("tier/monarch");
      fs::permissions(jobs(), fs::perms::all);
    } else if (*kind == 'f') {
      scratch_.file("tier/monarch", "x");
    } else {
      ASSERT_EQ(::symlink(scratch_.dir("elsewhere").c_str(), jobs().c_str()), 0);
    }
    const struct stat before = stat_of(jobs());
    // What is renamed from now on has another time.
    ASSERT_TRUE(eventually([&] {
      const struct stat now = stat_of(scratch_.file("now", ""));
      return now.st_ctim.tv_nsec != before.st_ctim.tv_nsec;
    }));
    EXPECT_FALSE(make().ok());
    EXPECT_EQ(stat_of(jobs()).st_ctim.tv_nsec, before.st_ctim.tv_nsec) << "not even for a moment";
    EXPECT_EQ(stat_of(jobs()).st_ino, before.st_ino);
    EXPECT_EQ(stat_of(jobs()).st_mode, before.st_mode);
    EXPECT_EQ(in_tier(), std::vector<std::string>{"monarch"}) << "nothing is left beside it";
  }
}

TEST_F(JobDirTest, AUsersMountThereIsTakenAwayAndNoOther) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  scratch_.dir("tier/monarch");
  scratch_.dir("elsewhere");
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->fuse("tier/monarch", 65533);
    m->fuse("elsewhere", 0);
    m->check(make().ok(), "a user's mount is no obstacle");
  });
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    ::umask(0);
    m->tmpfs("tier/monarch", "other");
    m->fuse("elsewhere", 65533);
    m->check(!make("c.3.0.n1").ok(), "what is no FUSE stays");
  });
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->tmpfs("tier/monarch", "other");
    m->check(::chown(jobs().c_str(), 65533, 65533) == 0, "chown");
    m->check(!make("c.4.0.n1").ok(), "whoever owns it");
    m->check(stat_of(jobs()).st_uid == 65533, "it is still there");
  });
}

TEST_F(JobDirTest, AFileSystemWhereRootIsAnotherIsNoTier) {
  scratch_.file("tier/monarch", "");
  ASSERT_EQ(::chown(jobs().c_str(), 65533, 65533), 0);
  const Intercept squash(Call::kFstatat, [](Arguments& a) {
    return ::fchownat(a.fd, a.path, 65533, 65533, AT_SYMLINK_NOFOLLOW) == 0 ? 0 : errno;
  });
  const Status s = make();
  ASSERT_FALSE(s.ok());
  EXPECT_TRUE(has(s.error().text, "root is mapped to user 65533")) << s.error().text;
  EXPECT_EQ(stat_of(jobs()).st_uid, 65533u);
  EXPECT_EQ(in_tier(), std::vector<std::string>{"monarch"});
}

// Such as FAT and some network file systems, where chown(2) does nothing and says that all is well.
TEST_F(JobDirTest, AFileSystemWithoutOwnersOrModesIsNoTier) {
  for (const bool owners : {false, true}) {
    const Intercept ignores(Call::kFstat, [=](Arguments& a) {
      struct stat st;
      if (::fstat(a.fd, &st) != 0 || (st.st_mode & 0777) != 0710) return 0;
      return (owners ? ::fchmod(a.fd, 0755) : ::fchown(a.fd, 65533, 0)) == 0 ? 0 : errno;
    });
    const Status s = make();
    ASSERT_FALSE(s.ok());
    EXPECT_TRUE(has(s.error().text, "does not keep owners and modes")) << s.error().text;
    EXPECT_TRUE(fs::is_empty(jobs())) << "nothing is left";
  }
}

TEST_F(JobDirTest, WhatIsRootsByThenIsGivenBack) {
  scratch_.file("tier/monarch", "");
  ASSERT_EQ(::chown(jobs().c_str(), 65533, 65533), 0);
  bool replaced = false;
  const Intercept exchanges(Call::kRenameat, [&](Arguments& a) {
    if (a.flags != RENAME_EXCHANGE || std::exchange(replaced, true)) return 0;
    fs::remove(jobs());
    scratch_.file("tier/monarch/kept", "x");
    return 0;
  });
  const Status s = make();
  EXPECT_TRUE(s.ok()) << s.error().text;
  EXPECT_EQ(contents(jobs() + "/kept"), "x");
  EXPECT_EQ(in_tier(), std::vector<std::string>{"monarch"});
}

// Where it cannot be exchanged, or not be given the name that the log would tell.
TEST_F(JobDirTest, WhatCannotBeTakenOrNamedAnewIsKept) {
  for (const unsigned step : {RENAME_EXCHANGE, RENAME_NOREPLACE}) {
    fs::remove_all(jobs());
    scratch_.file("tier/monarch/theirs", "x");
    ASSERT_EQ(::chown(jobs().c_str(), 65533, 65533), 0);
    const Intercept refuse(Call::kRenameat,
                           [=](Arguments& a) { return unsigned(a.flags) == step ? EIO : 0; });
    EXPECT_EQ(logged([&] { EXPECT_EQ(make().ok(), step == RENAME_NOREPLACE); }), "");
    const std::vector<std::string> names = in_tier();
    ASSERT_EQ(names.size(), step == RENAME_NOREPLACE ? 2u : 1u);
    EXPECT_EQ(contents(tier_.path + "/" + names[0] + "/theirs"), "x");
  }
}

TEST_F(JobDirTest, WhatFailsLeavesNothingAndSaysWhy) {
  const auto fails = [&](Call call, int error, const std::string& text) {
    const Intercept refuse(call, error);
    const Status s = make();
    ASSERT_FALSE(s.ok()) << text;
    EXPECT_EQ(s.error().code, error);
    EXPECT_TRUE(has(s.error().text, text)) << s.error().text;
    EXPECT_TRUE(!fs::exists(jobs()) || fs::is_empty(jobs())) << text;
  };
  fails(Call::kMkdirat, EROFS, jobs());
  fails(Call::kFstatat, EIO, jobs());
  EXPECT_TRUE(in_tier().empty()) << "nobody knows whose it is";
  fails(Call::kChmod, EPERM, jobs());
  fails(Call::kLinkat, EPERM, "makes no hard links");
  const Intercept opens(Call::kOpenBeneath, [](Arguments& a) { return *a.path == 'c' ? EMFILE : 0; });
  EXPECT_EQ(make().error().code, EMFILE);
  EXPECT_TRUE(fs::is_empty(jobs()));
}

TEST_F(JobDirTest, WhatAUserHasMountedInATierIsNotAskedWhoseItIs) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  scratch_.dir("tier/monarch");
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->fuse("tier/monarch", 65533, ",allow_other");
    const Status s = check_tier_jobs(scratch_ / "tier");
    m->check(!s.ok() && s.error().code == EXDEV, "it is told that something is mounted there");
  });
}

TEST_F(JobDirTest, TwoHelpersDoNotTakeEachOthersAway) {
  scratch_.file("tier/monarch", "");
  ASSERT_EQ(::chown(jobs().c_str(), 65533, 65533), 0);
  const struct stat tier = stat_of(tier_.path);
  Result<Fd> lock = state_.lock_file(fmt::format("tier.{:x}.{:x}.lock", tier.st_dev, tier.st_ino), 0);
  clock_.pass_once([] { return true; });
  EXPECT_EQ(make().error().code, ETIMEDOUT);
  EXPECT_EQ(make_tier_jobs(state_, tier_).error().code, ETIMEDOUT);
  clock_.pass_once({});
  EXPECT_EQ(stat_of(jobs()).st_uid, 65533u);
  lock.take().reset();
  const Result<Fd> ledger = state_.lock_ledger(0);
  EXPECT_TRUE(make().ok()) << "the ledger's lock is not for this";
  EXPECT_TRUE(make("c.2.0.n1").ok());
}

TEST_F(JobDirTest, ARunDirectoryWithoutABoundIsLogged) {
  const std::string run = scratch_ / "run";
  const int status = in_child([&] {
    if (!before_call(SYS_mount, [](CallArguments) { return EPERM; })) return 99;
    const std::string log = logged([&] { EXPECT_TRUE(make_run_dir(run, 1 << 20, kRunFiles, kOwner).ok()); });
    const bool told = has(log, "run directories are not bounded: mount a tmpfs with size=1048576");
    return told && !HasFailure() ? 0 : 1;
  });
  if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(contents(run + "/agent.conf"), "conf");
}

TEST_F(JobDirTest, TheRunDirectoryIsRootsAndItsFilesAreTheOwners) {
  const std::string run = scratch_ / "run";
  const mode_t before = ::umask(0);
  const Status s = make_run_dir(run, 0, kRunFiles, kOwner);
  ::umask(before);
  ASSERT_TRUE(s.ok()) << s.error().text;
  EXPECT_EQ(mode_of(run), 0710u) << "by a list that has the owner alone";
  EXPECT_EQ(stat_of(run).st_uid, 0u);
  std::map<std::string, std::string> texts;
  for (const std::string& name : run_file_names()) texts[name] = "";
  for (const auto& [name, text] : kRunFiles) texts[name] = text;
  size_t files = 0;
  for (const auto& file : fs::directory_iterator(run)) {
    ++files;
    const std::string path = file.path();
    EXPECT_EQ(contents(path), texts.at(file.path().filename())) << path;
    EXPECT_EQ(stat_of(path).st_uid, kOwner.uid) << path;
    EXPECT_EQ(stat_of(path).st_gid, kOwner.gid) << path;
    EXPECT_EQ(mode_of(path), 0600u) << path;
  }
  EXPECT_EQ(files, texts.size());
  EXPECT_EQ(stat_of(run).st_dev, stat_of(scratch_.path()).st_dev) << "no bound, no file system of its own";
  EXPECT_EQ(make_run_dir(run, 0, {}, kOwner).error().code, EEXIST);
  EXPECT_EQ(contents(run + "/agent.conf"), "conf");
  EXPECT_EQ(make_run_dir(scratch_ / "a/b", 0, {}, kOwner).error().code, ENOENT);
}

// What else its owner tries there: slurm_hostile.t.
TEST_F(JobDirTest, ItsOwnerCanChangeNoNameInTheRunDirectory) {
  const std::string run = scratch_ / "run", board = run + "/board";
  ASSERT_TRUE(make_run_dir(run, 0, kRunFiles, kOwner).ok());
  fs::permissions(scratch_.path(), fs::perms(0755));
  EXPECT_EQ(in_child([&] {
              if (::setresgid(kOwner.gid, kOwner.gid, kOwner.gid) != 0 ||
                  ::setresuid(kOwner.uid, kOwner.uid, kOwner.uid) != 0)
                return 99;
              if (::open(run.c_str(), O_RDONLY | O_DIRECTORY) >= 0) return 1;
              if (::open((run + "/new").c_str(), O_WRONLY | O_CREAT, 0600) >= 0) return 2;
              if (::unlink(board.c_str()) == 0) return 3;
              RunDirectory dir{run.c_str()};
              int fd = -1;
              if (open_run_directory(&dir, &fd) != RunDirectoryIs::kOwn) return 7;
              return BoardFile::create(run).ok() && BoardFile::create(run).error().code == EEXIST ? 0 : 8;
            }),
            0);
  EXPECT_EQ(in_child([&] {
              if (::setresuid(65533, 65533, 65533) != 0) return 99;
              RunDirectory dir{run.c_str()};
              int fd = -1;
              return open_run_directory(&dir, &fd) == RunDirectoryIs::kOwn || !::access(board.c_str(), F_OK)
                         ? 1
                         : 0;
            }),
            0)
      << "nobody else sees what is in it";
}

TEST_F(JobDirTest, TheRunDirectoryIsBounded) {
  bool bounded = false;
  if (!with_tmpfs(scratch_.dir("mnt"), 1 << 20, [&] {
        const std::string run = scratch_ / "mnt/run";
        EXPECT_TRUE(make_run_dir(run, 8 << 20, kRunFiles, kOwner).ok());
        bounded = stat_of(run).st_dev != stat_of(scratch_ / "mnt").st_dev;
        EXPECT_EQ(stat_of(run).st_uid, 0u);
        EXPECT_EQ(mode_of(run), 0710u);
        EXPECT_EQ(contents(run + "/agent.conf"), "conf");
      }))
    GTEST_SKIP() << "cannot mount";
  EXPECT_TRUE(bounded);
}

}  // namespace
}  // namespace monarch
