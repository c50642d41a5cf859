// SPDX-License-Identifier: Apache-2.0
// runtime/hierarchy/discovery: nodes made of a mount table, a tree of sysfs and directories below a scratch
// directory, recorded machines, and this machine.
#include "runtime/hierarchy/discovery.h"

#include <numaif.h>
#include <sys/sysmacros.h>

#include "runtime/hierarchy/locality.h"
#include "tests/machine.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

// The candidate whose mount point this is; a failure if there is not exactly one.
Candidate at(const std::vector<Candidate>& all, const std::string& mount_point) {
  const auto is_it = [&](const Candidate& c) { return c.mount_point == mount_point; };
  EXPECT_EQ(std::count_if(all.begin(), all.end(), is_it), 1) << mount_point;
  const auto found = std::find_if(all.begin(), all.end(), is_it);
  return found == all.end() ? Candidate() : *found;
}

// What is chosen, as NAME=PATH.
std::string tiers_of(const std::vector<Candidate>& all) {
  std::string text;
  for (const TierConfig& t : chosen(all)) text += (text.empty() ? "" : " ") + t.name + "=" + t.path;
  return text;
}

void expect_refused(const Candidate& c, const std::string& why) {
  EXPECT_FALSE(c.chosen) << c.path;
  EXPECT_TRUE(has(c.reason, why)) << c.path << ": " << c.reason;
}

// A node whose root file system is no place for users.
struct Node : Machine {
  Node() { plain_root(); }
  // An NVMe disk that is mounted there, with this mode.
  void nvme_at(int index, const std::string& path, mode_t mode = 01777) {
    const std::string name = "nvme" + std::to_string(index) + "n1", number = "259:" + std::to_string(index);
    nvme(name, number);
    mount(number, path, "xfs", "/dev/" + name);
    dir(path, mode);
  }
  void open(const std::vector<std::string>& paths) {
    for (const std::string& path : paths) dir(path, 01777);
  }
};

TEST(Discovery, OrdersTheDisksOfATwoSocketNode) {
  Machine m(hpc_node());
  m.nvme("nvme0n1", "259:0");
  m.nvme("nvme1n1", "259:1");
  m.disk("sda", "8:0", "pci0000:20/0000:22:00.0/ata1/host0/target0:0:0/0:0:0:0", "0");
  m.partition("sda1", "8:1", "sda");
  m.partition("sda2", "8:2", "sda");
  m.disk("sdb", "8:16", "pci0000:20/0000:22:00.0/ata2/host1/target1:0:0/1:0:0:0", "1");
  m.mount("8:2", "/", "ext4", "/dev/sda2");
  m.mount("8:1", "/boot/efi", "vfat", "/dev/sda1");
  m.mount("8:16", "/bulk", "ext4", "/dev/sdb");
  m.mount("259:1", "/scratch", "xfs", "/dev/nvme1n1");
  for (const char* path : {"/bulk", "/scratch", "/tmp"}) m.dir(path, 01777);
  const std::vector<Candidate> all = m.discover();
  EXPECT_EQ(tiers_of(all), "nvme=/scratch ssd=/tmp hdd=/bulk");
  const TierConfig& first = at(all, "/scratch").tier;
  EXPECT_EQ(std::tuple(first.medium, first.quota.percent, first.min_free.percent),
            std::tuple(Medium::kNvme, 80, 5));
  EXPECT_TRUE(std::is_sorted(all.begin(), all.end(),
                             [](const Candidate& a, const Candidate& b) { return a.chosen && !b.chosen; }));
  EXPECT_EQ(at(all, "/scratch").numa_node, 1);
  EXPECT_EQ(at(all, "/bulk").numa_node, 0);
  EXPECT_EQ(at(all, "/scratch").transport, "nvme");
  EXPECT_EQ(at(all, "/bulk").transport, "sata");
  EXPECT_EQ(at(all, "/").disks, std::vector<std::string>{"sda"});
  expect_refused(at(all, "/boot/efi"), "vfat");
  // The disk that nobody uses is shown, and left alone.
  const Candidate unused = at(all, "");
  EXPECT_EQ(unused.device, "nvme0n1");
  EXPECT_EQ(unused.size, 1875374424ull * 1024);
  expect_refused(unused, "nothing is mounted");
}

