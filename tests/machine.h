// SPDX-License-Identifier: Apache-2.0
// A made-up node for tests of what looks at the machine: a mount table, a tree of sysfs, directories.
#pragma once

#include "runtime/hierarchy/discovery.h"
#include "tests/scratch.h"

namespace monarch {

// The recorded topology of a node of two sockets, each with an NVMe disk.
inline std::string hpc_node() {
  const char* tree = ::getenv("MONARCH_SRCDIR");
  return std::string(tree ? tree : ".") + "/tests/fixtures/hpc-node.xml";
}

// A machine below a directory: what is put in here is all that discovery sees.
class Machine {
 public:
  // hwloc sees `topology`; by default a small machine without disks.
  explicit Machine(std::string topology = "") : topology_(std::move(topology)) {
    if (topology_.empty()) topology_ = at_.file("no-disks.xml", kNoDisks);
    for (const char* dir : {"proc/self", "sys/class/block", "sys/devices", "dev", "boot"}) at_.dir(dir);
    ::chmod(at_.path().c_str(), 0755);
  }

  std::string root() const { return at_.path(); }

  // A disk, e.g. disk("sda", "8:0", "pci0000:00/0000:00:17.0/ata1", "0").
  void disk(const std::string& name, const std::string& number, const std::string& place,
            const std::string& rotational) {
    device(name, number, "sys/devices/" + place + "/block/" + name);
    at_.file(dir_of(name) + "/queue/rotational", rotational + "\n");
    at_.file(dir_of(name) + "/removable", "0\n");
    at_.dir(dir_of(name) + "/slaves");
  }
  void nvme(const std::string& name, const std::string& number) {
    disk(name, number, "pci0000:20/0000:21:00.0/nvme/" + name.substr(0, 5), "0");
    at_.file(std::filesystem::path(dir_of(name)).parent_path() / "transport", "pcie\n");
  }
  void partition(const std::string& name, const std::string& number, const std::string& disk) {
    device(name, number, dir_of(disk) + "/" + name);
    at_.file(dir_of(name) + "/partition", "1\n");
  }
  // A device-mapper or RAID device on others.
  void stack(const std::string& name, const std::string& number, const std::vector<std::string>& below) {
    disk(name, number, "virtual", "0");
    for (const std::string& slave : below)
      std::filesystem::create_symlink(at_ / dir_of(slave), at_ / (dir_of(name) + "/slaves/" + slave));
  }
  void set(const std::string& device, const std::string& attribute, const std::string& value) {
    at_.file(dir_of(device) + "/" + attribute, value + "\n");
  }

  // A line of the mount table; returns the mount's id.
  int mount(const std::string& number, const std::string& point, const std::string& fstype,
            const std::string& source, const std::string& options = "rw,relatime",
            const std::string& root = "/", int parent = 1) {
    const int id = next_id_++;
    table_ += std::to_string(id) + " " + std::to_string(id == 1 ? 0 : parent) + " " + number + " " +
              escaped(root) + " " + escaped(point) + " " + options + " shared:1 - " + fstype + " " + source +
              " rw\n";
    return id;
  }
  // A directory with this mode; those above it are made 0755.
  void dir(const std::string& path, mode_t mode) {
    std::filesystem::path made = at_.path();
    for (const std::filesystem::path& part : std::filesystem::path(path).relative_path()) {
      made /= part;
      if (::mkdir(made.c_str(), 0755) == 0) ::chmod(made.c_str(), 0755);
    }
    ASSERT_EQ(::chmod(made.c_str(), mode), 0) << made;
  }
  // A root file system on its own disk, where users have no place.
  void plain_root() {
    disk("vdz", "252:0", "pci0000:00/0000:00:05.0/virtio2", "1");
    mount("252:0", "/", "ext4", "/dev/vdz");
  }

  Result<std::vector<Candidate>> try_discover(const std::vector<TierConfig>& configured = {}) {
    return monarch::discover(sources(), configured);
  }
  // Where the machine is; for what it has been told so far.
  Sources sources() {
    at_.file("proc/self/mountinfo", table_);
    return {at_.path(), topology_, ::geteuid()};
  }
  void file(const std::string& path, const std::string& text) { at_.file(path, text); }
  std::vector<Candidate> discover(const std::vector<TierConfig>& configured = {}) {
    Result<std::vector<Candidate>> found = try_discover(configured);
    if (!found.ok()) ADD_FAILURE() << found.error().text;
    return found.ok() ? found.take() : std::vector<Candidate>();
  }

 private:
  static constexpr char kNoDisks[] =
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<!DOCTYPE topology SYSTEM \"hwloc2.dtd\">\n<topology "
      "version=\"2.0\">\n"
      "  <object type=\"Machine\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" "
      "allowed_cpuset=\"0x1\" nodeset=\"0x1\" "
      "complete_nodeset=\"0x1\" allowed_nodeset=\"0x1\" gp_index=\"1\">\n"
      "    <object type=\"NUMANode\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\" "
      "complete_nodeset=\"0x1\" "
      "gp_index=\"2\" local_memory=\"1073741824\"/>\n"
      "    <object type=\"PU\" os_index=\"0\" cpuset=\"0x1\" complete_cpuset=\"0x1\" nodeset=\"0x1\" "
      "complete_nodeset=\"0x1\" gp_index=\"3\"/>\n"
      "  </object>\n</topology>\n";

  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text)
      out += c == ' ' ? "\\040" : c == '\n' ? "\\012" : c == '\\' ? "\\134" : std::string(1, c);
    return out;
  }
  void device(const std::string& name, const std::string& number, const std::string& dir) {
    at_.file(dir + "/dev", number + "\n");
    at_.file(dir + "/size", "2097152\n");
    std::filesystem::create_symlink(at_ / dir, at_ / ("sys/class/block/" + name));
  }
  std::string dir_of(const std::string& name) const {
    return std::filesystem::canonical(at_ / ("sys/class/block/" + name))
        .string()
        .substr(at_.path().size() + 1);
  }

  Scratch at_;
  std::string topology_, table_;
  int next_id_ = 1;
};

}  // namespace monarch
