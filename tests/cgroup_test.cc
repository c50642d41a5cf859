// SPDX-License-Identifier: Apache-2.0
#include "runtime/node/cgroup.h"

#include <sys/file.h>

#include "runtime/base/fd.h"
#include "runtime/node/life.h"
#include "tests/manual_clock.h"
#include "tests/hanging_fs.h"
#include "tests/private_mounts.h"

namespace monarch {
namespace {

class CgroupTest : public ::testing::Test {
 protected:
  std::vector<CgroupHierarchy> read(const std::string& mountinfo) const {
    scratch_.file("mountinfo", mountinfo);
    return Cgroups(scratch_ / "mountinfo").hierarchies();
  }
  Scratch scratch_;
};

TEST_F(CgroupTest, EachHierarchyOnceWithItsControllers) {
  const auto found = read(
      "30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755\n"
      "31 30 0:27 / /sys/fs/cgroup/unified rw shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
      "32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd\n"
      "33 30 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n"
      "34 30 0:29 / /mnt/again rw - cgroup cgroup rw,cpu,cpuacct\n"
      "35 30 0:30 /docker/1 /mnt/part rw - cgroup cgroup rw,memory\n");
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(std::tuple(found[0].unified, found[1].controllers, found[2].mount),
            std::tuple(true, "name=systemd", "/sys/fs/cgroup/cpu,cpuacct"));
  EXPECT_TRUE(found[2].has("cpuacct") && !found[2].has("cpuset"));
  EXPECT_TRUE(read("30 24 0:26 / /sys/fs/cgroup ro - tmpfs tmpfs ro\n").empty());
  const Cgroups none(scratch_ / "mountinfo");
  EXPECT_FALSE(none.make("x", 0).ok());
  EXPECT_TRUE(none.end("x", 0)) << "there is nothing to end";
}

// Hierarchies in plain directories, with the files that the kernel would make.
class PlainGroups : public ::testing::Test {
 protected:
  PlainGroups() {
    scratch_.file("mountinfo", "1 0 0:1 / " + v1_ + " rw - cgroup none rw,cpuset,memory,freezer\n" +
                                   "2 0 0:2 / " + v2_ + " rw - cgroup2 none rw\n");
    for (const std::string group : {"v1/monarch/job", "v2/monarch/job", "v1", "v2"}) {
      for (const char* file : {"cgroup.procs", "cpuset.cpus", "cpuset.mems"})
        scratch_.file(group + "/" + file, "");
    }
    for (const char* file :
         {"v1/monarch/cpuset.cpus", "v1/monarch/cpuset.mems", "v1/monarch/job/memory.limit_in_bytes",
          "v2/monarch/job/memory.max", "v1/monarch/job/freezer.state", "v2/monarch/job/cgroup.kill",
          "v2/monarch/cgroup.controllers", "v2/monarch/cgroup.subtree_control"})
      scratch_.file(file, "");
  }
  PatientClock clock_;
  std::string in(const std::string& file) const { return contents(scratch_ / file); }
  static std::string own_status(const std::string& name) {
    std::ifstream status("/proc/self/status");
    std::string word;
    while (status >> word && word != name) continue;
    status >> word;
    return word;
  }

  const Scratch scratch_;
  const std::string v1_ = scratch_.dir("v1"), v2_ = scratch_.dir("v2");
  const Cgroups& groups() {
    if (!groups_) groups_ = std::make_unique<Cgroups>(scratch_ / "mountinfo", "/proc/1/cgroup", clock_);
    return *groups_;
  }