TEST(Discovery, OfTheRootHalfOfWhatIsFreeIsTakenWhereUsersHaveADirectory) {
  Machine m;
  m.nvme("nvme0n1", "259:0");
  m.mount("259:0", "/", "ext4", "/dev/nvme0n1");
  m.dir("/elsewhere", 01777);
  fs::create_directory_symlink(m.root() + "/elsewhere", m.root() + "/scratch");
  expect_refused(at(m.discover(), "/"), "nor is there a sticky, world-writable one of");
  m.dir("/var/tmp", 01777);
  const Candidate root = at(m.discover(), "/");
  ASSERT_TRUE(root.chosen) << root.reason;
  EXPECT_EQ(root.path, "/var/tmp");
  EXPECT_GT(root.size, 0u);
  EXPECT_EQ(root.tier.quota.bytes, root.free / 2);
  EXPECT_LT(root.tier.quota.percent, 0);
  EXPECT_EQ(root.tier.min_free.percent, 10);
  m.dir("/local", 01777);
  fs::remove(m.root() + "/scratch");
  m.dir("/scratch", 0755);
  EXPECT_EQ(at(m.discover(), "/").path, "/local");
  m.dir("/scratch", 01777);
  EXPECT_EQ(at(m.discover(), "/").path, "/scratch");
}

TEST(Discovery, TmpOnAnotherFileSystemIsNotTheRoots) {
  Node m;
  m.mount("0:40", "/tmp", "tmpfs", "tmpfs");
  m.dir("/tmp", 01777);
  const std::vector<Candidate> all = m.discover();
  expect_refused(at(all, "/"), "users cannot write to /");
  expect_refused(at(all, "/tmp"), "memory");
  EXPECT_TRUE(chosen(all).empty());
}

TEST(Discovery, FindsTheDisksBelowLvmAndLuks) {
  Node m;
  m.nvme("nvme0n1", "259:0");
  m.partition("nvme0n1p3", "259:3", "nvme0n1");
  m.stack("dm-0", "253:0", {"nvme0n1p3"});  // LUKS
  m.stack("dm-1", "253:1", {"dm-0"});       // LVM
  m.mount("253:1", "/scratch", "xfs", "/dev/mapper/vg-scratch");
  m.dir("/scratch", 01777);
  const Candidate c = at(m.discover(), "/scratch");
  EXPECT_TRUE(c.chosen) << c.reason;
  EXPECT_EQ(std::tuple(c.medium, c.disks, c.device),
            std::tuple(Medium::kNvme, std::vector<std::string>{"nvme0n1"}, "/dev/mapper/vg-scratch"));
}

TEST(Discovery, ARaidIsAsSlowAsItsSlowestDisk) {
  Node m;
  m.disk("sda", "8:0", "pci0000:00/0000:00:17.0/ata1", "0");
  m.disk("sdb", "8:16", "pci0000:00/0000:00:17.0/ata2", "0");
  m.disk("sdc", "8:32", "pci0000:00/0000:00:17.0/ata3", "1");
  m.nvme("nvme0n1", "259:0");
  m.stack("md0", "9:0", {"sda", "sdb"});
  m.stack("md1", "9:1", {"nvme0n1", "sdc"});
  m.mount("9:0", "/fast", "xfs", "/dev/md0");
  m.mount("9:1", "/slow", "xfs", "/dev/md1");
  m.open({"/fast", "/slow"});
  const std::vector<Candidate> all = m.discover();
  EXPECT_EQ(at(all, "/fast").medium, Medium::kSsd);
  EXPECT_EQ(at(all, "/fast").disks, (std::vector<std::string>{"sda", "sdb"}));
  EXPECT_EQ(at(all, "/slow").medium, Medium::kHdd);
  EXPECT_EQ(at(all, "/slow").transport, "nvme+sata");
  EXPECT_EQ(chosen(all).size(), 2u);
}

