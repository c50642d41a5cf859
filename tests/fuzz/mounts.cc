// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <filesystem>

#include "runtime/hierarchy/discovery.h"
#include "tests/fuzz/targets.h"

namespace monarch::fuzz {
namespace {

// A machine of one processor and no disk.
constexpr char kTopology[] =
    R"(<?xml version="1.0" encoding="UTF-8"?><!DOCTYPE topology SYSTEM "hwloc2.dtd"><topology version="2.0">
<object type="Machine" os_index="0" cpuset="0x1" complete_cpuset="0x1" allowed_cpuset="0x1" nodeset="0x1"
complete_nodeset="0x1" allowed_nodeset="0x1" gp_index="1"><object type="NUMANode" os_index="0" cpuset="0x1"
complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1" gp_index="2" local_memory="1073741824"/>
<object type="PU" os_index="0" cpuset="0x1" complete_cpuset="0x1" nodeset="0x1" complete_nodeset="0x1"
gp_index="3"/></object></topology>)";

}  // namespace

void mounts(const uint8_t* data, size_t size) {
  static const Directory at;
  static const bool made = [] {
    for (const char* dir : {"/proc/self", "/sys/class/block", "/dev/shm", "/tmp", "/scratch"})
      std::filesystem::create_directories(at.path() + dir);
    for (const char* dir : {"/tmp", "/scratch"})
      std::filesystem::permissions(at.path() + dir, static_cast<std::filesystem::perms>(01777));
    at.write("topology.xml", kTopology, sizeof kTopology - 1);
    return true;
  }();
  FUZZ_CHECK(made);
  at.write("proc/self/mountinfo", data, size);
  const Result<std::vector<Candidate>> found =
      discover({at.path(), at.path() + "/topology.xml", ::geteuid()});
  if (!found.ok()) return;
  for (const Candidate& c : *found) {
    FUZZ_CHECK(!c.reason.empty());
    if (!c.chosen) continue;
    FUZZ_CHECK(c.path[0] == '/' && c.medium && c.tier.path == c.path);
  }
}

}  // namespace monarch::fuzz
