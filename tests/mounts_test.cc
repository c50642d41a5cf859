// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/mounts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "runtime/base/fd.h"
#include "runtime/node/memory_tier.h"
#include "tests/private_mounts.h"
#include "tests/trapped_calls.h"

namespace monarch {
namespace {

constexpr uid_t kOwner = 65534, kOther = 65533;

class MountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    for (const char* name : {"jobs/job/sub/deep", "jobs/job/other", "jobs/job2/sub", "jobs/a b\\c/d e"})
      scratch_.dir(name);
  }
  static void detached(PrivateMounts* m, const std::string& name, uid_t owner, int want,
                       const std::string& what, Detach what_to_detach = Detach::kAll) {
    const Fd jobs(::open((m->scratch() / "jobs").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const int got = detach_mounts(jobs.get(), name, owner, what_to_detach);
    m->check(got == want, what + ": " + std::to_string(got) + " detached");
  }
  void bind(PrivateMounts* m, const std::string& what, const std::string& where) const {
    scratch_.dir(where);
    m->check(::mount((scratch_ / what).c_str(), (scratch_ / where).c_str(), nullptr, MS_BIND, nullptr) == 0,
             "bind");
  }
  const Scratch scratch_;
};

TEST_F(MountsTest, TheJobsOwnMemoryIsDetachedAndNoOther) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->tmpfs("jobs/job", "foreign");
    detached(m, "job", kOwner, 0, "a file system that is not ours");
    m->tmpfs("jobs/job", kTmpfsSource);
    detached(m, "job", kOwner, 1, "ours, and then the foreign one is on top");
    ::umount2((scratch_ / "jobs/job").c_str(), MNT_DETACH);
    m->tmpfs("jobs/job/sub", kTmpfsSource);
    detached(m, "job", kOwner, 0, "ours are on the job's directory itself");
    m->tmpfs("jobs/job", kTmpfsSource);
    detached(m, "job", kOwner, 0, "ours, where only users' are wanted", Detach::kUsers);
    detached(m, "job", kOwner, 1, "ours");
    m->tmpfs("jobs/job2", kTmpfsSource);
    detached(m, "job", kOwner, 0, "another job's");
    detached(m, "job2", kOwner, 1, "that job's");
    detached(m, "missing", kOwner, 0, "nothing");
  });
}

TEST_F(MountsTest, BelowWhatHasNoPathNothingIsDetached) {
  EXPECT_EQ(detach_mounts(-1, "job", kOwner, Detach::kAll), 0);
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    bind(m, "jobs", "seen/again");
    const Fd moved(::open((scratch_ / "seen/again/job").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    m->check(::rename((scratch_ / "jobs/job").c_str(), (scratch_ / "x").c_str()) == 0, "moved out of it");
    m->check(detach_mounts(moved.get(), "sub", kOwner, Detach::kAll) == 0, "it is below no mount");
  });
}

TEST_F(MountsTest, OnlyTheJobsOwnMemoryIsMadeLarger) {
  const User owner = {kOwner, kOwner, {}};
  const auto size_of = [&] {
    struct statfs fs {};
    (void)::statfs((scratch_ / "jobs/job").c_str(), &fs);
    return static_cast<uint64_t>(fs.f_blocks) * static_cast<uint64_t>(fs.f_bsize);
  };
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    const Fd jobs(::open((scratch_ / "jobs").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    {
      const Fd dir(::open((scratch_ / "jobs/job").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      m->check(mount_tmpfs(dir, 1 << 20).ok(), "a job's memory");
    }
    m->check(resize_tmpfs(jobs.get(), "job", 2 << 20).ok() && size_of() == 2 << 20, "is made larger");
    scratch_.file("jobs/job/full", std::string(1 << 20, 'x'));
    m->check(!resize_tmpfs(jobs.get(), "job", 4096).ok() && size_of() == 2 << 20,
             "not smaller than it is full");
    m->check(resize_tmpfs(jobs.get(), "missing", 4096).error().code == ENOENT, "one that is not there");
    m->tmpfs("jobs/job", "foreign");
    m->check(resize_tmpfs(jobs.get(), "job", 4 << 20).error().code == EINVAL && size_of() == 1 << 20,
             "what hides it stays as it is");
  });
}

TEST_F(MountsTest, TheOwnersAreDetachedAndOthersStay) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->fuse("jobs/job/other", kOther);
    m->fuse("jobs/job/sub/deep", 0);
    detached(m, "job", kOwner, 0, "others' and root's");
    m->fuse("jobs/job2/sub", kOwner);
    detached(m, "job", kOwner, 0, "the owner's in another job's directory");
    m->fuse("jobs/job/sub", kOwner);
    m->fuse("jobs/job/sub", kOwner);
    detached(m, "job", kOwner, 2, "on top of each other, and of root's");
    detached(m, "job2", kOwner, 1, "where the other job's are looked for");
    m->fuse("jobs/a b\\c/d e", kOwner);
    detached(m, "a b\\c", kOwner, 1, "names with blanks");
  });
}

TEST_F(MountsTest, OnTheDirectoryItselfAllUsersAreDetached) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    m->fuse("jobs/job", kOther);
    detached(m, "job", kOwner, 1, "another user's on the job's directory");
    m->fuse("jobs/job", kOther);
    detached(m, "job", kUnknownOwner, 1, "where nobody knows the owner", Detach::kUsers);
    m->fuse("jobs/job", 0);
    detached(m, "job", kUnknownOwner, 0, "root's");
    m->fuse("jobs/job2/sub", kOther);
    detached(m, "job2", kUnknownOwner, 0, "below it");
  });
}

TEST_F(MountsTest, WhatIsSeenElsewhereIsFoundThere) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    // The tier is also seen, with its root, at another place; and a part of it.
    bind(m, "jobs", "again");
    bind(m, "jobs/job", "part");
    m->tmpfs("again/job2", kTmpfsSource);
    detached(m, "job", kOwner, 0, "another job's");
    detached(m, "job2", kOwner, 1, "seen at another place of the same file system");
    if (::access("/dev/fuse", R_OK | W_OK) != 0) return;
    m->fuse("part/sub", kOwner);
    m->fuse("again/job/other", kOwner);
    detached(m, "job", kOwner, 2, "at both");
  });
}

TEST_F(MountsTest, WhatCoversTheWayIsNotEntered) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  for (const char* below : {"again/job/sub", "again/job/sub/deep"})
    in_private_mounts(scratch_, [&](PrivateMounts* m) {
      bind(m, "jobs", "again");
      m->fuse(below, kOwner);
      m->fuse("again/job", 0, ",allow_other");
      detached(m, "job", kOwner, 0, "below what covers it, which hangs");
    });
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    bind(m, "jobs", "again");
    m->tmpfs("again/job2", kTmpfsSource);
    m->tmpfs("again", "foreign");
    scratch_.dir("again/job2");
    m->tmpfs("again/job2", kTmpfsSource);
    detached(m, "job2", kOwner, 0, "another file system's at the same path");
  });
}

}  // namespace
}  // namespace monarch
