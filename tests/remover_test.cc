// SPDX-License-Identifier: Apache-2.0
#include <sys/file.h>
#include <sys/resource.h>

#include "runtime/base/mountinfo.h"
#include "runtime/node/job_dirs.h"
#include "runtime/node/life.h"
#include "runtime/node/memory_tier.h"
#include "tests/private_mounts.h"
#include "tests/remover_fixture.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

TEST_F(RemoverTest, WhatIsSetAsideIsOutOfTheWayAndStaysLocked) {
  std::vector<Removal> two = begin_one(record(1));
  two.push_back(begin(record(2)));
  const std::vector<Removal> aside = set_aside(state_, std::move(two));
  ASSERT_EQ(aside.size(), 2u);
  EXPECT_TRUE(jobs().empty());
  EXPECT_EQ(in_removing(), (Names{kRemoval, "c.2.0.n1.9000000000000000000"}));
  EXPECT_EQ(on_tier(), in_removing()) << "under its name, which no other run has";
  EXPECT_EQ(runs(), on_tier());
  EXPECT_TRUE(names_in(state_.path() + "/grants").empty());
  for (const std::string& name : in_removing()) {
    EXPECT_TRUE(is_locked("removing/" + name)) << "who holds it removes";
    EXPECT_EQ(names_in(state_.path() + "/removing/" + name), Names{"record.json"});
  }
  EXPECT_EQ(state_.read_removal(kRemoval)->tiers.at(0).charged(), 100 * kMiB) << "until more is known";
  EXPECT_TRUE(set_aside(state_, {}).empty());
}

// Its record is in both places then.
TEST_F(RemoverTest, WhatAKilledHelperBeganToSetAsideIsSetAside) {
  for (const bool held : {true, false}) {
    SCOPED_TRACE(held);
    std::vector<Removal> removals = begin_one(record(1));
    Fd lock = state_.make_removal(record(1)).take();
    if (!held) lock.reset();
    removals = set_aside(state_, std::move(removals));
    EXPECT_EQ(removals.size(), held ? 0u : 1u) << "who has its lock removes it";
    EXPECT_TRUE(jobs().empty());
    lock.reset();
    EXPECT_TRUE(remove(held ? unattended_removals(state_) : std::move(removals), kLong));
    nothing_is_left();
  }
}

TEST_F(RemoverTest, WithoutAProcessItIsDoneLater) {
  std::vector<Removal> removals = aside_one(record(1));
  const int status = in_child([&] {
    if (!before_call(SYS_clone, [](CallArguments) { return EAGAIN; })) return 99;
    return remove(std::move(removals), kLong) ? 1 : 0;
  });
  if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
  EXPECT_EQ(status, 0);
  EXPECT_EQ(on_tier(), Names{kRemoval});
  removals.clear();
  EXPECT_TRUE(remove(unattended_removals(state_), kLong));
  nothing_is_left();
}

TEST_F(RemoverTest, GoesWithItsNameAndNoOther) {
  std::vector<Removal> removals = aside_one(record(1));
  fill_with_copies(scratch_ / ("tier/monarch/" + kName + ".9000000000000000001"));  // of the next run
  EXPECT_EQ(on_tier(), (Names{kRemoval, kName + ".9000000000000000001"}));
  EXPECT_EQ(runs(), Names{kRemoval});
  EXPECT_TRUE(remove(std::move(removals), kLong));
  EXPECT_EQ(on_tier(), Names{kName + ".9000000000000000001"});
  EXPECT_TRUE(in_removing().empty() && runs().empty());
}

TEST_F(RemoverTest, ATierThatHangsMeanwhileKeepsOneProcess) {
  const Hung hung;
  const Intercept hangs_there(Call::kUnlinkat, [&](Arguments& a) -> int {
    if (std::string(a.path) == "00000007") hung.here();
    return 0;
  });
  clock_.pass_once([&] { return hung.now(); });
  EXPECT_FALSE(remove(aside_one(record(1)), 0));
  EXPECT_TRUE(eventually([&] { return runs().empty(); })) << "the other places are seen to";
  end_children();
  EXPECT_EQ(on_tier(), Names{kRemoval});
}