TEST(Discovery, NumbersTiersOfOneMedium) {
  Node m;
  m.nvme_at(0, "/local0");
  m.nvme_at(1, "/local1");
  EXPECT_EQ(tiers_of(m.discover()), "nvme=/local0 nvme2=/local1");
}

TEST(Discovery, NeverTouchesANetworkFileSystemNorWhatIsBelowOne) {
  Node m;
  m.nvme("nvme0n1", "259:0");
  const int lustre = m.mount("0:50", "/lustre", "lustre", "10.0.0.1@tcp:/work");
  m.mount("0:51", "/home", "nfs4", "server:/home");
  m.mount("0:52", "/gluster", "fuse.glusterfs", "server:/vol");
  m.mount("0:53", "/new", "newpfs", "newpfs");
  m.mount("259:0", "/lustre/local", "xfs", "/dev/nvme0n1", "rw", "/", lustre);
  // They can be entered, and look fine; only their types speak against them.
  m.open({"/lustre", "/home", "/gluster", "/new", "/lustre/local"});
  const std::vector<Candidate> all = m.discover();
  EXPECT_TRUE(chosen(all).empty());
  for (const auto& [path, why] : {std::pair("/lustre", "network file system"),
                                  {"/home", "network file system"},
                                  {"/gluster", "FUSE"},
                                  {"/new", "newpfs is not known to be local"},
                                  {"/lustre/local", "below /lustre"}}) {
    expect_refused(at(all, path), why);
    EXPECT_EQ(at(all, path).size, 0u) << path << " was asked";
  }
}

TEST(Discovery, ADisklessNodeCanHaveALocalDisk) {
  Machine m;
  m.mount("0:20", "/", "nfs", "server:/image");
  m.nvme("nvme0n1", "259:0");
  m.mount("259:0", "/local", "xfs", "/dev/nvme0n1");
  m.dir("/local", 01777);
  EXPECT_EQ(tiers_of(m.discover()), "nvme=/local");
}

TEST(Discovery, RefusesAnOverlayRoot) {
  Machine m;
  m.mount("0:30", "/", "overlay", "overlay");
  m.mount("0:31", "/var/lib/containers/a/merged", "overlay", "overlay");
  m.dir("/tmp", 01777);
  const std::vector<Candidate> all = m.discover();
  ASSERT_EQ(all.size(), 1u) << "containers' own are not worth a line";
  expect_refused(all[0], "overlay");
}

