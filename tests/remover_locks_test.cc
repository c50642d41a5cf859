// SPDX-License-Identifier: Apache-2.0
// What a job's owner keeps locked in the kernel while the remover is at work, and processes that hang there.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <optional>

#include "runtime/node/job_dirs.h"
#include "runtime/node/life.h"
#include "tests/hanging_fs.h"
#include "tests/private_mounts.h"
#include "tests/remover_fixture.h"
#include "tests/trapped_calls.h"

namespace fs = std::filesystem;

namespace monarch {
namespace {

// A rename from one directory to another waits for all others of the file system. Jobs can write where their
// records are if a run directory is not bounded.
TEST_F(RemoverTest, WhoStopsRenamesWhereTheStateIsHoldsUpNoJob) {
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    LockedDirectory locked(scratch_.file("file", ""));
    if (!locked.is_ready()) return;
    scratch_.dir("own");
    m->tmpfs("own", "state");
    const Result<StateDir> state = StateDir::open(scratch_ / "own/state");
    if (!state.ok()) return m->check(false, state.error().text);
    state_ = *state;
    std::vector<Removal> removals = begin_one(record(1));
    const std::string from = scratch_.dir("own/a"), to = scratch_.dir("own/b");
    fs::create_directory(from + "/x");
    locked.lock(::open(to.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    const pid_t renames = ::fork();
    if (renames == 0) ::_exit(::rename((from + "/x").c_str(), (to + "/x").c_str()));
    m->check(is_soon_in_kernel(renames), "it waits");
    m->check(is_soon_done([&] { return set_aside(state_, std::move(removals)).size() == 1; }),
             "its end is not held up");
    m->check(::waitpid(renames, nullptr, WNOHANG) == 0, "though somebody's rename hangs");
    locked.end();
    m->check(in_removing() == Names{kRemoval} && jobs().empty(), "its record is that of a removal");
    m->check(remove(unattended_removals(state_), kLong), "and all is removed");
    end_children();
  });
}

// What is to be removed is what fills it.
TEST_F(RemoverTest, WhereTheStatesFileSystemIsFullAJobIsRemovedAllTheSame) {
  for (const bool inodes : {false, true})
    in_private_mounts(scratch_, [&](PrivateMounts* m) {
      scratch_.dir("own");
      m->tmpfs("own", "state");
      if (inodes)
        m->check(::mount(nullptr, (scratch_ / "own").c_str(), nullptr, MS_REMOUNT, "nr_inodes=100") == 0,
                 "few");
      const Result<StateDir> state = StateDir::open(scratch_ / "own/state");
      if (!state.ok()) return m->check(false, state.error().text);
      state_ = *state;
      std::vector<Removal> removals = begin_one(record(1));
      m->check(state_.write("grants/" + kName, "").ok(), "it has its quotas");
      const std::string filled = scratch_.dir("own/state/run/" + kName + "/files/filled");
      m->check(::chown(filled.c_str(), kUid, kUid) == 0, "its owner's");
      for (int i = 0; i < 100000; ++i) {
        const Fd file(
            ::open((filled + "/" + std::to_string(i)).c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
        const char block[4096] = {};
        if (!file || (!inodes && ::write(file.get(), block, sizeof block) != sizeof block)) break;
      }
      m->check(!state_.write("jobs/c.1.n1/alone", std::string(5000, 'x')).ok(), "it is full");
      removals = set_aside(state_, std::move(removals));
      m->check(removals.size() == 1 && jobs().empty() && in_removing() == Names{kRemoval}, "it is set aside");
      m->check(is_locked("removing/" + kRemoval), "and who removes it has its lock");
      m->check(remove(std::move(removals), kLong) && in_removing().empty() && runs().empty(),
               "and all is removed");
      m->check(names_in(state_.path() + "/grants").empty(), "its quotas, too");
      m->check(state_.write("jobs/file", std::string(5000, 'x')).ok(), "there is room again");
      end_children();
    });
}

// rmdir(2) would wait for it with the directory above locked.
TEST_F(RemoverTest, WhatItsOwnerKeepsLockedRootDoesNotWaitFor) {
  struct Shared {
    std::atomic<bool> waits{false}, tried{false};
  };
  void* const room =
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  auto* const shared = new (room) Shared;
  std::vector<Removal> removals = aside_one(record(1));
  fs::remove_all(scratch_ / ("tier/monarch/" + kAside + "/files"));
  ASSERT_TRUE(fs::create_directory(scratch_ / ("tier/monarch/" + kAside + "/files")));
  ASSERT_EQ(::chown((scratch_ / ("tier/monarch/" + kAside + "/files")).c_str(), kUid, kUid), 0);
  struct stat above {};
  ASSERT_EQ(::stat((scratch_ / ("tier/monarch/" + kAside)).c_str(), &above), 0);
  const Intercept removes(Call::kUnlinkat, [=](Arguments& a) {
    struct stat st;
    if (::fstat(a.fd, &st) == 0 && st.st_ino == above.st_ino && st.st_dev == above.st_dev)
      shared->tried = true;
    while (a.flags == AT_REMOVEDIR && std::string(a.path) == ".removed") {
      shared->waits = true;
      ::pause();
    }
    return 0;
  });
  EXPECT_FALSE(remove(std::move(removals), 0));
  EXPECT_TRUE(eventually([&] { return shared->waits.load(); }));
  EXPECT_FALSE(shared->tried);
  end_children();
  ::munmap(room, sizeof(Shared));
}

// Just when root removes it, its owner has it locked once more: rmdir(2) hangs, and nobody can kill it.
TEST_F(RemoverTest, WhatItsOwnerLocksHoldsUpNoOtherJob) {
  hasten(HastyClock::Pauses::kShort);
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    LockedDirectory locked(scratch_.file("file", ""));
    if (!locked.is_ready()) return;
    std::vector<Removal> removals = aside_one(record(1));
    std::vector<Removal> other = aside_one(record(2));
    removals.push_back(std::move(other.at(0)));
    const std::string path = scratch_ / ("tier/monarch/" + kAside + "/files");
    struct stat above {};
    m->check(::stat((scratch_ / ("tier/monarch/" + kAside)).c_str(), &above) == 0, "its directory");
    const Intercept removes(Call::kUnlinkat, [&](Arguments& a) {
      struct stat st;
      if (a.flags == AT_REMOVEDIR && std::string(a.path) == kOwnersDir && ::fstat(a.fd, &st) == 0 &&
          st.st_ino == above.st_ino)
        locked.lock(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      return 0;
    });
    const Shared<std::atomic<int>> attempts;
    const Intercept looks(Call::kFstatvfs, [&](Arguments&) { return ++*attempts, 0; });  // before each
    m->check(!remove(std::move(removals), 0), "it cannot be removed");
    const std::string removing = "removing/" + kRemoval;
    m->check(eventually([&] { return hangs(state_, removing); }), "a process hangs, as is noted");
    m->check(eventually([&] { return in_removing() == Names{kRemoval}; }), "the other job's are removed");
    TierConfig tier;
    tier.name = "tier";
    tier.path = scratch_ / "tier";
    m->check(make_job_dir(state_, tier, "c.3.0.n1", kUid).ok(), "and the next job begins");
    m->check(occupied().value_or(100 * kMiB) == 100 * kMiB, "what nobody could look at is charged");
    m->check(eventually([&, now = attempts->load()] { return *attempts > now + 1; }), "it is tried again");
    m->check(eventually([&] { return Cgroups().processes(state_.helpers_cgroup()).size() <= 3; }),
             "one process is enough");
    locked.end();
    m->check(eventually([&] { return !hangs(state_, removing); }), "once it is unlocked it is removed");
    m->check(eventually([&] { return in_removing().empty() && on_tier() == Names{"c.3.0.n1"}; }),
             "with all that is the job's");
    end_children();
  });
}

// What its owner has mounted is in the way of one that hangs in rmdir(2), too.
TEST_F(RemoverTest, OneHangsInAPlaceWhateverItsOwnerMounts) {
  if (::access("/dev/fuse", R_OK | W_OK) != 0) GTEST_SKIP() << "no /dev/fuse";
  hasten(HastyClock::Pauses::kShort);
  in_private_mounts(scratch_, [&](PrivateMounts* m) {
    LockedDirectory locked(scratch_.file("file", ""));
    if (!locked.is_ready()) return;
    std::vector<Removal> removals = aside_one(record(1));
    const std::string path = scratch_ / ("tier/monarch/" + kAside + "/files");
    struct stat above {};
    m->check(::stat((scratch_ / ("tier/monarch/" + kAside)).c_str(), &above) == 0, "its directory");
    const Intercept removes(Call::kUnlinkat, [&](Arguments& a) {
      struct stat st;
      if (a.flags != AT_REMOVEDIR || std::string(a.path) != kOwnersDir || ::fstat(a.fd, &st) != 0 ||
          st.st_ino != above.st_ino || !fs::create_directory(scratch_ / "once"))
        return 0;
      const int directory = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      m->fuse("tier/monarch/" + kAside + "/files", kUid);
      locked.lock(directory);
      return 0;
    });
    const Shared<std::atomic<int>> attempts;
    const Intercept looks(Call::kFstatvfs, [&](Arguments&) { return ++*attempts, 0; });  // before each
    m->check(!remove(std::move(removals), 0), "it cannot be removed");
    const std::string removing = "removing/" + kRemoval;
    m->check(eventually([&] { return hangs(state_, removing); }), "a process hangs");
    m->check(eventually([&, now = attempts->load()] { return *attempts > now + 1; }), "it is tried again");
    const auto one_hangs = [&] {  // others may wait for a disk meanwhile
      const std::vector<int> left = Cgroups().processes(state_.helpers_cgroup());
      return std::count_if(left.begin(), left.end(), [](int pid) { return state_of(pid) == 'D'; }) <= 1;
    };
    m->check(eventually(one_hangs), "and no other one");
    locked.end();
    m->check(eventually([&] { return in_removing().empty() && on_tier().empty(); }), "then all goes");
    end_children();
  });
}

TEST_F(RemoverTest, AllThatHangAreNoted) {
  const Removal job = begin(record(1));
  const std::string of = "jobs/c.1.n1";
  const pid_t first = start_idle(), second = start_idle();
  EXPECT_FALSE(hangs(state_, of));
  for (const pid_t process : {first, second}) note_hanging(state_, of, process);
  ::kill(second, SIGKILL);
  ::waitpid(second, nullptr, 0);
  EXPECT_TRUE(hangs(state_, of)) << "the first one does still";
  note_hanging(state_, of, second);
  EXPECT_TRUE(hangs(state_, of)) << "one that has ended is not noted";
  ASSERT_TRUE(state_.write(of + "/hanging", "1 x\n").ok());
  EXPECT_FALSE(hangs(state_, of)) << "no process is";
  ::kill(first, SIGKILL);
  ::waitpid(first, nullptr, 0);
}

// As one that read what a running job counts.
TEST_F(RemoverTest, WhatAProcessHungInBeforeIsNamed) {
  const std::string log = logged([&] {
    const int status = in_child([&] {
      std::vector<Removal> removals = begin_one(record(1));
      const pid_t reader = start_idle(), self = ::getpid();
      note_hanging(state_, "jobs/c.1.n1", reader);
      static std::optional<LaterBy> later;  // given up after the first pause
      const auto pauses = [&](CallArguments) {
        if (::getpid() != self && !later) later.emplace(3600);
        return 0;
      };
      removals = set_aside(state_, std::move(removals));
      const int result = !before_call(SYS_clock_nanosleep, pauses) ? 99
                         : remove(std::move(removals), kLong)      ? 1
                                                                   : 0;
      ::kill(reader, SIGKILL);
      ::waitpid(reader, nullptr, 0);
      return result;
    });
    if (status == 99) GTEST_SKIP() << "no system call can be trapped here";
    EXPECT_EQ(status, 0);
  });
  if (IsSkipped()) return;
  EXPECT_NE(log.find("clean up: waits for a process that hangs"), std::string::npos) << log;
  EXPECT_NE(log.find("left as " + scratch_ / ("tier/monarch/" + kAside + ", ")), std::string::npos) << log;
  EXPECT_EQ(on_tier(), Names{kAside});
  EXPECT_TRUE(remove(unattended_removals(state_), kLong)) << "it has ended";
  nothing_is_left();
}

}  // namespace
}  // namespace monarch