TEST_F(RemoverTest, AnAdministratorsMountStays) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    std::vector<Removal> removals = aside_one(record(1));
    m->tmpfs("tier/monarch/" + kRemoval, "foreign");
    const std::string kept = scratch_.file("tier/monarch/" + kRemoval + "/kept", "x");
    m->check(!remove(std::move(removals), 0), "it is not removed");
    m->check(eventually([&] { return runs().empty(); }), "the other places are");
    m->check(exists(kept) && occupied() == std::nullopt, "nor charged anew");
    end_children();
  });
}

TEST_F(RemoverTest, OneThatWasKilledHasNotRemoved) {
  std::vector<Removal> removals = aside_one(record(1));
  const Intercept removes(Call::kUnlinkat, [](Arguments&) { return ::kill(::getpid(), SIGKILL); });
  EXPECT_FALSE(remove(std::move(removals), kLong));
}

TEST_F(RemoverTest, HasItsLocksAloneAndNobodyWaitsForIt) {
  std::vector<Removal> removals = aside_one(record(1));
  fill_stuck(scratch_ / ("tier/monarch/" + kRemoval));
  const Hung hung;
  const Intercept hangs_there(Call::kUnlinkat, [&](Arguments& a) -> int {
    if (std::string(a.path) == "stuck") hung.here();
    return 0;
  });
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const Fd in(ends[0]);
  Fd out(ends[1]), lock(::open((scratch_ / "lock").c_str(), O_RDWR | O_CREAT, 0600));
  const Fd log(::open((scratch_ / "log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600));
  ASSERT_EQ(::flock(lock.get(), LOCK_EX), 0);
  EXPECT_FALSE(remove(std::move(removals), 0));
  out.reset();
  lock.reset();
  char byte;
  pollfd p = {in.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&p, 1, 30000), 1);
  EXPECT_EQ(::read(in.get(), &byte, 1), 0) << "a hook's output ends with the hook";
  const Fd again(::open((scratch_ / "lock").c_str(), O_RDWR));
  EXPECT_TRUE(eventually([&] { return ::flock(again.get(), LOCK_EX | LOCK_NB) == 0; }));
  EXPECT_TRUE(is_locked("removing/" + kRemoval));
  const std::vector<pid_t> remover = children();
  ASSERT_EQ(remover.size(), 1u);
  std::vector<std::string> open;
  for (const auto& fd : fs::directory_iterator("/proc/" + std::to_string(remover[0]) + "/fd")) {
    std::error_code closed;
    open.push_back(fs::read_symlink(fd, closed));
  }
  EXPECT_EQ(std::count(open.begin(), open.end(), scratch_ / "log"), 1) << "what is wrong is still told";
  EXPECT_GE(std::count(open.begin(), open.end(), "/dev/null"), 3);
  EXPECT_EQ(::getsid(remover[0]), remover[0]);
  EXPECT_TRUE(eventually([&] { return hung.has_begun(); }));
  ::kill(hung.pid(), SIGKILL);
}

TEST_F(RemoverTest, UnattendedAreThoseWhoseTimeHasComeAndThatNobodyIsAtWorkOn) {
  const int64_t now = ::time(nullptr);
  const auto removal = [&](uint32_t job, int64_t next_try) {
    JobRecord r = record(job);
    r.given_up = 1;
    r.next_try = next_try;
    Result<Fd> lock = state_.make_removal(r);
    EXPECT_TRUE(lock.ok());
    return lock.ok() ? lock.take() : Fd();
  };
  for (const auto& [job, next] : {std::pair<uint32_t, int64_t>{1, now - 1}, {2, now + 1000}, {3, now + 7200}})
    (void)removal(job, next);
  const Fd lock = removal(4, 0);
  const std::string dir = state_.path() + "/removing/";
  fs::create_directory(dir + "empty");
  scratch_.file("state/removing/broken/record.json", "{");
  scratch_.dir("state/removing/unreadable/record.json");
  Names found;
  const timespec then[2] = {{now - 100, 0}, {now - 100, 0}};
  for (const char* name : {"empty", "broken"})
    ASSERT_EQ(::utimensat(AT_FDCWD, (dir + name).c_str(), then, 0), 0);
  fs::create_directory(dir + "young");
  for (const Removal& r : unattended_removals(state_)) {
    found.push_back(r.record.removal());
    EXPECT_TRUE(is_locked("removing/" + r.record.removal()));
  }
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, (Names{kRemoval, "c.3.0.n1.9000000000000000000"})) << "3: the clock was set";
  EXPECT_EQ(in_removing(), (Names{kRemoval, "c.2.0.n1.9000000000000000000", "c.3.0.n1.9000000000000000000",
                                  "c.4.0.n1.9000000000000000000", "unreadable", "young"}))
      << "what names nothing is gone, and what may name something is not";
}

TEST_F(RemoverTest, WhatStaysIsCharged) {
  JobRecord r = record(1);
  make_tier("small");
  make_tier("none");
  make_tier("gone");
  r.tiers.push_back(tier("small", 4096));
  r.tiers.push_back(tier("none", 0));
  r.tiers.push_back(tier("gone", 100 * kMiB));
  std::vector<Removal> removals = aside_one(r);
  fs::remove_all(scratch_ / ("gone/monarch/" + kRemoval));
  for (const char* tier : {"tier", "small", "none"})
    fill_stuck(scratch_ / (std::string(tier) + "/monarch/" + kRemoval));
  std::optional<Stuck> stuck(std::in_place);
  EXPECT_FALSE(remove(std::move(removals), kLong));
  EXPECT_GE(occupied(0).value_or(0), kMiB);
  EXPECT_LT(occupied(0).value_or(0), 2 * kMiB);
  EXPECT_EQ(occupied(1), 4096u) << "no more than it had";
  EXPECT_GE(occupied(2).value_or(0), kMiB) << "no quota is known";
  EXPECT_EQ(occupied(3), 0u) << "what is gone is not charged";
  EXPECT_EQ(names_in(scratch_ / ("tier/monarch/" + kRemoval)), Names{"stuck"}) << "the others are gone";
  EXPECT_TRUE(runs().empty());
  EXPECT_EQ(state_.read_removal(kRemoval)->given_up, 1u) << "it is tried again";
  stuck.reset();
  EXPECT_TRUE(remove(due(), kLong));
  nothing_is_left();
}

// Its run directory is in one that other jobs have, or a tmpfs of its own.
class RunDirTest : public RemoverTest {
 protected:
  void with_run_dir(
      const std::function<void(PrivateMounts*, const std::string&, std::vector<Removal>)>& body) {
    for (const bool bounded : {false, true})
      in_private_mounts(scratch_, [&](PrivateMounts* m) {
        const JobRecord r = record(1);
        std::vector<Removal> removals = begin_one(r);
        fs::remove_all(r.run_dir);
        m->check(make_run_dir(r.run_dir, bounded ? kMiB : 0, {}, r.user).ok(), "its run directory");
        body(m, r.run_dir, set_aside(state_, std::move(removals)));
        m->check(runs().empty() && in_removing().empty(), bounded ? "a tmpfs goes" : "a directory goes");
        end_children();
      });
  }
};

TEST_F(RunDirTest, WhoHasAFileOfItMappedKeepsNothing) {
  with_run_dir([&](PrivateMounts* m, const std::string& dir, std::vector<Removal> removals) {
    constexpr size_t kBytes = 65536;
    const Fd board(::open((dir + "/board").c_str(), O_RDWR | O_CLOEXEC));
    m->check(::ftruncate(board.get(), kBytes) == 0, "it has a board");
    auto* mapped = static_cast<volatile char*>(
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, board.get(), 0));
    mapped[kBytes - 1] = 'x';
    m->check(remove(std::move(removals), kLong), "it is removed");
    struct stat st {};
    m->check(::fstat(board.get(), &st) == 0 && st.st_blocks == 0, "with its pages");
    m->check(mapped[kBytes - 1] == 0, "and a task that reads it gets zeros");
  });
}