TEST(Discovery, RefusesWhatIsNoLocalDiskForJobs) {
  Node m;
  m.nvme("nvme0n1", "259:0");
  m.nvme("nvme1n1", "259:1");
  m.disk("sdb", "8:16", "pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6/target6:0:0/6:0:0:0", "0");
  m.partition("sdb1", "8:17", "sdb");
  m.disk("sdc", "8:32", "pci0000:00/0000:00:17.0/ata3", "0");
  m.set("sdc", "removable", "1");
  m.disk("sdd", "8:48", "platform/host5/session1/target5:0:0/5:0:0:1", "0");
  m.disk("nbd0", "43:0", "virtual", "0");
  m.disk("nvme9n1", "259:9", "virtual/nvme-subsystem/nvme-subsys9", "0");
  fs::create_directories(m.root() + "/sys/devices/virtual/nvme-subsystem/nvme-subsys9/block/nvme9");
  std::ofstream(m.root() + "/sys/devices/virtual/nvme-subsystem/nvme-subsys9/block/nvme9/transport")
      << "rdma\n";
  m.disk("dm-0", "253:0", "virtual", "0");
  const struct {
    const char *number, *path, *type, *device, *options, *why;
  } mounts[] = {
      {"259:0", "/data", "xfs", "/dev/nvme0n1", "ro,relatime", "read-only"},
      {"259:1", "/boot", "ext4", "/dev/nvme1n1", "rw", "system"},
      {"8:17", "/media/stick", "ext4", "/dev/sdb1", "rw", "removable"},
      {"8:32", "/media/card", "ext4", "/dev/sdc", "rw", "removable"},
      {"8:48", "/iscsi", "xfs", "/dev/sdd", "rw", "iscsi"},
      {"43:0", "/nbd", "xfs", "/dev/nbd0", "rw", "sysfs does not tell what nbd0 is on"},
      {"259:9", "/rdma", "xfs", "/dev/nvme9n1", "rw", "nvme-rdma"},
      {"253:0", "/dm", "xfs", "/dev/mapper/a", "rw", "does not tell what dm-0 is on"},
      {"8:99", "/unknown", "xfs", "/dev/unknown", "rw", "does not tell which disks"},
      {"0:60", "/zfs", "zfs", "tank/c", "rw", "does not tell which disks"},
  };
  for (const auto& mount : mounts) {
    m.mount(mount.number, mount.path, mount.type, mount.device, mount.options);
    m.dir(mount.path, 01777);
  }
  m.mount("0:6", "/run", "tmpfs", "tmpfs");
  const std::vector<Candidate> all = m.discover();
  for (const auto& mount : mounts) expect_refused(at(all, mount.path), mount.why);
  EXPECT_TRUE(std::none_of(all.begin(), all.end(), [&](const Candidate& c) { return c.path == "/run"; }))
      << "it is not worth a line";
}

TEST(Discovery, FollowsLoopDevicesToTheirFile) {
  Node m;
  m.nvme_at(0, "/images", 0755);
  m.mount("0:50", "/lustre", "lustre", "10.0.0.1@tcp:/work");
  for (const std::string n : {"0", "1"}) {
    m.disk("loop" + n, "7:" + n, "virtual", "1");
    m.mount("7:" + n, "/mnt" + n, "ext4", "/dev/loop" + n);
    m.dir("/mnt" + n, 01777);
  }
  m.set("loop0", "loop/backing_file", "/images/node.img");
  m.set("loop1", "loop/backing_file", "/lustre/images/node.img");
  const std::vector<Candidate> all = m.discover();
  EXPECT_TRUE(at(all, "/mnt0").chosen) << at(all, "/mnt0").reason;
  EXPECT_EQ(at(all, "/mnt0").medium, Medium::kNvme);
  expect_refused(at(all, "/mnt1"), "/lustre/images/node.img on lustre");
}

TEST(Discovery, TakesAFileSystemThatIsMountedTwiceOnce) {
  Node m;
  m.nvme_at(0, "/scratch");
  m.mount("259:0", "/tmp", "xfs", "/dev/nvme0n1", "rw", "/tmp");  // bound
  m.mount("259:0", "/exports", "xfs", "/dev/nvme0n1", "ro");
  m.open({"/tmp", "/exports"});
  std::vector<Candidate> all = m.discover();
  EXPECT_EQ(tiers_of(all), "nvme=/scratch")
      << "the whole file system, not the part of it that is bound elsewhere";
  expect_refused(at(all, "/tmp"), "same file system as /scratch");
  expect_refused(at(all, "/exports"), "same file system as /scratch");
  m.dir("/scratch", 0755);
  all = m.discover();
  EXPECT_TRUE(at(all, "/tmp").chosen) << "the part, if the whole is not for users";
  EXPECT_LT(at(all, "/tmp").tier.quota.percent, 0) << "others use the file system too";
  expect_refused(at(all, "/scratch"), "same file system as /tmp");
}

