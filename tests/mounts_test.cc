// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/mounts.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>

#include "runtime/base/fd.h"
#include "runtime/node/memory_tier.h"
#include "tests/scratch.h"

namespace monarch {
namespace {

constexpr uid_t kOwner = 65534, kOther = 65533;

// In a child process, since mounts are looked up by process: what it mounts nobody else sees, and ends with
// it.
class Mounts {
 public:
  explicit Mounts(const Scratch& scratch) : scratch_(scratch) {}
  bool begin() {
    return ::unshare(CLONE_NEWNS) == 0 && ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
  }
  void tmpfs(const std::string& name, const char* source) {
    check(::mount(source, (scratch_ / name).c_str(), "tmpfs", 0, "size=1m,mode=755") == 0, "mount " + name);
  }
  // Nobody serves it: what asks it hangs.
  void fuse(const std::string& name, uid_t uid) {
    const int fd = ::open("/dev/fuse", O_RDWR);
    const std::string id = std::to_string(uid);
    const std::string options =
        "fd=" + std::to_string(fd) + ",rootmode=40000,user_id=" + id + ",group_id=" + id;
    check(::mount("test", (scratch_ / name).c_str(), "fuse", MS_NOSUID | MS_NODEV, options.c_str()) == 0,
          "mount " + name);
  }
  void check(bool good, const std::string& what) {
    if (good) return;
    std::fprintf(stderr, "not so: %s\n", what.c_str());
    failed_ = 1;
  }
  void detached(const std::string& name, uid_t owner, int want, const std::string& what) {
    const Fd jobs(::open((scratch_ / "jobs").c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const int got = detach_mounts(jobs.get(), name, owner);
    check(got == want, what + ": " + std::to_string(got) + " detached");
  }
  int result() const { return failed_; }

 private:
  const Scratch& scratch_;
  int failed_ = 0;
};

class MountsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "needs root";
    for (const char* name : {"jobs/job/sub/deep", "jobs/job/other", "jobs/job2/sub", "jobs/a b\\c/d e"})
      scratch_.dir(name);
  }
  void in_namespace(const std::function<void(Mounts*)>& body) {
    const int code = in_child([&] {
      Mounts mounts(scratch_);
      if (!mounts.begin()) return 99;
      body(&mounts);
      return mounts.result();
    });
    if (code == 99) GTEST_SKIP() << "cannot mount";
    EXPECT_EQ(code, 0);
  }
  const Scratch scratch_;
};

TEST_F(MountsTest, TheJobsOwnMemoryIsDetachedAndNoOther) {
  in_namespace([&](Mounts* m) {
    m->tmpfs("jobs/job", "foreign");
    m->detached("job", kOwner, 0, "a file system that is not ours");
    m->tmpfs("jobs/job", kTmpfsSource);
    m->detached("job", kOwner, 1, "ours, and then the foreign one is on top");
    ::umount2((scratch_ / "jobs/job").c_str(), MNT_DETACH);
    m->tmpfs("jobs/job/sub", kTmpfsSource);
    m->detached("job", kOwner, 0, "ours are on the job's directory itself");
    m->tmpfs("jobs/job2", kTmpfsSource);
    m->detached("job", kOwner, 0, "another job's");
    m->detached("job2", kOwner, 1, "that job's");
    m->detached("missing", kOwner, 0, "nothing");
  });
}

TEST_F(MountsTest, TheJobsOwnMemoryIsTold) {
  in_namespace([&](Mounts* m) {
    const auto told = [&](const std::string& name) {
      return is_of_job_tmpfs(Fd(::open((scratch_ / name).c_str(), O_RDONLY | O_CLOEXEC)).get());
    };
    m->check(!told("jobs/job"), "a directory is no tmpfs");
    m->tmpfs("jobs/job", kTmpfsSource);
    m->check(told("jobs/job"), "ours is told");
    m->tmpfs("jobs/job2", "tmpfs");
    m->check(!told("jobs/job2"), "another is not ours");
    m->check(!is_of_job_tmpfs(-1), "nor is nothing");
  });
}

TEST_F(MountsTest, TheOwnersAreDetachedAndOthersStay) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  in_namespace([&](Mounts* m) {
    m->fuse("jobs/job/other", kOther);
    m->fuse("jobs/job/sub/deep", 0);
    m->detached("job", kOwner, 0, "others' and root's");
    m->fuse("jobs/job2/sub", kOwner);
    m->detached("job", kOwner, 0, "the owner's in another job's directory");
    m->fuse("jobs/job/sub", kOwner);
    m->fuse("jobs/job/sub", kOwner);
    m->detached("job", kOwner, 2, "on top of each other, and of root's");
    m->detached("job2", kOwner, 1, "where the other job's are looked for");
    m->fuse("jobs/a b\\c/d e", kOwner);
    m->detached("a b\\c", kOwner, 1, "names with blanks");
  });
}

TEST_F(MountsTest, AnUnknownOwnersAreThoseOnTheDirectoryThatAreNotRoots) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  in_namespace([&](Mounts* m) {
    m->fuse("jobs/job", kOther);
    m->detached("job", kOwner, 0, "another user's on the job's directory");
    m->detached("job", kUnknownOwner, 1, "of whom nobody knows");
    m->fuse("jobs/job", 0);
    m->detached("job", kUnknownOwner, 0, "root's");
    m->fuse("jobs/job2/sub", kOther);
    m->detached("job2", kUnknownOwner, 0, "below it");
  });
}

TEST_F(MountsTest, WhatIsSeenElsewhereIsFoundThere) {
  in_namespace([&](Mounts* m) {
    // The tier is also seen, with its root, at another place; and a part of it.
    scratch_.dir("again");
    scratch_.dir("part");
    m->check(
        ::mount((scratch_ / "jobs").c_str(), (scratch_ / "again").c_str(), nullptr, MS_BIND, nullptr) == 0,
        "bind");
    m->check(
        ::mount((scratch_ / "jobs/job").c_str(), (scratch_ / "part").c_str(), nullptr, MS_BIND, nullptr) == 0,
        "bind");
    m->tmpfs("again/job2", kTmpfsSource);
    m->detached("job", kOwner, 0, "another job's");
    m->detached("job2", kOwner, 1, "seen at another place of the same file system");
    if (::access("/dev/fuse", R_OK | W_OK) != 0) return;
    m->fuse("part/sub", kOwner);
    m->fuse("again/job/other", kOwner);
    m->detached("job", kOwner, 2, "at both");
  });
}

}  // namespace
}  // namespace monarch