TEST_F(RunDirTest, WhatItsOwnerMountsOnAFileIsDetachedAndNotAsked) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  with_run_dir([&](PrivateMounts* m, const std::string& dir, std::vector<Removal> removals) {
    for (int i = 0; i < 3; ++i)
      m->fuse(dir.substr(scratch_.path().size() + 1) + "/board", kUid, "", "100000");
    m->check(remove(std::move(removals), kLong), "it is removed");
  });
}

// As releases before 0.2.0 made them: the directories of that name are the owner's, or they are set aside.
class OldLayoutTest : public RemoverTest {
 protected:
  JobRecord old_record() const {
    JobRecord r = record(1);
    r.layout = 1;
    r.run_dir = state_.run_dir(r);
    return r;
  }
};

TEST_F(OldLayoutTest, IsRemovedAsItsOwner) {
  std::vector<Removal> removals = aside_one(old_record());
  fill(scratch_ / ("tier/monarch/" + kAside));
  fs::create_directories(scratch_ / ("tier/monarch/" + kName + "/deep/er"));
  EXPECT_EQ(::chown((scratch_ / ("tier/monarch/" + kName + "/deep")).c_str(), kUid, kUid), 0);
  EXPECT_TRUE(remove(std::move(removals), kLong));
  nothing_is_left();
}