TEST(Discovery, SkipsMountsThatAreHidden) {
  Node m;
  m.nvme("nvme0n1", "259:0");
  const int below = m.mount("259:0", "/scratch", "xfs", "/dev/nvme0n1");
  m.mount("0:50", "/scratch", "nfs", "server:/scratch", "rw", "/", below);
  m.dir("/scratch", 01777);
  const std::vector<Candidate> all = m.discover();
  EXPECT_EQ(at(all, "/scratch").fstype, "nfs");
  EXPECT_TRUE(chosen(all).empty());
}

TEST(Discovery, RefusesADeviceNumberOfTwoDevices) {
  Node m;
  m.nvme_at(0, "/scratch");
  m.disk("pmem0", "259:0", "LNXSYSTM:00/ndbus0/region0/pfn0.0", "0");
  m.nvme_at(1, "/a");
  m.mount("259:1", "/b", "ext4", "/dev/pmem1");
  m.dir("/b", 01777);
  const std::vector<Candidate> all = m.discover();
  expect_refused(at(all, "/scratch"), "259:0 is that of several devices: nvme0n1, pmem0");
  expect_refused(at(all, "/a"), "mounted as xfs and as ext4");
  expect_refused(at(all, "/b"), "mounted as ext4 and as xfs");
}

TEST(Discovery, ReadsMountPointsWithBlanks) {
  Node m;
  m.nvme_at(0, "/fast \\ disk");
  m.nvme_at(1, "/two\nlines");
  const std::vector<Candidate> all = m.discover();
  EXPECT_EQ(tiers_of(all), "nvme=/fast \\ disk") << at(all, "/fast \\ disk").reason;
  expect_refused(at(all, "/two\nlines"), "control characters");
}

TEST(Discovery, ProposesOnlyWhatUsersCanWriteAlready) {
  Node m;
  struct Place {
    const char* path;
    mode_t mode;
    const char* why;
  };
  const Place places[] = {{"/a", 0755, "users cannot write to /a"},
                          {"/b", 0775, "users cannot write to /b"},
                          {"/c", 0777, "not sticky"},
                          {"/d", 01775, "users cannot write to /d"},
                          {"/e/in", 01777, "/e can be replaced"}};
  int n = 0;
  for (const Place& place : places) m.nvme_at(n++, place.path, place.mode);
  m.dir("/e", 0777);
  std::vector<Candidate> all = m.discover();
  EXPECT_TRUE(chosen(all).empty());
  for (const Place& place : places) expect_refused(at(all, place.path), place.why);
  m.dir("/e", 0700);
  expect_refused(at(m.discover(), "/e/in"), "users cannot enter /e");
  if (::geteuid() != 0) return;
  m.dir("/e", 0755);
  EXPECT_TRUE(at(m.discover(), "/e/in").chosen);
  ASSERT_EQ(::chown((m.root() + "/e/in").c_str(), 12345, 12345), 0);
  ASSERT_EQ(::chmod((m.root() + "/e/in").c_str(), 01777), 0);
  expect_refused(at(m.discover(), "/e/in"), "belongs to uid 12345");
}

TEST(Discovery, FindsAllDevicesOfBtrfs) {
  Node m;
  m.nvme("nvme0n1", "259:0");
  m.disk("sda", "8:0", "pci0000:00/0000:00:17.0/ata1", "1");
  if (::mknod((m.root() + "/dev/nvme0n1").c_str(), S_IFBLK | 0600, makedev(259, 0)) != 0)
    GTEST_SKIP() << "mknod: " << strerror(errno);
  fs::create_directories(m.root() + "/sys/fs/btrfs/0b2f/devices");
  for (const char* name : {"nvme0n1", "sda"})
    fs::create_symlink(fs::canonical(m.root() + "/sys/class/block/" + name),
                       m.root() + "/sys/fs/btrfs/0b2f/devices/" + name);
  m.mount("0:45", "/scratch", "btrfs", "/dev/nvme0n1", "rw", "/@scratch");
  m.dir("/scratch", 01777);
  const Candidate c = at(m.discover(), "/scratch");
  EXPECT_TRUE(c.chosen) << c.reason;
  EXPECT_EQ(c.medium, Medium::kHdd) << "the slowest of its disks";
  EXPECT_EQ(c.disks, (std::vector<std::string>{"nvme0n1", "sda"}));
}