 private:
  std::unique_ptr<Cgroups> groups_;
};

TEST_F(PlainGroups, HaveTheLimitAndTheCallersProcessors) {
  scratch_.file("v1/cpuset.cpus", "0-7");
  scratch_.file("v1/cpuset.mems", "0-1");
  scratch_.file("v1/monarch/cpuset.mems", "1");
  ASSERT_TRUE(groups().make("job", 12345).ok());
  EXPECT_EQ(in("v1/monarch/job/memory.limit_in_bytes"), "12345");
  EXPECT_EQ(in("v2/monarch/job/memory.max"), "12345");
  for (const char* version : {"v1", "v2"}) {
    EXPECT_EQ(in(std::string(version) + "/monarch/job/cpuset.cpus"), own_status("Cpus_allowed_list:"));
    EXPECT_EQ(in(std::string(version) + "/monarch/job/cpuset.mems"), own_status("Mems_allowed_list:"));
  }
  EXPECT_EQ(in("v1/monarch/cpuset.cpus"), "0-7") << "a new one has none";
  EXPECT_EQ(in("v1/monarch/cpuset.mems"), "1") << "what it has it keeps";
  scratch_.file("v1/monarch/job/memory.limit_in_bytes", "");
  scratch_.file("v2/monarch/job/memory.max", "");
  ASSERT_TRUE(groups().make("job", 0).ok());
  EXPECT_EQ(in("v1/monarch/job/memory.limit_in_bytes"), "-1");
  EXPECT_EQ(in("v2/monarch/job/memory.max"), "max");
}

TEST_F(PlainGroups, ControllersAreGivenOnIfTheyAreThere) {
  const auto given = [&](const std::string& there, const std::string& already) {
    scratch_.file("v2/monarch/cgroup.controllers", there);
    scratch_.file("v2/monarch/cgroup.subtree_control", already);
    EXPECT_TRUE(groups().make("job", 0).ok());
    return in("v2/monarch/cgroup.subtree_control");  // each is written over what was there
  };
  EXPECT_EQ(given("io", ""), "");
  EXPECT_EQ(given("io memory", ""), "+memory");
  EXPECT_EQ(given("cpuset io", ""), "+cpuset");
  EXPECT_EQ(given("cpuset memory", "cpuset memory"), "cpuset memory");
  EXPECT_EQ(given("memory", "cpu"), "+memory");
}

TEST_F(PlainGroups, OnlyWhatIsInTheGroupIsKilled) {
  const pid_t stranger = ::fork();
  if (stranger == 0) {
    ::pause();
    ::_exit(0);
  }
  // As if its pid had been another's when the list was read. 0: of a namespace that is not seen from here.
  const std::string list = "0\n" + std::to_string(stranger) + "\n";
  for (const char* version : {"v1", "v2"})
    scratch_.file(std::string(version) + "/monarch/job/cgroup.procs", list);
  EXPECT_EQ(groups().processes("job"), std::vector<int>{stranger});
  EXPECT_FALSE(groups().end("job", 20)) << "what is in it stays";
  EXPECT_EQ(in("v1/monarch/job/freezer.state"), "THAWED") << "nobody stays frozen";
  EXPECT_EQ(::waitpid(stranger, nullptr, WNOHANG), 0) << "a process that is not in the group was killed";
  end_child(stranger);
}

TEST_F(PlainGroups, AreRemovedOnceEmptyAndTheirParentStays) {
  for (const char* path : {"v1/monarch/job", "v2/monarch/job", "v1/monarch", "v2/monarch"})
    std::filesystem::remove_all(scratch_ / path);
  for (const char* path : {"v1/monarch/a.1", "v2/monarch/a.2", "v1/monarch/.a.3", "v2/monarch/a.1"})
    scratch_.dir(path);
  scratch_.file("v1/monarch/a.file", "");
  EXPECT_EQ(groups().names("a."), (std::vector<std::string>{"a.1", "a.2"})) << "directories that begin so";
  EXPECT_TRUE(groups().end("a.1", 0));
  EXPECT_EQ(groups().names("a."), (std::vector<std::string>{"a.2"}));
  groups().remove_if_empty("a.2");
  EXPECT_TRUE(std::filesystem::is_empty(v2_ + "/monarch"));
  scratch_.dir("v2/monarch/a");
  groups().leave("a");
  EXPECT_TRUE(std::filesystem::is_empty(v2_ + "/monarch"));
  EXPECT_EQ(in("v2/cgroup.procs"), "0");
  EXPECT_EQ(in("v1/cgroup.procs"), "") << "it was in no group there";
}

TEST_F(PlainGroups, WhereTheirParentsAreNothingOfTheRootsIsOpenedOrLocked) {
  ASSERT_TRUE(groups().make("job", 0).ok());
  const Fd root(::open(v1_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(root.get(), LOCK_EX), 0);  // as any user can whom it lets in
  for (const char* file : {"v1/cgroup.procs", "v2/cgroup.procs"}) {
    std::filesystem::remove(scratch_ / file);
    ASSERT_EQ(::mkfifo((scratch_ / file).c_str(), 0600), 0);
  }
  EXPECT_TRUE(is_soon_done([&] {
    ::alarm(600);  // until somebody reads
    return groups().make("job", 0).ok();
  }));
  for (const char* file : {"v1/cgroup.procs", "v2/cgroup.procs"}) {
    std::filesystem::remove(scratch_ / file);
    scratch_.file(file, "");
  }
  std::filesystem::remove_all(v1_ + "/monarch");
  clock_.pass_once([] { return true; });
  EXPECT_EQ(groups().make("job", 0).error().code, ETIMEDOUT) << "a parent that is missing is held up";
  EXPECT_TRUE(eventually([] { return ::waitpid(-1, nullptr, WNOHANG) == -1; }))
      << "who waited for it has ended";
}

TEST_F(PlainGroups, UsersCannotListThem) {
  const auto mode = [&](const std::string& path) { return mode_of(scratch_ / path); };
  scratch_.dir("v1/monarch");
  std::filesystem::permissions(v1_ + "/monarch", std::filesystem::perms(0755));
  std::filesystem::remove_all(v2_ + "/monarch");
  const mode_t before = ::umask(0);
  EXPECT_TRUE(groups().make("new", 0).ok());
  ::umask(before);
  for (const char* version : {"v1", "v2"}) {
    EXPECT_EQ(mode(std::string(version) + "/monarch"), 0711u);
    EXPECT_EQ(mode(std::string(version) + "/monarch/new"), 0711u);
  }
}

TEST_F(PlainGroups, WhereTheRootTakesNoProcessTheyAreLeftForThatOfTheFirst) {
  const auto left = [&](const std::string& of_first, bool root_takes_one = false) {
    for (const std::string version : {"v1", "v2"}) {
      scratch_.dir(version + "/monarch/a");
      scratch_.file(version + "/init/cgroup.procs", "");
      std::filesystem::remove(scratch_ / (version + "/cgroup.procs"));
      if (root_takes_one) scratch_.file(version + "/cgroup.procs", "");
    }
    Cgroups(scratch_ / "mountinfo", scratch_.file("of_first", of_first)).leave("a");
    EXPECT_FALSE(std::filesystem::exists(v1_ + "/monarch/a") || std::filesystem::exists(v2_ + "/monarch/a"));
    return in("v1/init/cgroup.procs") + "," + in("v2/init/cgroup.procs");
  };
  const std::string v1 = "4:cpuset,memory,freezer:/init\n", v2 = "0::/init\n";
  EXPECT_EQ(left("9:pids:/x\n" + v1 + v2), "0,0");
  EXPECT_EQ(left(v2), ",0");
  EXPECT_EQ(left("4:cpuset,memory:/init\n5:freezer:/init\n"), ",") << "other hierarchies";
  EXPECT_EQ(left("0::/../init\n"), ",") << "it is outside of the namespace";
  EXPECT_EQ(left("4:cpuset,memory,freezer\n0:\n\n:\n"), ",");
  EXPECT_EQ(left(v1 + v2, true), ",") << "where it takes one they are not";
  EXPECT_EQ(in("v1/cgroup.procs") + in("v2/cgroup.procs"), "00");
}

// A group of this machine's as a hierarchy, whose root all users can list, and a group of a step's.
class LockedRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    const Cgroups all;
    for (const CgroupHierarchy& h : all.hierarchies())
      if (h.unified) root_ = h.mount + "/unit-test.locked." + std::to_string(::getpid());
    if (root_.empty() || ::mkdir(root_.c_str(), 0755) != 0 || ::mkdir((root_ + "/step").c_str(), 0755) != 0)
      GTEST_SKIP() << "no group can be made here";
    scratch_.file("groups", "1 0 0:1 / " + root_ + " rw - cgroup2 none rw\n");
  }
  void TearDown() override {
    eventually([&] {  // what hung may make one still
      for (const char* group : {"/monarch/job", "/monarch", "/step"}) ::rmdir((root_ + group).c_str());
      return ::rmdir(root_.c_str()) == 0 || errno == ENOENT;
    });
  }
  Cgroups groups() { return Cgroups(scratch_ / "groups", "/proc/1/cgroup", clock_); }
  PatientClock clock_;
  // In a process of the step's, while a user keeps the root locked.
  void while_locked(const std::function<void(PrivateMounts*)>& body) const {
    with_locked_directory(scratch_, [&](PrivateMounts* m, LockedDirectory* locked) {
      std::ofstream(root_ + "/step/cgroup.procs") << "0" << std::flush;
      locked->lock(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
      body(m);
    });
  }
  // The processes in a group, whose file is open: who looks for a name in what is locked may hang.
  static long processes(const Fd& file) {
    std::string text(1 << 16, '\0');
    const ssize_t n = ::pread(file.get(), text.data(), text.size(), 0);
    return std::count(text.begin(), text.begin() + std::max<ssize_t>(n, 0), '\n');
  }
  const Scratch scratch_;
  std::string root_;
};

TEST_F(LockedRoot, HoldsUpNoGroupOnceTheirParentIsThere) {
  groups().prepare();
  while_locked([&](PrivateMounts* m) {
    const auto life = [&] {
      const Cgroups all = groups();
      const pid_t member = ::fork();
      if (member == 0) ::_exit(all.make("job", 0).ok() && all.enter("job").ok() ? ::pause() : 1);
      const bool entered = eventually([&] { return !all.processes("job").empty(); });
      return entered && all.end("job", 10000);
    };
    m->check(is_soon_done(life), "a group is made, its process is killed, and it is removed");
  });
}

TEST_F(LockedRoot, CostsTheGroupThatHasNoParentYet) {
  const Fd step(::open((root_ + "/step/cgroup.procs").c_str(), O_RDONLY | O_CLOEXEC));
  const Fd root(::open((root_ + "/cgroup.procs").c_str(), O_RDONLY | O_CLOEXEC));
  while_locked([&](PrivateMounts* m) {
    clock_.pass_once([] { return true; });
    const long before = processes(step);
    m->check(is_soon_done([&] { return groups().make("job", 0).error().code == ETIMEDOUT; }),
             "there is none, and nobody waits");
    m->check(eventually([&] { return processes(step) == before; }), "nor is in the step's groups what hangs");
    m->check(processes(root) == 1, "it is in the root");
  });
}

TEST(AgentMemory, IsWhatTheTiersInMemoryTakeAndMore) {
  AgentConfig agent;
  TierConfig disk, ram;
  disk.quota.bytes = uint64_t{1} << 40;
  ram.quota.bytes = uint64_t{16} << 30;
  ram.medium = Medium::kRam;
  EXPECT_EQ(agent_memory(agent, {disk}, 0), uint64_t{2} << 30);
  EXPECT_EQ(agent_memory(agent, {disk, ram}, 0), uint64_t{19} << 30);
  ram.medium = Medium::kSsd;
  ram.path = "/dev/shm";  // whatever it is called
  EXPECT_EQ(agent_memory(agent, {disk, ram}, 0), uint64_t{19} << 30);
  ram.charge = TierConfig::Charge::kJob;
  EXPECT_EQ(agent_memory(agent, {disk, ram}, uint64_t{8} << 30), uint64_t{21} << 29)
      << "no more than the job's";
  EXPECT_EQ(agent_memory(agent, {disk, ram}, uint64_t{99} << 30), uint64_t{19} << 30);
  agent.memory_max = 0;
  EXPECT_EQ(agent_memory(agent, {ram}, uint64_t{8} << 30), 0u);
}

}  // namespace
}  // namespace monarch