TEST_F(OldLayoutTest, WhatIsNotItsOwnersStays) {
  std::vector<Removal> removals = aside_one(old_record());
  const std::string dir = scratch_ / ("tier/monarch/" + kName),
                    kept = scratch_.file("tier/monarch/" + kName + "/foreign/kept", "x");
  const std::string log = logged([&] {
    EXPECT_FALSE(remove(std::move(removals), 0));
    EXPECT_TRUE(
        eventually([&] { return contents(scratch_ / "log").find("clean up: ") != std::string::npos; }));
  });
  EXPECT_TRUE(has(log, kName + ": not empty; what its owner could not remove is left")) << log;
  EXPECT_EQ(names_in(dir), Names{"foreign"});
  EXPECT_TRUE(exists(kept));
  EXPECT_EQ(state_.read_removal(kRemoval)->tiers.at(0).charged(), 100 * kMiB);
  end_children();
}

TEST_F(OldLayoutTest, ItsMemoryIsDetached) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    std::vector<Removal> removals = begin_one(old_record());
    const std::string dir = scratch_ / ("tier/monarch/" + kName);
    const std::string options = fmt::format("mode=700,uid={0},gid={0}", kUid);
    m->check(::mount(kTmpfsSource, dir.c_str(), "tmpfs", 0, options.c_str()) == 0, "its tmpfs");
    m->check(remove(set_aside(state_, std::move(removals)), kLong), "all is removed");
    m->check(on_tier().empty() && runs().empty() && in_removing().empty(), "nothing is left");
    end_children();
  });
}

TEST_F(RemoverTest, WhereTheDirectoryOfAllJobsIsGoneNothingIsLeft) {
  JobRecord r = record(1);
  fs::remove(scratch_ / "tier/monarch");
  fill_run(state_.path() + "/run/" + kRemoval);
  std::vector<Removal> removals = removal_of(r);
  EXPECT_TRUE(remove(std::move(removals), kLong)) << "an administrator has removed it";
  fs::create_directory(scratch_ / "tier/monarch");
  nothing_is_left();
}

// A job whose tier is in memory.
class MemoryTest : public RemoverTest {
 protected:
  void make_memory(PrivateMounts* m) const {
    TierConfig memory;
    memory.name = "tier";
    memory.path = scratch_ / "tier";
    memory.kind = TierConfig::Kind::kTmpfs;
    memory.quota.bytes = 4 * kMiB;
    m->check(make_job_dir(state_, memory, kRemoval, kUid).ok(), "a tier in memory");
  }
  std::vector<Removal> begin_in_memory(PrivateMounts* m) {
    std::vector<Removal> removals = begin_one(record(1));
    fs::remove_all(scratch_ / ("tier/monarch/" + kRemoval));
    make_memory(m);
    return removals;
  }
};

TEST_F(MemoryTest, MemoryIsGivenBackThoughACopyIsOpen) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    std::vector<Removal> removals = begin_in_memory(m);
    const std::string copy = fill_with_copies(scratch_ / ("tier/monarch/" + kRemoval));
    const Fd held(::open(copy.c_str(), O_RDONLY | O_CLOEXEC));
    removals = set_aside(state_, std::move(removals));
    m->check(on_tier() == Names{kRemoval}, "its directory has its name to the end");
    m->check(remove(std::move(removals), kLong), "all goes");
    m->check(on_tier().empty() && in_removing().empty(), "with its mount");
    struct stat st {};
    m->check(held && ::fstat(held.get(), &st) == 0 && st.st_blocks == 0, "and its pages");
    end_children();
  });
}