TEST(Discovery, WantsAMountTable) {
  Machine m;
  EXPECT_FALSE(m.try_discover().ok()) << "an empty one";
  m.mount("252:0", "/", "ext4", "/dev/vda");
  EXPECT_TRUE(m.try_discover().ok());
  Machine broken;
  broken.mount("252:0\n", "/", "ext4", "/dev/vda");
  EXPECT_FALSE(broken.try_discover().ok());
  Machine no_topology("/nonexistent.xml");
  no_topology.plain_root();
  EXPECT_FALSE(no_topology.try_discover().ok());
  EXPECT_FALSE(discover({"/nonexistent", "", 0}).ok());
}

TierConfig tier(const std::string& name, const std::string& path) {
  TierConfig t;
  t.name = name;
  t.path = path;
  t.quota = Quota{1 << 20, -1};
  return t;
}

TEST(Discovery, ConfiguredTiersAreUsedAlone) {
  Node m;
  m.nvme_at(0, "/scratch");
  m.mount("0:50", "/dev/shm", "tmpfs", "tmpfs");
  m.mount("0:51", "/lustre", "lustre", "10.0.0.1@tcp:/work");
  m.mount("0:52", "/auto", "autofs", "auto.direct");
  m.open({"/dev/shm", "/lustre/tier", "/auto"});
  m.dir("/private", 0700);
  m.dir("/dev", 0755);
  fs::create_directory_symlink("../lustre/tier", m.root() + "/private/far");
  fs::create_directory_symlink("dev/shm", m.root() + "/near");
  std::vector<TierConfig> config;
  for (const char* path : {"/near", "/private", "/missing", "/lustre/tier", "/private/far", "/auto/x"})
    config.push_back(tier("t" + std::to_string(config.size()), path));
  const std::vector<Candidate> all = m.discover(config);
  ASSERT_GE(all.size(), config.size());
  for (size_t i = 0; i < config.size(); ++i) EXPECT_EQ(all[i].path, config[i].path);
  EXPECT_EQ(all[0].mount_point, "/dev/shm");
  EXPECT_TRUE(has(all[0].reason, "configured")) << all[0].reason;
  expect_refused(all[1], "users cannot enter /private");
  expect_refused(all[2], "/missing: No such file");
  expect_refused(all[3], "lustre: network file system");
  expect_refused(all[4], "/lustre/tier is on lustre");
  expect_refused(all[5], "automounter");
  EXPECT_EQ(all[2].remedy, "install -d -m 1777 -o root /missing");
  EXPECT_EQ(all[4].remedy, "name a directory on a local disk in [tier.t4]");
  EXPECT_EQ(tiers_of(all), "t0=/near");
  EXPECT_EQ(all[0].tier.quota.bytes, 1u << 20);
  expect_refused(at(all, "/scratch"), "not used: tiers are configured");

  config.resize(1);
  config[0].min_free = {all[0].size - 1, -1};
  config[0].quota = {2 * all[0].size, -1};
  const Candidate full = m.discover(config).at(0);
  EXPECT_TRUE(full.chosen && has(full.reason, "; only 0 of that is free now")) << full.reason;
  EXPECT_TRUE(full.remedy.starts_with("a smaller quota in [tier.t0]; remove what others")) << full.remedy;
}

