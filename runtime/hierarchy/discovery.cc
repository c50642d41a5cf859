// SPDX-License-Identifier: Apache-2.0
#include "runtime/hierarchy/discovery.h"

#include <hwloc.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <set>

#include "runtime/base/memory.h"
#include "runtime/base/mountinfo.h"
#include "runtime/base/paths.h"
#include "runtime/base/size.h"
#include "runtime/layout/catalog_layout.h"

namespace monarch {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxDepth = 16;  // of devices upon devices
constexpr int kMaxLinks = 40;  // symbolic links in a path, as the kernel's limit
constexpr size_t kMaxMounts = 100000;
// Where users can write on a file system that is not theirs alone, in the order of preference.
constexpr const char* kSharedDirectories[] = {"/scratch", "/local", "/tmp", "/var/tmp"};

bool starts_with(std::string_view text, std::string_view start) {
  return text.substr(0, start.size()) == start;
}
bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

std::string first_line(const fs::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

// ---- file systems

enum class Kind {
  kLocal,  // on disks of the node, with users and permissions
  kMemory,
  kForeign,  // local, but nothing for a tier
  kSystem,   // the kernel's own, and images that nobody writes; not worth a line
  kRemote,   // a network file system, or what may be one: never touched
};

Kind kind_of(const std::string& fstype) {
  static const std::set<std::string> local = {"ext2", "ext3", "ext4", "xfs",     "btrfs",
                                              "f2fs", "jfs",  "zfs",  "bcachefs"};
  static const std::set<std::string> foreign = {"overlay", "vfat",    "msdos", "exfat",   "ntfs",
                                                "ntfs3",   "fuseblk", "udf",   "hfsplus", "reiserfs"};
  static const std::set<std::string> system = {
      "autofs",     "binfmt_misc", "bpf",      "cgroup",   "cgroup2", "configfs", "cpuset",    "cramfs",
      "debugfs",    "devpts",      "devtmpfs", "efivarfs", "erofs",   "fusectl",  "hugetlbfs", "iso9660",
      "mqueue",     "nfsd",        "nsfs",     "proc",     "pstore",  "resctrl",  "rootfs",    "rpc_pipefs",
      "securityfs", "selinuxfs",   "squashfs", "sysfs",    "tracefs"};
  if (local.count(fstype)) return Kind::kLocal;
  if (fstype == "tmpfs" || fstype == "ramfs") return Kind::kMemory;
  if (foreign.count(fstype)) return Kind::kForeign;
  if (system.count(fstype)) return Kind::kSystem;
  return Kind::kRemote;
}

std::string why_not_touched(const std::string& fstype) {
  static const std::set<std::string> network = {
      "9p",  "afs",  "beegfs", "ceph",     "cifs",  "coda",  "gfs2", "gpfs",  "lustre",   "ncpfs",
      "nfs", "nfs4", "ocfs2",  "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "virtiofs", "wekafs"};
  if (network.count(fstype)) return "network file system";
  if (fstype == "autofs") return "an automounter";
  if (starts_with(fstype, "fuse")) return "FUSE: may be a network file system";
  return "file system type " + fstype + " is not known to be local";
}

struct Mount {
  int64_t id = 0, parent = 0;
  std::string device_number, root, point, fstype, source;
  bool read_only = false;
  Kind kind = Kind::kSystem;
};

bool parse_mount(const std::string& line, Mount* m) {
  MountLine l;
  if (!parse_mount_line(line, &l)) return false;
  const bool read_only = has_mount_option(l.options, "ro") || has_mount_option(l.super_options, "ro");
  const Kind kind = kind_of(l.type);
  *m = {l.id, l.parent, l.device, l.root, l.point, l.type, l.source, read_only, kind};
  return true;
}

// The mounts, and which of them a path meets; by text alone, nothing is touched.
class MountTable {
 public:
  static Result<MountTable> read(const std::string& file) {
    std::ifstream in(file);
    if (!in) return errno_error("read " + file);
    MountTable table;
    const auto bad = [&](const std::string& what) { return bad_input(file + ": " + what); };
    for (std::string line; std::getline(in, line);) {
      Mount m;
      if (!parse_mount(line, &m)) return bad("not a line of a mount table: " + line);
      if (table.mounts_.size() == kMaxMounts)
        return bad("more than " + std::to_string(kMaxMounts) + " mounts");
      table.mounts_.push_back(std::move(m));
    }
    if (table.mounts_.empty()) return Error{ENODATA, file + ": no mounts"};
    std::set<int64_t> ids;
    for (const Mount& m : table.mounts_) ids.insert(m.id);
    for (size_t i = 0; i < table.mounts_.size(); ++i) {
      const Mount& m = table.mounts_[i];
      table.children_[m.parent != m.id && ids.count(m.parent) ? m.parent : kNone].push_back(i);
    }
    return table;
  }

  const std::vector<Mount>& mounts() const { return mounts_; }

  // The mounts that a path without symbolic links goes through, the one that it is on last.
  std::vector<const Mount*> way(const std::string& path) const {
    std::vector<const Mount*> way;
    for (int64_t at = kNone;;) {
      const auto children = children_.find(at);
      const Mount* next = nullptr;  // the first mount point that is met; of two at one place the later
      if (children != children_.end())
        for (const size_t i : children->second)
          if (is_below(path, mounts_[i].point) && (!next || mounts_[i].point.size() <= next->point.size()))
            next = &mounts_[i];
      if (!next || way.size() > mounts_.size()) return way;
      way.push_back(next);
      at = next->id;
    }
  }
  const Mount* of(const std::string& path) const {
    const std::vector<const Mount*> mounts = way(path);
    return mounts.empty() ? nullptr : mounts.back();
  }

  // The mount that keeps us from touching a path: a network file system on the way to it, or an automounter
  // at its end, which may mount one. The root does not count: if that does not answer, nothing on the node
  // does.
  const Mount* obstacle(const std::string& path) const {
    const std::vector<const Mount*> mounts = way(path);
    for (const Mount* m : mounts)
      if (m->point != "/" && m->kind == Kind::kRemote) return m;
    return !mounts.empty() && mounts.back()->fstype == "autofs" ? mounts.back() : nullptr;
  }

 private:
  static constexpr int64_t kNone = INT_MIN;  // parent of those that hang on nothing we see
  std::vector<Mount> mounts_;
  std::map<int64_t, std::vector<size_t>> children_;
};

// ---- hwloc

struct HwlocDisk {
  std::string name, type;
  uint64_t size = 0;
  int numa_node = -1;
};
using HwlocDisks = std::multimap<std::string, HwlocDisk>;  // by "major:minor"

// Empty, without an error, if this machine's own topology cannot be had: sysfs tells most of it too.
Result<HwlocDisks> hwloc_disks(const std::string& xml) {
  hwloc_topology_t raw;
  if (hwloc_topology_init(&raw) != 0) return HwlocDisks();
  const std::unique_ptr<hwloc_topology, void (*)(hwloc_topology_t)> topology(raw, &hwloc_topology_destroy);
  if (!xml.empty() && hwloc_topology_set_xml(raw, xml.c_str()) != 0) return errno_error("hwloc: read " + xml);
  // These would wake up the GPUs, or walk over all CPUs, which takes seconds. Without "pci", which leaks, the
  // kernel's own tables tell of PCI devices.
  for (const char* component : {"cuda", "nvml", "opencl", "gl", "rsmi", "levelzero", "x86", "pci"})
    (void)hwloc_topology_set_components(raw, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  hwloc_topology_set_cache_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_icache_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE);
  hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
  if (hwloc_topology_load(raw) != 0)
    return xml.empty() ? Result<HwlocDisks>(HwlocDisks()) : errno_error("hwloc: load " + xml);
  HwlocDisks disks;
  for (hwloc_obj_t o = nullptr; (o = hwloc_get_next_osdev(raw, o));) {
    if (o->attr->osdev.type != HWLOC_OBJ_OSDEV_BLOCK) continue;
    const char* number = hwloc_obj_get_info_by_name(o, "LinuxDeviceID");
    if (!number || !o->name || starts_with(o->name, "dax")) continue;  // dax: a character device
    HwlocDisk disk{o->name, o->subtype ? o->subtype : "", 0, -1};
    if (const char* type = hwloc_obj_get_info_by_name(o, "Type")) disk.type = type;
    if (const char* kib = hwloc_obj_get_info_by_name(o, "Size"))
      disk.size = std::strtoull(kib, nullptr, 10) * 1024;
    const hwloc_const_nodeset_t nodes = hwloc_get_non_io_ancestor_obj(raw, o)->nodeset;
    if (hwloc_bitmap_weight(nodes) == 1) disk.numa_node = hwloc_bitmap_first(nodes);
    disks.emplace(number, std::move(disk));
  }
  return disks;
}

// ---- block devices

struct Disk {
  std::string name, number, transport;
  std::optional<Medium> medium;
  uint64_t size = 0;
  int numa_node = -1;
  std::string refusal;  // why it is no disk for a tier; empty: it is
  std::string note;
};

// How sysfs shows what a disk hangs on.
struct Bus {
  const char* mark;  // in the disk's path below /sys/devices
  const char* transport;
};
constexpr Bus kBuses[] = {{"/usb", "usb"},         {"/session", "iscsi"}, {"/rport-", "fc"},
                          {"/end_device-", "sas"}, {"/ata", "sata"},      {"/virtio", "virtio"},
                          {"/mmc_host/", "mmc"}};

// nvme, or nvme-tcp and the like. With multipath the disk belongs to a subsystem that has controllers.
std::string nvme_transport(const fs::path& dir) {
  std::vector<fs::path> places = {dir.parent_path(), dir.parent_path().parent_path(), dir / "device"};
  std::error_code ec;
  for (const fs::directory_entry& e : fs::directory_iterator(dir.parent_path(), ec))
    if (starts_with(e.path().filename().string(), "nvme")) places.push_back(e.path());
  for (const fs::path& place : places)
    if (const std::string name = first_line(place / "transport"); !name.empty() && name != "pcie")
      return "nvme-" + name;
  return "nvme";
}

std::string transport_of(const std::string& name, const fs::path& dir, const std::string& place) {
  if (starts_with(name, "nvme")) return nvme_transport(dir);
  if (starts_with(name, "pmem")) return "pmem";
  for (const Bus& bus : kBuses)
    if (contains(place, bus.mark)) return bus.transport;
  return "";
}

bool over_network(const std::string& transport) {
  return starts_with(transport, "nvme-") || transport == "iscsi" || transport == "fc";
}

// sysfs and hwloc: the disks below a device.
class BlockDevices {
 public:
  BlockDevices(std::string root, const MountTable& mounts, HwlocDisks hwloc)
      : root_(std::move(root)), mounts_(mounts), hwloc_(std::move(hwloc)) {
    std::error_code ec;
    for (const fs::directory_entry& e : fs::directory_iterator(root_ + "/sys/class/block", ec)) {
      const fs::path dir = fs::canonical(e.path(), ec);
      if (const std::string number = first_line(dir / "dev"); !ec && !number.empty())
        devices_.emplace(number, dir);
    }
  }

  const HwlocDisks& hwloc() const { return hwloc_; }

  // The disks below a mounted file system. An error says why they cannot be told.
  Result<std::vector<Disk>> disks_of(const Mount& m) const {
    std::map<std::string, Disk> found;
    MONARCH_TRY(add_mount(m, 0, &found));
    std::vector<Disk> disks;
    disks.reserve(found.size());
    for (auto& [name, disk] : found) disks.push_back(std::move(disk));
    return disks;
  }

  // What hwloc found but no mount uses.
  Disk describe_unused(const std::string& number, const HwlocDisk& known) const {
    Disk disk;
    if (Status s = unambiguous(number, known.name); !s.ok()) disk.refusal = s.error().text;
    const auto device = devices_.find(number);
    if (disk.refusal.empty() && device != devices_.end()) return describe(number, device->second);
    disk.name = known.name;
    disk.number = number;
    disk.size = known.size;
    disk.numa_node = known.numa_node;
    if (starts_with(known.name, "nvme") || known.type == "NVMe") disk.medium = Medium::kNvme;
    return disk;
  }

 private:
  // A number that two devices bear tells nothing about either.
  Status unambiguous(const std::string& number, const std::string& name) const {
    std::set<std::string> names = {name};
    for (auto [i, end] = devices_.equal_range(number); i != end; ++i) names.insert(i->second.filename());
    for (auto [i, end] = hwloc_.equal_range(number); i != end; ++i) names.insert(i->second.name);
    if (names.size() == 1) return {};
    std::string list;
    for (const std::string& n : names) list += (list.empty() ? "" : ", ") + n;
    return bad_input("device number " + number + " is that of several devices: " + list);
  }

  Status add_mount(const Mount& m, int depth, std::map<std::string, Disk>* disks) const {
    std::string number = m.device_number;
    struct stat st;
    // btrfs has no device number of its own.
    if (starts_with(number, "0:") && starts_with(m.source, "/dev/") &&
        ::stat((root_ + m.source).c_str(), &st) == 0 && S_ISBLK(st.st_mode))
      number = std::to_string(major(st.st_rdev)) + ":" + std::to_string(minor(st.st_rdev));
    const auto device = devices_.find(number);
    if (device == devices_.end()) return bad_input("sysfs does not tell which disks it is on");
    MONARCH_TRY(add_device(device->second, depth, disks));
    if (m.fstype != "btrfs") return {};
    for (const fs::path& other : btrfs_siblings(device->second.filename()))
      MONARCH_TRY(add_device(other, depth, disks));
    return {};
  }

  // The other devices of the btrfs file system that is on the device `name`.
  std::vector<fs::path> btrfs_siblings(const std::string& name) const {
    std::error_code ec;
    for (const fs::directory_entry& e : fs::directory_iterator(root_ + "/sys/fs/btrfs", ec)) {
      if (!fs::exists(e.path() / "devices" / name, ec)) continue;
      std::vector<fs::path> all;
      for (const fs::directory_entry& device : fs::directory_iterator(e.path() / "devices", ec))
        all.push_back(fs::canonical(device.path(), ec));
      return all;
    }
    return {};
  }

  // The whole disks below the device with this directory in sysfs.
  Status add_device(const fs::path& dir, int depth, std::map<std::string, Disk>* disks) const {
    if (depth > kMaxDepth) return bad_input("too many devices upon devices");
    std::error_code ec;
    const std::string number = first_line(dir / "dev");
    MONARCH_TRY(unambiguous(number, dir.filename()));
    if (fs::exists(dir / "partition", ec)) return add_device(dir.parent_path(), depth + 1, disks);
    bool has_slaves = false;
    for (const fs::directory_entry& slave : fs::directory_iterator(dir / "slaves", ec)) {
      has_slaves = true;
      const fs::path below = fs::canonical(slave.path(), ec);
      if (ec) return bad_input("sysfs does not tell what " + dir.filename().string() + " is on");
      MONARCH_TRY(add_device(below, depth + 1, disks));
    }
    if (has_slaves) return {};
    if (const std::string file = first_line(dir / "loop/backing_file"); !file.empty())
      return add_loop(file, depth, disks);
    disks->emplace(dir.filename(), describe(number, dir));
    return {};
  }

  Status add_loop(const std::string& file, int depth, std::map<std::string, Disk>* disks) const {
    const Mount* m = mounts_.of(file);
    if (const Mount* far = mounts_.obstacle(file)) m = far;
    if (!m || m->kind != Kind::kLocal)
      return bad_input("it is in the file " + file + (m ? " on " + m->fstype : ""));
    return add_mount(*m, depth + 1, disks);
  }

  Disk describe(const std::string& number, const fs::path& dir) const {
    Disk disk;
    disk.name = dir.filename();
    disk.number = number;
    const std::string place = dir.string().substr(below_sysfs(dir));
    disk.transport = transport_of(disk.name, dir, place);
    disk.size = std::strtoull(first_line(dir / "size").c_str(), nullptr, 10) * 512;
    std::string type;
    if (const auto known = hwloc_.find(number); known != hwloc_.end()) {
      type = known->second.type;
      if (known->second.size > 0) disk.size = known->second.size;
      disk.numa_node = known->second.numa_node;
    }
    if (disk.numa_node < 0) disk.numa_node = sysfs_node(dir);
    set_medium(dir, type, &disk);
    if (first_line(dir / "removable") == "1" || disk.transport == "usb")
      disk.refusal = "a removable disk";
    else if (disk.transport == "mmc")
      disk.refusal = "a memory card";
    else if (over_network(disk.transport))
      disk.refusal = "a disk of the network (" + disk.transport + ")";
    else if (disk.transport.empty() && contains(place, "/devices/virtual/"))
      disk.refusal = "sysfs does not tell what " + disk.name + " is on";
    else if (!disk.medium)
      disk.refusal = "sysfs does not tell the medium of " + disk.name;
    return disk;
  }

  static void set_medium(const fs::path& dir, const std::string& hwloc_type, Disk* disk) {
    const std::string rotational = first_line(dir / "queue/rotational");
    if (starts_with(disk->transport, "nvme") || disk->transport == "pmem" || hwloc_type == "NVMe") {
      disk->medium = Medium::kNvme;
    } else if (rotational == "0") {
      disk->medium = Medium::kSsd;
    } else if (rotational == "1") {
      disk->medium = Medium::kHdd;
      if (disk->transport == "virtio")
        disk->note = "virtual disks (virtio) say they rotate; if not, write a [tier.NAME] with its medium";
    }
  }

  // Where in a path of sysfs the part begins that tells about the device.
  static size_t below_sysfs(const fs::path& dir) {
    const size_t at = dir.string().rfind("/sys/devices/");
    return at == std::string::npos ? 0 : at + std::strlen("/sys");
  }

  static int sysfs_node(fs::path dir) {
    for (; below_sysfs(dir) > 0; dir = dir.parent_path())
      if (const std::string node = first_line(dir / "numa_node"); !node.empty() && node[0] != '-')
        return std::atoi(node.c_str());
    return -1;
  }

  const std::string root_;
  const MountTable& mounts_;
  const HwlocDisks hwloc_;
  std::multimap<std::string, fs::path> devices_;  // "major:minor" -> directory in sysfs
};

// ---- directories

// The path with symbolic links followed by text, so that each step is known to be local before it is taken.
Result<std::string> local_path(const Sources& sources, const MountTable& mounts, std::string path) {
  for (int links = 0; links <= kMaxLinks; ++links) {
    if (const Mount* far = mounts.obstacle(path))
      return Error{EREMOTE, path + " is on " + far->fstype + ": " + why_not_touched(far->fstype)};
    bool again = false;
    for (size_t end = 0; end != std::string::npos && !again;) {
      end = path.find('/', end + 1);
      const std::string part = path.substr(0, end);
      struct stat st;
      if (::lstat((sources.root + part).c_str(), &st) != 0) return errno_error(part);
      if (!S_ISLNK(st.st_mode)) continue;
      std::error_code ec;
      const fs::path to = fs::read_symlink(sources.root + part, ec);
      if (ec) return Error{ec.value(), part + ": " + ec.message()};
      const fs::path rest = end == std::string::npos ? "" : path.substr(end + 1);
      Result<std::string> clean =
          absolute_path((fs::path(part).parent_path() / to / rest).lexically_normal().string());
      if (!clean.ok()) return clean.error();
      path = clean.take();
      again = true;
    }
    if (!again) return path;
  }
  return Error{ELOOP, path + ": too many symbolic links"};
}

constexpr char kCannotEnter[] = "users cannot enter ";

// Whether each user can make files in the directory, and none can put another in its place.
// EACCES: users cannot enter it, or one above it; ENXIO: nor can a group. EROFS: they cannot write to it.
Status shared_by_users(const Sources& sources, const std::string& path) {
  const auto stat_of = [&](const std::string& part, struct stat* st) -> Status {
    if (::lstat((sources.root + part).c_str(), st) != 0) return errno_error(part);
    if (S_ISLNK(st->st_mode)) return Error{ELOOP, part + " is a symbolic link"};
    if (!S_ISDIR(st->st_mode)) return Error{ENOTDIR, part + " is not a directory"};
    if (st->st_uid != 0 && st->st_uid != sources.owner)
      return Error{EPERM, part + " belongs to uid " + std::to_string(st->st_uid) + ", not to root"};
    if (!(st->st_mode & S_IXOTH)) return Error{st->st_mode & S_IXGRP ? EACCES : ENXIO, kCannotEnter + part};
    return {};
  };
  struct stat st;
  for (size_t end = path.find('/', 1); end != std::string::npos; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    MONARCH_TRY(stat_of(part, &st));
    if ((st.st_mode & (S_IWGRP | S_IWOTH)) && !(st.st_mode & S_ISVTX))
      return Error{EPERM, part + " can be replaced: others than root can write above it"};
  }
  MONARCH_TRY(stat_of(path, &st));
  if (!(st.st_mode & S_IWOTH)) return Error{EROFS, "users cannot write to " + path};
  if (!(st.st_mode & S_ISVTX))
    return Error{EPERM, path + " is not sticky, so users can remove each other's files (chmod +t)"};
  return {};
}

bool has_control_characters(const std::string& text) {
  return std::any_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
}

// ---- candidates

class Discovery {
 public:
  Discovery(const Sources& sources, const MountTable& mounts, HwlocDisks hwloc)
      : sources_(sources), mounts_(mounts), devices_(sources.root, mounts, std::move(hwloc)) {
    if (const Mount* root = mounts.of("/")) root_device_ = root->device_number;
  }

  std::vector<Candidate> run(const std::vector<TierConfig>& configured) {
    std::vector<Candidate> found = mounted();
    choose(&found);
    for (Candidate& c : unmounted()) found.push_back(std::move(c));
    if (configured.empty()) return found;
    std::vector<Candidate> all;
    all.reserve(configured.size() + found.size());
    for (const TierConfig& t : configured) all.push_back(as_configured(t));
    for (Candidate& c : found) {
      if (std::any_of(configured.begin(), configured.end(),
                      [&](const TierConfig& t) { return t.path == c.path; }))
        continue;
      if (std::exchange(c.chosen, false)) c.reason = "not used: tiers are configured";
      all.push_back(std::move(c));
    }
    return all;
  }

 private:
  // All mounts that can be seen and are worth a line; `chosen` if nothing speaks against it.
  std::vector<Candidate> mounted() {
    std::vector<Candidate> found;
    for (const Mount& m : mounts_.mounts()) {
      if (!worth_a_line(m) || mounts_.of(m.point) != &m) continue;
      Candidate c = facts(m, m.point);
      const Status s =
          m.kind == Kind::kRemote ? Status(bad_input(why_not_touched(m.fstype))) : examine(m, &c);
      c.chosen = s.ok();
      if (!s.ok()) c.reason = s.error().text;
      found.push_back(std::move(c));
    }
    return found;
  }

  static bool worth_a_line(const Mount& m) {
    if (m.fstype == "overlay") return m.point == "/";  // the others are containers'
    if (m.kind != Kind::kMemory) return m.kind != Kind::kSystem;
    for (const char* top : {"/run", "/sys", "/proc", "/var/run", "/var/lock"})
      if (is_below(m.point, top)) return false;
    return !is_below(m.point, "/dev") || m.point == "/dev/shm";
  }

  // What can be told of a mount without a judgement. Touches it only if it is local.
  Candidate facts(const Mount& m, const std::string& path) {
    Candidate c;
    c.path = path;
    c.mount_point = m.point;
    c.device = m.source;
    c.device_number = m.device_number;
    c.fstype = m.fstype;
    if (m.kind == Kind::kMemory) c.medium = Medium::kRam;
    if (m.kind == Kind::kLocal || m.kind == Kind::kForeign) add_disks(m, &c);
    if ((m.kind == Kind::kLocal || m.kind == Kind::kMemory) && !mounts_.obstacle(path)) add_space(path, &c);
    return c;
  }

  void add_space(const std::string& path, Candidate* c) const {
    struct statvfs fs;
    if (::statvfs((sources_.root + path).c_str(), &fs) != 0) return;
    c->size = uint64_t{fs.f_blocks} * fs.f_frsize;
    c->free = uint64_t{fs.f_bavail} * fs.f_frsize;
  }

  void add_disks(const Mount& m, Candidate* c) {
    const Result<std::vector<Disk>> disks = devices_.disks_of(m);
    if (!disks.ok()) {
      refusals_[m.device_number] = disks.error().text;
      return;
    }
    std::set<std::string> transports;
    std::set<int> nodes;
    for (const Disk& d : *disks) {
      used_.insert(d.number);
      c->disks.push_back(d.name);
      transports.insert(d.transport);
      nodes.insert(d.numa_node);
      if (d.medium && (!c->medium || *d.medium > *c->medium)) c->medium = d.medium;
      if (!d.refusal.empty()) refusals_[m.device_number] = d.refusal;
      if (!d.note.empty()) notes_[m.device_number] = d.note;
    }
    for (const std::string& t : transports) c->transport += (c->transport.empty() ? "" : "+") + t;
    if (nodes.size() == 1) c->numa_node = *nodes.begin();
  }

  // Sets the tier's path, quota and free-space floor if the mount can be one.
  Status examine(const Mount& m, Candidate* c) {
    if (m.kind == Kind::kMemory)
      return bad_input("memory is the job's; to use it, write a [tier.NAME] with medium = ram");
    if (m.kind == Kind::kForeign) return bad_input(m.fstype + " is not a file system for tiers");
    for (const char* top : {"/boot", "/efi"})
      if (is_below(m.point, top)) return bad_input("the system's own");
    if (m.read_only) return bad_input("mounted read-only");
    if (const Mount* far = mounts_.obstacle(m.point))
      return bad_input("below " + far->point + ", " + why_not_touched(far->fstype));
    if (const auto refusal = refusals_.find(m.device_number); refusal != refusals_.end())
      return bad_input(refusal->second);
    for (const Mount& other : mounts_.mounts())
      if (other.device_number == m.device_number && other.fstype != m.fstype)
        return bad_input("device number " + m.device_number + " is mounted as " + m.fstype + " and as " +
                         other.fstype);
    MONARCH_TRY(find_directory(m, c));
    if (c->size == 0) return bad_input("its size is not known");
    // A file system that users have for themselves is used to the full; on one that others need too, such
    // as the root, most is left to them.
    const bool shared = m.device_number == root_device_ || c->path != m.point || m.root != "/";
    c->tier.min_free = Quota{0, shared ? 10.0 : 5.0};
    c->tier.quota = shared ? Quota{c->free / 2, -1} : Quota{0, 80};
    if (c->free <= c->tier.min_free.of(c->size))
      return bad_input("full: " + format_size(c->free) + " free of " + format_size(c->size));
    return {};
  }

  Status find_directory(const Mount& m, Candidate* c) {
    if (has_control_characters(m.point)) return bad_input("its path has control characters");
    Status own = shared_by_users(sources_, m.point);
    if (own.ok()) return {};
    std::string list;
    for (const std::string dir : kSharedDirectories) {
      if (dir == m.point || mounts_.of(dir) != &m) continue;
      if (!shared_by_users(sources_, dir).ok()) {
        list += " " + dir;
        continue;
      }
      c->path = dir;
      return {};
    }
    if (list.empty()) return own;
    return Error{EACCES, own.error().text + ", nor is there a sticky, world-writable one of" + list};
  }

  // Of several mounts of one file system takes the best, orders the tiers, names them.
  void choose(std::vector<Candidate>* found) {
    // A whole file system before a part of it that is bound elsewhere.
    std::stable_sort(found->begin(), found->end(), [&](const Candidate& a, const Candidate& b) {
      if (a.chosen != b.chosen) return a.chosen;
      return a.chosen && is_whole(a) && !is_whole(b);
    });
    std::map<std::string, std::string> taken;  // device number -> path
    for (Candidate& c : *found) {
      if (kind_of(c.fstype) != Kind::kLocal) continue;
      if (c.chosen && taken.emplace(c.device_number, c.path).second) continue;
      if (!taken.count(c.device_number)) continue;
      c.chosen = false;
      c.reason = "same file system as " + taken[c.device_number];
    }
    std::stable_sort(found->begin(), found->end(), [](const Candidate& a, const Candidate& b) {
      if (a.chosen != b.chosen) return a.chosen;
      if (!a.chosen) return false;
      return a.medium != b.medium ? *a.medium < *b.medium : a.size > b.size;
    });
    std::map<Medium, int> count;
    uint32_t tiers = 0;
    for (Candidate& c : *found) {
      if (!c.chosen) break;
      if (++tiers > kMaxTiers) {
        c.chosen = false;
        c.reason = "more than " + std::to_string(kMaxTiers) + " tiers";
        continue;
      }
      const int n = ++count[*c.medium];
      c.tier.name = name_of(*c.medium) + (n > 1 ? std::to_string(n) : std::string());
      c.tier.path = c.path;
      c.tier.medium = *c.medium;
      c.reason = "tier " + c.tier.name + ", quota " + format_size(c.tier.quota.of(c.size)) +
                 (c.tier.quota.percent < 0 ? ", half of what is free" : ", 80% of its size");
      if (const auto note = notes_.find(c.device_number); note != notes_.end())
        c.reason += "; " + note->second;
    }
  }

  bool is_whole(const Candidate& c) const {
    const Mount* m = mounts_.of(c.mount_point);
    return m && m->root == "/";
  }

  std::vector<Candidate> unmounted() {
    std::vector<Candidate> found;
    for (const auto& [number, known] : devices_.hwloc()) {
      if (used_.count(number) || starts_with(known.name, "sr") || starts_with(known.name, "fd")) continue;
      const Disk disk = devices_.describe_unused(number, known);
      Candidate c;
      c.device = known.name;
      c.device_number = number;
      c.disks = {known.name};
      c.transport = disk.transport;
      c.medium = disk.medium;
      c.size = disk.size;
      c.numa_node = disk.numa_node;
      c.reason = disk.refusal.empty()
                     ? "nothing is mounted from it, and Monarch neither formats nor mounts a disk"
                     : disk.refusal;
      found.push_back(std::move(c));
    }
    return found;
  }

  // A tier that the admin named: all that is asked is that it is there, writable and not a network's.
  Candidate as_configured(const TierConfig& tier) {
    const Result<std::string> path = local_path(sources_, mounts_, tier.path);
    const Mount* m = mounts_.of(path.ok() ? *path : tier.path);
    Candidate c;
    if (m) c = facts(*m, m->point);
    c.path = tier.path;
    c.medium = tier.medium;
    c.tier = tier;
    Status usable = path.ok() ? can_be_used(*path, m) : Status(path.error());
    const Status shared = usable.ok() ? shared_by_users(sources_, *path) : usable;
    if (usable.ok() && !shared.ok() && shared.error().code == ENXIO) usable = shared;
    c.chosen = usable.ok();
    if (!usable.ok()) {
      c.reason = "configured, but " + usable.error().text;
      c.remedy = remedy_of(usable.error(), tier);
      return c;
    }
    add_space(*path, &c);
    const uint64_t all = tier.kind == TierConfig::Kind::kTmpfs ? total_memory() : c.size;
    c.reason = "configured, quota " + format_size(tier.quota.of(all));
    const auto doubt = [&c](const std::string& why, const std::string& remedy) {
      c.reason += "; " + why;
      c.remedy += (c.remedy.empty() ? "" : "; ") + remedy;
    };
    if (all != 0 && tier.quota.of(all) > all)
      doubt("that is more than " + format_size(all) + ", which is all there is",
            "a smaller quota in [tier." + tier.name + "]");
    const bool is_disk = c.size != 0 && tier.kind == TierConfig::Kind::kDirectory;
    const uint64_t left = sub_sat(c.free, tier.min_free.of(c.size));
    if (is_disk && tier.min_free.of(c.size) >= c.size)
      doubt("min_free leaves nothing for jobs",
            "a smaller min_free in [tier." + tier.name + "], or more room");
    else if (is_disk && left < tier.quota.of(c.size) / 16)
      doubt(
          "only " + format_size(left) + " of that is free now, by files of others or of running jobs",
          "remove what others have left on " + c.mount_point + "; 'monarchctl status' shows what jobs have");
    if (!shared.ok()) {
      const bool is_roots = shared.error().code == EROFS;
      if (is_roots && tier.kind == TierConfig::Kind::kDirectory)
        c.reason += "; for jobs of Slurm only: " + shared.error().text;
      else if (!is_roots)
        doubt(shared.error().text, shared.error().code == EPERM ? "let only root write to that directory"
                                                                : remedy_of(shared.error(), tier));
    }
    return c;
  }

  // Empty: the error has one.
  static std::string remedy_of(const Error& error, const TierConfig& tier) {
    if (error.text.starts_with(kCannotEnter))
      return "chmod o+x " + error.text.substr(sizeof kCannotEnter - 1);
    switch (error.code) {
      case EPERM:
        return "";
      case ENOENT:
        return "install -d -m " + std::string(tier.kind == TierConfig::Kind::kTmpfs ? "755" : "1777") +
               " -o root " + tier.path;
      case EROFS:
        return "mount it read-write, or name another directory in [tier." + tier.name + "]";
      default:
        return "name a directory on a local disk in [tier." + tier.name + "]";
    }
  }

  Status can_be_used(const std::string& path, const Mount* m) const {
    if (m && m->kind == Kind::kRemote)
      return Error{EREMOTE, path + " is on " + m->fstype + ": " + why_not_touched(m->fstype)};
    if (m && m->read_only) return Error{EROFS, m->point + " is mounted read-only"};
    struct stat st;
    if (::stat((sources_.root + path).c_str(), &st) != 0) return errno_error(path);
    if (!S_ISDIR(st.st_mode)) return Error{ENOTDIR, path + " is not a directory"};
    return safe_for_jobs(path, st, sources_.owner);
  }

  const Sources& sources_;
  const MountTable& mounts_;
  const BlockDevices devices_;
  std::string root_device_;
  std::set<std::string> used_;                   // numbers of the disks below mounts
  std::map<std::string, std::string> refusals_;  // by the mount's device number
  std::map<std::string, std::string> notes_;
};

}  // namespace

Result<std::vector<Candidate>> discover(const Sources& sources, const std::vector<TierConfig>& configured) {
  Result<MountTable> mounts = MountTable::read(sources.root + "/proc/self/mountinfo");
  if (!mounts.ok()) return mounts.error();
  Result<HwlocDisks> hwloc = hwloc_disks(sources.topology);
  if (!hwloc.ok()) return hwloc.error();
  return Discovery(sources, *mounts, hwloc.take()).run(configured);
}

Status safe_for_jobs(const std::string& path, const struct stat& st, uid_t owner) {
  if (st.st_uid != owner)
    return Error{EPERM, path + ": user " + std::to_string(st.st_uid) +
                            "'s, who can rename what is in it; run chown root " + path};
  if ((st.st_mode & (S_IWGRP | S_IWOTH)) && !(st.st_mode & S_ISVTX))
    return Error{EPERM, path + ": others can write it and rename what is in it; run chmod +t " + path};
  return {};
}

std::vector<TierConfig> chosen(const std::vector<Candidate>& candidates) {
  std::vector<TierConfig> tiers;
  for (const Candidate& c : candidates)
    if (c.chosen) tiers.push_back(c.tier);
  return tiers;
}

}  // namespace monarch