// An ended one, of whose memory its owner has a file without a name open.
class HeldMemoryTest : public MemoryTest {
 protected:
  void with_held_file(const std::function<void(PrivateMounts*, std::vector<Removal>, const Fd&)>& body) {
    in_private_mounts(scratch_, [&](PrivateMounts* m) {
      std::vector<Removal> removals = begin_in_memory(m);
      const Fd held = open_nameless();
      m->check(static_cast<bool>(held), "a file without a name");
      body(m, set_aside(state_, std::move(removals)), held);
      end_children();
    });
  }
  Fd open_nameless() const {
    const std::string dir = scratch_ / ("tier/monarch/" + kRemoval);
    return Fd(::open(dir.c_str(), O_RDWR | O_TMPFILE | O_CLOEXEC, 0644));
  }
};

TEST_F(HeldMemoryTest, WhatIsFilledWhileItIsLookedAtStaysCharged) {
  with_held_file([&](PrivateMounts* m, std::vector<Removal> removals, const Fd& held) {
    const std::string file = "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(held.get());
    off_t size = 0;
    const Intercept looks(Call::kFstatfsResult, [&](Arguments& a) {
      if (a.disk->f_blocks * static_cast<uint64_t>(a.disk->f_bsize) != 4 * kMiB) return 0;
      const Fd again(::open(file.c_str(), O_WRONLY | O_CLOEXEC));
      size += 1 << 16;
      (void)::fallocate(again.get(), 0, 0, size);  // until it is full
      return 0;
    });
    const std::string log = logged([&] {
      m->check(!remove(std::move(removals), 0), "it is not said to be gone");
      m->check(eventually([&] { return contents(scratch_ / "log").find("clean up: ") != std::string::npos; }),
               "it is tried");
    });
    m->check(on_tier() == Names{kRemoval}, "nor detached, with room for its owner");
    m->check(occupied().value_or(4 * kMiB) == 4 * kMiB, "and is charged");
  });
}

TEST_F(HeldMemoryTest, WhatStaysDoesNotGrow) {
  with_held_file([&](PrivateMounts* m, std::vector<Removal> removals, const Fd& held) {
    m->check(::fallocate(held.get(), 0, 0, kMiB) == 0, "it has a MiB");
    m->check(!remove(std::move(removals), 0) && eventually([&] { return occupied() == kMiB; }),
             "which is charged");
    m->check(::fallocate(held.get(), 0, kMiB, 1 << 16) != 0 && errno == ENOSPC, "and is all that it gets");
    const Fd top(
        ::open((scratch_ / ("tier/monarch/" + kRemoval)).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    m->check(::openat(top.get(), "more", O_WRONLY | O_CREAT | O_CLOEXEC, 0600) < 0 && errno == ENOSPC,
             "by no other file either");
    MountLine mount;
    m->check(find_mount(os::mount_id(top.get()), &mount) && has_mount_option(mount.options, "nosuid") &&
                 has_mount_option(mount.options, "nodev"),
             "and is mounted as before");
    m->check(::ftruncate(held.get(), 0) == 0, "once it is empty");
    end_children();
    m->check(remove(due(), kLong), "all goes");
    m->check(on_tier().empty() && in_removing().empty(), "with its mount");
  });
}

TEST_F(HeldMemoryTest, ThousandsOfEmptyFilesAreMemoryToo) {
  with_held_file([&](PrivateMounts* m, std::vector<Removal> removals, const Fd&) {
    constexpr rlim_t kFiles = 1100;
    const rlimit enough{kFiles + 100, kFiles + 100};
    m->check(::setrlimit(RLIMIT_NOFILE, &enough) == 0, "as many descriptors");
    std::vector<Fd> files;
    for (rlim_t n = 0; n < kFiles; ++n) files.push_back(open_nameless());
    m->check(!remove(std::move(removals), 0) && eventually([&] { return occupied().has_value(); }) &&
                 on_tier() == Names{kRemoval},
             "they are not forgotten");
  });
}

// It would be in the way of the directory once the tmpfs is detached.
TEST_F(MemoryTest, BelowAJobsMemoryThereIsNothingOfItsOwners) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    make_memory(m);
    const std::string path = scratch_ / ("tier/monarch/" + kRemoval);
    struct stat st {};
    m->check(::stat(path.c_str(), &st) == 0 && st.st_uid == 0 && (st.st_mode & 07777) == 0710, "root's");
    m->check(::umount2(path.c_str(), MNT_DETACH) == 0, "umount");
    m->check(::stat(path.c_str(), &st) == 0 && st.st_uid == 0 && (st.st_mode & 07777) == 0700,
             "and so is what it covers");
  });
}