TEST(Discovery, ATierThatUsersCannotWriteIsForJobsOfSlurm) {
  Node m;
  m.nvme_at(0, "/scratch", 0755);
  TierConfig plain = tier("t", "/scratch"), memory = plain;
  memory.kind = TierConfig::Kind::kTmpfs;
  const Candidate a = m.discover({plain})[0], b = m.discover({memory})[0];
  EXPECT_TRUE(a.chosen && a.reason.ends_with("; for jobs of Slurm only: users cannot write to /scratch"))
      << a.reason;
  EXPECT_TRUE(b.chosen && !has(b.reason, "users")) << b.reason;
  EXPECT_EQ(a.remedy + b.remedy, "");
}

// hwloc's view of real machines; discovery asks it where disks are.
TEST(Discovery, RecordedMachines) {
  const char* tree = ::getenv("MONARCH_SRCDIR");
  const std::string machines = std::string(tree ? tree : ".") + "/tests/fixtures/machines";
  int seen = 0;
  for (const fs::directory_entry& e : fs::directory_iterator(machines)) {
    if (e.path().extension() != ".xz") continue;
    SCOPED_TRACE(e.path());
    Scratch scratch;
    ASSERT_EQ(
        std::system(("tar -xJf '" + e.path().string() + "' --no-same-owner -C " + scratch.path()).c_str()),
        0);
    ++seen;
    // The mount points are the test's own: one for each partition of a disk.
    std::string table = "1 0 8:2 / / rw - ext4 /dev/sda2 rw\n";
    int id = 2;
    for (const auto& [point, number] :
         {std::pair("/sda3", "8:3"), std::pair("/nvme", "259:0"), std::pair("/pmem", "259:2")}) {
      table += std::to_string(id++) + " 1 " + number + " / " + point + " rw - xfs /dev/x rw\n";
      ASSERT_EQ(::mkdir((scratch / point).c_str(), 0755), 0);
      ASSERT_EQ(::chmod((scratch / point).c_str(), 01777), 0);
    }
    ::chmod(scratch.path().c_str(), 0755);
    scratch.file("proc/self/mountinfo", table);
    ::setenv("HWLOC_FSROOT", scratch.path().c_str(), 1);
    ::setenv("HWLOC_COMPONENTS", "linux,stop", 1);
    const Result<std::vector<Candidate>> found = discover({scratch.path(), "", ::geteuid()});
    ::unsetenv("HWLOC_FSROOT");
    ::unsetenv("HWLOC_COMPONENTS");
    ASSERT_TRUE(found.ok()) << found.error().text;
    EXPECT_TRUE(at(*found, "/sda3").chosen) << at(*found, "/sda3").reason;
    EXPECT_EQ(at(*found, "/sda3").medium, Medium::kHdd);
    EXPECT_EQ(at(*found, "/sda3").disks, std::vector<std::string>{"sda"});
    if (!fs::exists(scratch / "sys/class/block/nvme0n1")) {
      expect_refused(at(*found, "/nvme"), "does not tell which disks");
      continue;
    }
    expect_refused(at(*found, "/nvme"), "259:0 is that of several devices: nvme0n1, pmem0.1");
    EXPECT_TRUE(at(*found, "/pmem").chosen) << at(*found, "/pmem").reason;
    EXPECT_EQ(at(*found, "/pmem").medium, Medium::kNvme);
    EXPECT_EQ(at(*found, "/pmem").numa_node, 0);
  }
  EXPECT_EQ(seen, 2) << machines;
}

// ---- locality

// An NVMe disk on each socket; a tier is on `point`.
std::string near_tiers_on(const std::vector<std::string>& points, bool lists = true) {
  Machine m(hpc_node());
  m.plain_root();
  for (const char* n : {"0", "1"}) {
    const std::string disk = std::string("nvme") + n + "n1", device = std::string("259:") + n;
    m.nvme(disk, device);
    m.mount(device, *n == '0' ? "/first" : "/second", "xfs", "/dev/" + disk);
  }
  for (const char* point : {"/first", "/second", "/elsewhere"}) m.dir(point, 01777);
  if (lists) {
    m.file("sys/devices/system/node/node0/cpulist", "0-1\n");
    m.file("sys/devices/system/node/node1/cpulist", "2-3,6\n");
  }
  std::vector<TierConfig> tiers(points.size());
  for (size_t i = 0; i < points.size(); ++i) tiers[i].path = points[i];
  return processors_near(tiers, m.sources());
}