class RunAsTest : public NodeTest {
 protected:
  static bool run(int patience_ms, const std::function<bool(int)>& work,
                  const User& user = {kUid, kUid, {5}}) {
    uint64_t out = 0;
    const bool good =
        Child(user, work).fill(system_clock().now_ms() + patience_ms, &out, sizeof out, system_clock());
    EXPECT_TRUE(no_child_is_left());
    return good && out == kNumber;
  }
  static bool write_some(int fd, size_t from, size_t bytes) {
    const uint64_t number = kNumber;
    return ::write(fd, reinterpret_cast<const char*>(&number) + from, bytes) == static_cast<ssize_t>(bytes);
  }
  static constexpr uint64_t kNumber = 0x1122334455667788;
};

TEST_F(RunAsTest, HandsBackWhatItIsToAndNothingElse) {
  const auto whole = [](int fd) { return write_some(fd, 0, 8); };
  EXPECT_TRUE(run(kLong, whole));
  EXPECT_TRUE(run(kLong, [](int fd) {
    int unread = 3;
    const bool first = write_some(fd, 0, 3);
    while (::ioctl(fd, FIONREAD, &unread) == 0 && unread > 0) ::sched_yield();
    return first && write_some(fd, 3, 5);
  })) << "in two pieces";
  EXPECT_FALSE(run(kLong, [](int fd) { return write_some(fd, 0, 7); })) << "a byte less";
  EXPECT_FALSE(run(kLong, [](int fd) { return write_some(fd, 0, 8) && false; }));
  EXPECT_FALSE(run(kLong, [](int) { return true; }));
  EXPECT_FALSE(run(kLong, [](int fd) -> bool {
    (void)write_some(fd, 0, 8);
    ::_exit(3);
  }));
  EXPECT_FALSE(run(kLong, whole, {0, 0, {}})) << "as root";
}

TEST_F(RunAsTest, IsBounded) {
  for (const bool writes : {false, true})
    EXPECT_FALSE(run(100, [=](int fd) {
      while (writes && write_some(fd, 0, 8)) continue;
      for (;;) ::pause();
      return true;
    })) << writes;
  EXPECT_FALSE(run(100, [](int fd) {
    (void)write_some(fd, 0, 8);
    for (;;) ::pause();
    return true;
  })) << "all is written, but it does not end";
}

TEST_F(RunAsTest, WhatHasComeIsReadThoughAnotherOneTookAllTheTime) {
  const User user = {kUid, kUid, {}};
  const Hung hung;
  PatientClock clock([&] { return hung.now() && has_child_in_state('Z'); });
  Child late(user, [&](int) -> bool { hung.here(); });
  Child good(user, [](int fd) { return write_some(fd, 0, 8); });
  uint64_t out = 0;
  const int64_t until_ms = clock.now_ms() + kLong;
  EXPECT_FALSE(late.fill(until_ms, &out, sizeof out, clock));
  EXPECT_TRUE(good.fill(until_ms, &out, sizeof out, clock));
  EXPECT_EQ(out, kNumber);
  EXPECT_TRUE(no_child_is_left());
}

TEST_F(RunAsTest, HasNothingOfRoots) {
  const Fd secret(::open("/proc/self/status", O_RDONLY));
  EXPECT_TRUE(run(kLong, [](int fd) {
    for (int other = 3; other < 100; ++other)
      if (other != fd && ::fcntl(other, F_GETFD) >= 0) return false;
    gid_t groups[2] = {};
    return ::getuid() == kUid && ::getgid() == kUid && ::getgroups(2, groups) == 1 && groups[0] == 5 &&
           write_some(fd, 0, 8);
  }));
}

}  // namespace
}  // namespace monarch