TEST(Locality, ThreadsBelongNearTheDisksOfTheTiers) {
  EXPECT_EQ(near_tiers_on({"/first"}), "0-1");
  EXPECT_EQ(near_tiers_on({"/second"}), "2-3,6");
  EXPECT_EQ(near_tiers_on({"/second", "/first"}), "0-1,2-3,6");
  EXPECT_EQ(near_tiers_on({"/elsewhere"}), "") << "on a disk of which no node is known";
  EXPECT_EQ(near_tiers_on({"/first"}, false), "") << "the kernel lists no processors";
}

std::vector<int> allowed() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(::sched_getaffinity(0, sizeof set, &set), 0);
  std::vector<int> list;
  for (int i = 0; i < CPU_SETSIZE; ++i)
    if (CPU_ISSET(i, &set)) list.push_back(i);
  return list;
}

TEST(Locality, AThreadMovesToThoseOfTheProcessorsThatItMayUse) {
  const std::vector<int> before = allowed();
  ASSERT_FALSE(before.empty());
  EXPECT_FALSE(run_on("near the disk").ok());
  std::thread([&] {
    const int last = before.back();
    EXPECT_TRUE(run_on(std::to_string(last)).ok());
    EXPECT_EQ(allowed(), std::vector<int>{last});
    if (before.size() == 1) return;
    EXPECT_TRUE(run_on(std::to_string(before.front())).ok());
    EXPECT_EQ(allowed(), std::vector<int>{last}) << "none that it may use: it stays";
  }).join();
  EXPECT_EQ(allowed(), before) << "only that thread";
}

TEST(Locality, NodesThatAreShortOfMemoryAreLeftAlone) {
  constexpr uint64_t kGiB = uint64_t{1} << 30;
  constexpr int kSelf = 10, kOtherSocket = 21, kFar = 31;
  const NodeMemory some{10 * kGiB, 64 * kGiB, kSelf}, little{2 * kGiB, 64 * kGiB, kSelf}, none{0, 0, kSelf};
  EXPECT_EQ(nodes_with_memory({some, little, none}), std::vector<int>{0});
  EXPECT_EQ(nodes_with_memory({some, some}), (std::vector<int>{0, 1}));
  EXPECT_TRUE(nodes_with_memory({little, none}).empty());
  EXPECT_TRUE(nodes_with_memory({}).empty());
  const NodeMemory next{60 * kGiB, 64 * kGiB, kOtherSocket}, last{60 * kGiB, 64 * kGiB, kFar};
  EXPECT_EQ(nodes_with_memory({last, next, some}), std::vector<int>{2}) << "the nearest that has any";
  EXPECT_EQ(nodes_with_memory({last, next, little}), std::vector<int>{1});
}

int policy_of_this_thread() {
  int mode = -1;
  return ::get_mempolicy(&mode, nullptr, 0, nullptr, 0) == 0 ? mode : MPOL_DEFAULT;  // a kernel without NUMA
}

TEST(Locality, TheMemoryPolicyLastsAsLongAsTheObject) {
  const int before = policy_of_this_thread();
  const bool may_choose = ::set_mempolicy(MPOL_DEFAULT, nullptr, 0) == 0;
  {
    const MemoryPolicy spread(true);
    // A container may forbid the call.
    const bool several = std::filesystem::exists("/sys/devices/system/node/node1") && may_choose;
    EXPECT_EQ(policy_of_this_thread(), several ? MPOL_INTERLEAVE : before);
  }
  EXPECT_EQ(policy_of_this_thread(), before);
  const MemoryPolicy none(false);
  EXPECT_EQ(policy_of_this_thread(), before);
}

}  // namespace
}  // namespace monarch
